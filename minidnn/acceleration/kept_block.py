"""The block of one call: all values that it keeps for its gradient, packed in one tensor's memory.

PyTorch allocates one tensor in less time than hundreds.  On a GPU the block has the same address in
every training step, so that captured CUDA graphs read it without a copy.  For that it comes from a
memory pool of its own: PyTorch's general pool would split so large a block for other tensors.
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

#: The memory pool of each GPU, as long as a network is trained there.
_POOLS: WeakValueDictionary[torch.device, Any] = WeakValueDictionary()


class KeptBlock:
    """The layout of a block: the offset, shape and dtype of each kept value.

    Attributes:
        bytes: the size of a block.
    """

    def __init__(
        self,
        values: Sequence[Value],
        device: torch.device,
        places: Mapping[int, int] | None = None,
        bytes: int = 0,
    ) -> None:
        """
        values: the kept values, in order.
        places: offsets that are given already, by the numbers of values, in bytes.
        bytes: the size of the memory that these offsets are in, which may hold other things too;
            the values without an offset follow after it.
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
        """Allocates a block, not initialized.  Its memory returns to the pool once nobody refers
        to it; where memory is short, the pool serves other tensors, too."""
        pool = self._pool
        allocation = nullcontext() if pool is None else torch.cuda.use_mem_pool(pool, self._device)
        with allocation:
            return torch.empty(self.bytes, dtype=torch.uint8, device=self._device)

    def addresses(self, block: torch.Tensor) -> list[int]:
        """The addresses of the values in a block."""
        begin = block.data_ptr()
        return [begin + offset for offset in self._offsets]

    def tensors(self, block: torch.Tensor) -> list[torch.Tensor]:
        """The values in a block, as views of it."""
        return [
            block[offset : offset + size].view(dtype).view(shape)
            for offset, (shape, dtype, size) in zip(self._offsets, self._types, strict=True)
        ]


def _pool_of(device: torch.device) -> Any:
    """The memory pool of a device; None where PyTorch's allocator has no pools."""
    if device.type != "cuda" or torch.cuda.get_allocator_backend() != "native":
        return None
    pool = _POOLS.get(device)
    if pool is None:
        pool = _POOLS[device] = torch.cuda.MemPool(use_on_oom=True)
    return pool
