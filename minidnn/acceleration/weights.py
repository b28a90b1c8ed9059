"""Noticing that weights were changed after they were compiled in.

PyTorch counts the writes to a tensor, so nothing has to be compared: a weight is as it was if the
module holds the same tensor under that name, its count is the same and so is its address.  What
that cannot see is a write past PyTorch (to ``tensor.data``, or to a NumPy view).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from minidnn.frontends.torch.capture import Held


class Watch:
    """The weights of a program as they were when it was compiled."""

    def __init__(self, held: Iterable[Held], modules: Iterable[torch.nn.Module] = ()) -> None:
        self._held = list(held)
        self._modules = list(modules)
        self.renew()

    def renew(self) -> None:
        """Takes the weights as they are now for unchanged."""
        self._seen = [
            (each.holder, each.key, each.tensor, version_of(each.tensor), each.tensor.data_ptr())
            for each in self._held
        ]
        self._modes = [module.training for module in self._modules]

    def changed(self) -> str | None:
        """The name of a weight that is not what it was, or None."""
        for place, (holder, key, tensor, version, address) in enumerate(self._seen):
            now = holder[key]
            if now is not tensor or version_of(now) != version or now.data_ptr() != address:
                return self._held[place].name
        return None

    def refitted(self) -> str | None:
        """The name of a weight that now has another type, so that nothing fits it."""
        for each, (_, _, before, _, _) in zip(self._held, self._seen, strict=True):
            now = each.tensor
            if (now.shape, now.dtype, now.device) != (before.shape, before.dtype, before.device):
                return each.name
        return None

    def modes_changed(self) -> bool:
        """Whether some module was put into training or evaluation mode."""
        return [module.training for module in self._modules] != self._modes


def version_of(tensor: Any) -> int:
    """How often PyTorch wrote to a tensor; tensors of inference mode are not counted."""
    return -1 if tensor.is_inference() else tensor._version
