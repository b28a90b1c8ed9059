"""Programs that compute in half precision: under autocast, or of a module that is in one.

What is known converts as if all floating-point values were float32, and the program says of each
operation which half its results are in PyTorch.  What is between two such results is then free to
be in either.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.fx import Node

from minidnn._torch_internals import pytree
from minidnn.errors import UnsupportedError
from minidnn.frontends.torch.captured import Captured

#: The dtypes, by their names in graphs.
HALVES = {"float16": torch.float16, "bfloat16": torch.bfloat16}
_NAMES = {dtype: name for name, dtype in HALVES.items()}

_NARROW = "minidnn_narrow"


def autocast_to(memory: str) -> str | None:
    """To which half autocast makes PyTorch cast on a device ("cpu", "cuda:0") now; None where it
    is off."""
    kind = memory.partition(":")[0]
    if kind not in ("cpu", "cuda") or not torch.is_autocast_enabled(kind):
        return None
    return _NAMES.get(torch.get_autocast_dtype(kind))


def uncached(memory: str) -> AbstractContextManager[Any]:
    """Within, autocast keeps nothing that it has cast: not of the tensors without data that a
    capture is made with."""
    if autocast_to(memory) is None:
        return nullcontext()
    return torch.autocast(memory.partition(":")[0], cache_enabled=False)


def is_narrow(tensor: Any) -> bool:
    """Whether something is a tensor in half precision."""
    return isinstance(tensor, torch.Tensor) and tensor.dtype in _NAMES


def widen(captured: Captured) -> str | None:
    """Makes of all values in half precision such in float32, and notes what they were; gives the
    half, or None where there is no such value.

    UnsupportedError if there are two kinds of halves.
    """
    found: dict[str, None] = {}

    def wide(tensor: torch.Tensor) -> torch.Tensor:
        if not is_narrow(tensor):
            return tensor
        found[_NAMES[tensor.dtype]] = None
        mode: Any = getattr(tensor, "fake_mode", None) or nullcontext()
        with mode, torch.no_grad():
            return tensor.to(torch.float32)

    for node in captured.module.graph.nodes:
        if "val" in node.meta:
            node.meta[_NARROW] = is_narrow(node.meta["val"])
            node.meta["val"] = pytree.tree_map_only(torch.Tensor, wide, node.meta["val"])
    if len(found) > 1:
        raise UnsupportedError("it has values in float16 and values in bfloat16")
    return next(iter(found), None)


def was_narrow(node: Node) -> bool:
    """Whether an operation's result is in half precision in PyTorch."""
    return bool(node.meta.get(_NARROW))
