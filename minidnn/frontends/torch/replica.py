"""A second set of a network's modules, with the same weights, for whoever changes modules.

While PyTorch captures a network its modules hold tensors without data, and other functions than
their own.  Other threads call the network meanwhile, so that is done to a replica.
"""

from __future__ import annotations

import types
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from minidnn.frontends.torch.scripted import HiddenObject, Scripted, is_scripted


def replica(root: nn.Module, with_buffers: bool = False) -> nn.Module:
    """The same network of modules of its own: what is set in them, their parameters among it, is
    not set in the network's.

    Modules, lists, tuples, dicts and bound methods are replaced wherever they stand in them; all
    else is the network's own, but for copies of its buffers if it is to be run ``with_buffers``,
    and for parameters of inference mode, which lie where the network's do.  Unless it is to be run,
    it has :class:`HiddenObject`s in the place of TorchScript's objects.
    """
    replicas = _Replicas(hides_objects=not with_buffers)
    for parameter in root.parameters():
        if parameter.is_inference() and type(parameter) is nn.Parameter:
            # PyTorch cannot capture those that require gradients outside of inference mode.
            replicas.keep(parameter, nn.Parameter(parameter.detach(), requires_grad=False))
    if with_buffers:
        for each in root.buffers():
            replicas.keep(each, each.detach().clone())
    made: Any = replicas.of(root)
    return made


@contextmanager
def holding(module: nn.Module, **attributes: Any) -> Iterator[None]:
    """Within, a module has these attributes of its own."""
    own = vars(module)
    before = {name: own[name] for name in attributes if name in own}
    own.update(attributes)
    try:
        yield
    finally:
        for name in attributes.keys() - before.keys():
            own.pop(name, None)
        own.update(before)


class _Replicas:
    """What stands for the things that were met, each for one."""

    def __init__(self, hides_objects: bool) -> None:
        #: By their identity, with the things themselves, which must not go meanwhile.
        self._made: dict[int, tuple[Any, Any]] = {}
        self._hides_objects = hides_objects

    def of(self, thing: Any) -> Any:
        if id(thing) in self._made:
            return self._made[id(thing)][1]
        kind = type(thing)
        if is_scripted(thing):
            return self.keep(thing, Scripted(thing))
        if isinstance(thing, torch.ScriptObject) and self._hides_objects:
            return self.keep(thing, HiddenObject())
        if isinstance(thing, nn.Module):
            module = object.__new__(kind)
            self.keep(thing, module)
            vars(module).update({key: self.of(each) for key, each in vars(thing).items()})
            _with_parameters_alone(module)
            return module
        if kind is list:
            items = self.keep(thing, [])
            items.extend(map(self.of, thing))
            return items
        if kind in (dict, OrderedDict):
            entries = self.keep(thing, kind())
            entries.update((key, self.of(each)) for key, each in thing.items())
            return entries
        if kind is tuple:
            return self.keep(thing, tuple(map(self.of, thing)))
        if kind is types.MethodType:
            return types.MethodType(thing.__func__, self.of(thing.__self__))
        if kind is partial:
            arguments, named = map(self.of, thing.args), self.of(thing.keywords)
            return partial(self.of(thing.func), *arguments, **named)
        return thing

    def keep(self, thing: Any, made: Any) -> Any:
        self._made[id(thing)] = (thing, made)
        return made


def _with_parameters_alone(module: nn.Module) -> None:
    """Has what stands in the place of parameters and is none (``torch.func.functional_call`` puts
    tensors there) stand among the buffers, where PyTorch captures it."""
    held = module._parameters
    for key in [key for key, each in held.items() if not _may_stand(each)]:
        module._buffers[key] = held.pop(key)


def _may_stand(parameter: Any) -> bool:
    return parameter is None or isinstance(parameter, nn.Parameter)
