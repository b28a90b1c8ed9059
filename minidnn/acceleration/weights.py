"""Noticing that weights were changed after they were compiled in.

PyTorch counts the writes to a tensor, so nothing has to be compared: a weight is as it was if the
module holds the same tensor under that name, its count is the same and so is its address.  What
that cannot see is a write past PyTorch (to ``tensor.data``, or to a NumPy view).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from itertools import chain
from operator import attrgetter, is_
from typing import Any

import torch
from torch import nn

from minidnn.acceleration.layout import unchanged_words
from minidnn.acceleration.nearby import fetcher
from minidnn.frontends.torch.capture import Held

_ADDRESS = torch.Tensor.data_ptr
_VERSION = attrgetter("_version")
_TRAINING = attrgetter("training")
_END = object()

#: Modules that compute the same in training: their mode need not be looked at.
_WITHOUT_MODES = {
    *(nn.AdaptiveAvgPool2d, nn.AvgPool2d, nn.Conv2d, nn.Flatten, nn.GELU, nn.Hardsigmoid),
    *(nn.Hardswish, nn.Identity, nn.LayerNorm, nn.Linear, nn.MaxPool2d, nn.ReLU, nn.ReLU6),
    *(nn.Sequential, nn.Sigmoid, nn.SiLU),
}


class Watch:
    """The weights of a program as they were when it was compiled.

    ``fetches``: whether what is looked at is fetched from memory first; the CPU engine must be
    there.
    """

    def __init__(
        self, held: Iterable[Held], root: torch.nn.Module | None = None, fetches: bool = False
    ) -> None:
        self._held = list(held)
        self._fetches = fetches
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
            (each.holder, each.key, tensor, tensor.data_ptr())
            for each, tensor in tensors
            if tensor.is_inference()
        ]
        self._types = [_type(tensor) for _, tensor in tensors]
        self._modules = [
            (holder, name, holder[name], holder[name].training)
            for holder, name in self._places
            if holder.get(name) is not None
        ]
        self._glance = _Glance(self, self._fetches)

    @property
    def uncounted(self) -> int:
        """Of how many weights writes in place are not noticed."""
        return len(self._uncounted)

    def is_as_it_was(self) -> bool:
        """Whether weights and modules are those that were compiled in."""
        if self._glance.is_as_it_was():
            return True
        return not self.restructured() and self.changed() is None

    def changed(self) -> str | None:
        """The name of a weight that is not what it was, or None."""
        for holder, key, tensor, version, address in self._seen:
            now = holder.get(key)
            if now is not tensor or now._version != version or now.data_ptr() != address:
                return self._name(holder, key)
        for holder, key, tensor, address in self._uncounted:
            if holder.get(key) is not tensor or tensor.data_ptr() != address:
                return self._name(holder, key)
        return None

    def _name(self, holder: Any, key: Any) -> str:
        return next(e.name for e in self._held if e.holder is holder and e.key == key)

    def refitted(self) -> str | None:
        """The name of a weight that now has another type, so that nothing fits it."""
        for each, before in zip(self._held, self._types, strict=True):
            now = each.holder.get(each.key)
            if now is None or _type(now) != before:
                return each.name
        return None

    def restructured(self) -> bool:
        """Whether a module was replaced, or put into training or evaluation mode."""
        for holder, name, module, training in self._modules:
            if holder.get(name) is not module or module.training != training:
                return True
        return False


class _Glance:
    """Whether all is as it was, at one glance, before every call of a network.

    By then the network has taken the caches, and hundreds of weights lie somewhere in memory.  So
    each thing is looked at in a pass over all weights, which only C walks: the processor then waits
    for many of them at a time, where a loop of Python's waits for one after the other.  Before,
    they are fetched all at a time.  Counts and addresses are read where PyTorch keeps them, if that
    place is known (:mod:`.layout`), else asked for.
    """

    def __init__(self, watch: Watch, fetches: bool) -> None:
        held = [*watch._seen, *watch._uncounted]
        holders = {id(holder): holder for holder, *_ in held}
        parents = {id(parent): parent for parent, *_ in watch._modules}
        self._dicts = [each.values() for each in (*holders.values(), *parents.values())]
        self._objects = [*chain.from_iterable(self._dicts), _END]
        tensors = [tensor for _, _, tensor, _, _ in watch._seen]
        uncounted = [tensor for _, _, tensor, _ in watch._uncounted]
        self._alive = [*tensors, *uncounted]
        self._words: Callable[[], int] = lambda: True
        if fetches:
            self._words, tensors = unchanged_words(tensors)
        self._tensors = tensors
        self._versions = list(map(_VERSION, tensors))
        self._addressed = [*tensors, *uncounted]
        self._addresses = array("Q", map(_ADDRESS, self._addressed))
        self._modules = [
            module for _, _, module, _ in watch._modules if type(module) not in _WITHOUT_MODES
        ]
        self._modes = [module.training for module in self._modules]
        self._fetch = None
        if fetches:
            dicts = [*holders.values(), *parents.values(), *map(vars, self._modules)]
            self._fetch = fetcher(dicts, self._objects, self._addressed)

    def is_as_it_was(self) -> bool:
        """True only if nothing at all has changed; a longer look may find it in order, too."""
        if self._fetch is not None:
            self._fetch()
        return bool(
            all(map(is_, chain(chain.from_iterable(self._dicts), (_END,)), self._objects))
            and self._words()
            and (not self._addressed or self._says_the_same())
            and list(map(_TRAINING, self._modules)) == self._modes
        )

    def _says_the_same(self) -> bool:
        """Whether PyTorch says of those tensors what it said."""
        return (
            list(map(_VERSION, self._tensors)) == self._versions
            and array("Q", map(_ADDRESS, self._addressed)) == self._addresses
        )


def _type(tensor: Any) -> Any:
    return (tensor.shape, tensor.dtype, tensor.device)
