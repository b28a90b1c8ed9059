"""A second set of a network's modules, with the same weights, for whoever changes modules.

While PyTorch captures a network its modules hold tensors without data, and other functions than
their own.  Other threads call the network meanwhile, so that is done to a replica.
"""

from __future__ import annotations

import types
from collections import OrderedDict
from functools import partial
from typing import Any

from torch import nn

from minidnn.frontends.torch.scripted import Scripted, is_scripted


def replica(root: nn.Module, with_buffers: bool = False) -> nn.Module:
    """The same network of modules of its own: what is set in them, their parameters among it, is
    not set in the network's.

    Modules, lists, tuples, dicts and bound methods are replaced wherever they stand in them; all
    else is the network's own, but for copies of its buffers if it is to be run ``with_buffers``.
    """
    replicas = _Replicas()
    if with_buffers:
        for each in root.buffers():
            replicas.keep(each, each.detach().clone())
    made: Any = replicas.of(root)
    return made


class _Replicas:
    """What stands for the things that were met, each for one."""

    def __init__(self) -> None:
        #: By their identity, with the things themselves, which must not go meanwhile.
        self._made: dict[int, tuple[Any, Any]] = {}

    def of(self, thing: Any) -> Any:
        if id(thing) in self._made:
            return self._made[id(thing)][1]
        kind = type(thing)
        if is_scripted(thing):
            return self.keep(thing, Scripted(thing))
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
