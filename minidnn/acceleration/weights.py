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

    def __init__(self, held: Iterable[Held], root: torch.nn.Module | None = None) -> None:
        self._held = list(held)
        #: Where each module stands in the one around it.
        self._places = [
            (parent._modules, name)
            for parent in (root.modules() if root is not None else ())
            for name in parent._modules
        ]
        self.renew()

    def renew(self) -> None:
        """Takes the weights as they are now for unchanged."""
        tensors = [(each, each.tensor) for each in self._held]
        self._seen = [
            (each.holder, each.key, tensor, tensor._version, tensor.data_ptr())
            for each, tensor in tensors
            if not tensor.is_inference()
        ]
        # PyTorch does not count the writes to tensors of inference mode.
        self._uncounted = [
            (each, tensor, tensor.data_ptr()) for each, tensor in tensors if tensor.is_inference()
        ]
        self._types = [_type(tensor) for _, tensor in tensors]
        self._modules = [
            (holder, name, holder[name], holder[name].training)
            for holder, name in self._places
            if holder.get(name) is not None
        ]

    def is_as_it_was(self) -> bool:
        """Whether weights and modules are those that were compiled in."""
        return not self.restructured() and self.changed() is None

    def changed(self) -> str | None:
        """The name of a weight that is not what it was, or None.

        This runs at every call of a network, over hundreds of weights.
        """
        for holder, key, tensor, version, address in self._seen:
            now = holder.get(key)
            if now is not tensor or now._version != version or now.data_ptr() != address:
                return next(e.name for e in self._held if e.holder is holder and e.key == key)
        for each, tensor, address in self._uncounted:
            if each.holder.get(each.key) is not tensor or tensor.data_ptr() != address:
                return each.name
        return None

    def refitted(self) -> str | None:
        """The name of a weight that now has another type, so that nothing fits it."""
        for each, before in zip(self._held, self._types, strict=True):
            if each.key not in each.holder or _type(each.tensor) != before:
                return each.name
        return None

    def restructured(self) -> bool:
        """Whether a module was replaced, or put into training or evaluation mode."""
        for holder, name, module, training in self._modules:
            if holder.get(name) is not module or module.training != training:
                return True
        return False


def _type(tensor: Any) -> Any:
    return (tensor.shape, tensor.dtype, tensor.device)
