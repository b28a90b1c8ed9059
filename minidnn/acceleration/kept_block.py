"""What a call keeps for its gradient: values that lie one behind the other in one tensor's memory.

One tensor takes PyTorch less time than hundreds, and on a GPU it lies at the same address in every
step, where graphs that were captured there copy nothing.  For that it comes from a pool of its own:
among others' tensors of all sizes so large a piece would be cut up.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any
from weakref import WeakValueDictionary

import torch

from minidnn.acceleration.part import ALIGNMENT
from minidnn.graph.ir import Value

#: The pool of each GPU, as long as a network is trained there.
_POOLS: WeakValueDictionary[torch.device, Any] = WeakValueDictionary()


class KeptBlock:
    """How values lie in such memory.

    Attributes:
        bytes: of a block.
    """

    def __init__(
        self,
        values: Sequence[Value],
        device: torch.device,
        places: Mapping[int, int] | None = None,
        bytes: int = 0,
    ) -> None:
        """
        places: where values begin, by their numbers, in memory of so many bytes, in which more may
            lie than they; the others lie behind that.
        """
        self._device = device
        self._types = [(v.shape, getattr(torch, v.dtype), v.type.bytes) for v in values]
        self._offsets, self.bytes = [], bytes
        for number, value in enumerate(values):
            if places is not None and number in places:
                self._offsets.append(places[number])
                continue
            begin = math.ceil(self.bytes / ALIGNMENT) * ALIGNMENT
            self._offsets.append(begin)
            self.bytes = begin + value.type.bytes
        self._pool = _pool_of(device) if self.bytes else None

    def empty(self) -> torch.Tensor:
        """A block in which nothing has been written yet.  What it takes is PyTorch's again once
        nobody has it; where memory is short, the pool serves others, too."""
        pool = self._pool
        within = nullcontext() if pool is None else torch.cuda.use_mem_pool(pool, self._device)
        with within:
            return torch.empty(self.bytes, dtype=torch.uint8, device=self._device)

    def addresses(self, block: torch.Tensor) -> list[int]:
        """Where the values lie in a block."""
        begin = block.data_ptr()
        return [begin + offset for offset in self._offsets]

    def tensors(self, block: torch.Tensor) -> list[torch.Tensor]:
        """The values in a block."""
        return [
            block[offset : offset + size].view(dtype).view(shape)
            for offset, (shape, dtype, size) in zip(self._offsets, self._types, strict=True)
        ]


def _pool_of(device: torch.device) -> Any:
    """The pool of a device; None where PyTorch's allocator has none."""
    if device.type != "cuda" or torch.cuda.get_allocator_backend() != "native":
        return None
    pool = _POOLS.get(device)
    if pool is None:
        pool = _POOLS[device] = torch.cuda.MemPool(use_on_oom=True)
    return pool
