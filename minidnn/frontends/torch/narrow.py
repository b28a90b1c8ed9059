"""Captured programs in half precision: under autocast, or of a module in float16 or bfloat16.

Operations are converted as if all floating-point values were float32, and each node records whether
its result is in half precision in PyTorch.  Values within a part, which nobody else reads, may then
have either precision.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.fx import Node

from minidnn._torch_internals import pytree
from minidnn.errors import UnsupportedError
from minidnn.frontends.torch.captured import Captured

#: The half-precision dtypes, by their names in graphs.
HALF_DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}
_NAMES = {dtype: name for name, dtype in HALF_DTYPES.items()}

#: The key in ``node.meta`` of the flag that a node's value is in half precision in PyTorch.
_NARROW = "minidnn_narrow"


def autocast_to(memory: str) -> str | None:
    """The name of the half-precision dtype that autocast currently casts to on a device ("cpu",
    "cuda:0"); None where it is off."""
    kind = memory.partition(":")[0]
    if kind not in ("cpu", "cuda") or not torch.is_autocast_enabled(kind):
        return None
    return _NAMES.get(torch.get_autocast_dtype(kind))


def uncached(memory: str) -> AbstractContextManager[Any]:
    """Returns a context in which autocast does not cache casts: a capture would leave those of fake
    tensors in the cache."""
    if autocast_to(memory) is None:
        return nullcontext()
    return torch.autocast(memory.partition(":")[0], cache_enabled=False)


def is_narrow(tensor: Any) -> bool:
    """Whether an object is a tensor in half precision."""
    return isinstance(tensor, torch.Tensor) and tensor.dtype in _NAMES


def widen(captured: Captured) -> str | None:
    """Turns all values in half precision into float32 values, and records which nodes had them.

    Returns the name of the half-precision dtype; None where no value has one.

    Raises UnsupportedError if there are values in both float16 and bfloat16.
    """
    dtypes: dict[str, None] = {}

    def wide(tensor: torch.Tensor) -> torch.Tensor:
        if not is_narrow(tensor):
            return tensor
        dtypes[_NAMES[tensor.dtype]] = None
        mode: Any = getattr(tensor, "fake_mode", None) or nullcontext()
        with mode, torch.no_grad():
            return tensor.to(torch.float32)

    for node in captured.module.graph.nodes:
        if "val" in node.meta:
            node.meta[_NARROW] = is_narrow(node.meta["val"])
            node.meta["val"] = pytree.tree_map_only(torch.Tensor, wide, node.meta["val"])
    if len(dtypes) > 1:
        raise UnsupportedError("it has values in float16 and values in bfloat16")
    return next(iter(dtypes), None)


def was_narrow(node: Node) -> bool:
    """Whether an operation's result is in half precision in PyTorch."""
    return bool(node.meta.get(_NARROW))
