"""What modules hold besides weights: seeing that a call changes it, and putting it back.

A program has attributes in it as they were when it was captured.  A module that writes to its own,
or to a list of its own, keeps state and must not be captured; and what it writes meanwhile are
tensors without data, which its owner must never see.
"""

from __future__ import annotations

import functools
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from operator import is_
from typing import Any

import torch
from torch import nn
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from minidnn.frontends.torch.reach import code_of, names_in
from minidnn.frontends.torch.scripted import is_scripted

#: Types of attributes that are compared by their values.
PLAIN = (bool, int, float, complex, str)
_MISSING = object()

#: What every module has, of PyTorch's.
OF_MODULES = frozenset(vars(nn.Module()))


def computed_weights(module: nn.Module) -> set[str]:
    """The attributes in which hooks of PyTorch's put, before every call of a module, what they
    compute of its parameters and buffers; in evaluation mode, of these alone."""
    found = set()
    for hook in module._forward_pre_hooks.values():
        if isinstance(hook, (WeightNorm, SpectralNorm)):
            found.add(hook.name)
        elif isinstance(hook, BasePruningMethod):
            found.add(hook._tensor_name)
    return found


class ModuleState:
    """The attributes of a module and of those in it, and what is in their lists, dicts and sets,
    as they are now."""

    def __init__(self, root: nn.Module) -> None:
        self._attributes = [
            (path, vars(module), dict(vars(module)))
            for path, module in root.named_modules()
            if not is_scripted(module)
        ]
        #: The names of parameters, by their identity.
        self._names = {id(each): name for name, each in root.named_parameters()}
        seen: dict[int, Any] = {}
        self._contents = [
            (path, name, container, _content(container))
            for path, _, attributes in self._attributes
            for name, value in attributes.items()
            for container in _containers(value, seen)
        ]

    def changed(self, outside: ModuleState) -> dict[str, dict[str, None]]:
        """By the paths of modules, the names of attributes that are others, or whose contents
        are.

        outside: the state before PyTorch put others in the place of parameters.
        """
        names = {**outside._names, **self._names}
        found: dict[str, dict[str, None]] = {}
        for path, name, container, content in self._contents:
            if not _is_same(_content(container), content, names):
                found.setdefault(path, {})[name] = None
        for path, now, before in self._attributes:
            for name in {**before, **now}:
                if not _is_same(now.get(name, _MISSING), before.get(name, _MISSING), names):
                    found.setdefault(path, {})[name] = None
        return found

    def restore(self) -> None:
        """Puts back what was there."""
        for _, now, before in self._attributes:
            for name in [name for name in now if name not in before]:
                del now[name]
            now.update(before)
        for _, _, container, content in self._contents:
            if not _is_identical(_content(container), content):
                container.clear()
                (container.extend if isinstance(content, list) else container.update)(content)

    def tensors(self) -> list[torch.Tensor]:
        """What is there of tensors but parameters."""
        values = [
            *chain.from_iterable(attributes.values() for *_, attributes in self._attributes),
            *chain.from_iterable(_values(content) for *_, content in self._contents),
        ]
        found = {id(each): each for each in values if isinstance(each, torch.Tensor)}
        return [each for each in found.values() if not isinstance(each, nn.Parameter)]


@contextmanager
def unchanged(root: nn.Module) -> Iterator[None]:
    """Leaves what was there before, and as it was; and PyTorch's random numbers."""
    state = ModuleState(root)
    tensors = [tensor for tensor in state.tensors() if not tensor.is_inference()]
    saved = [(tensor, tensor._version, tensor.detach().clone()) for tensor in tensors]
    data = [(each, each.data) for each in root.parameters() if _is_plain(each)]
    written = [(each, each.detach().clone()) for each in _written(root)]
    gpus = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    try:
        with torch.random.fork_rng(gpus):
            yield
    finally:
        state.restore()
        for parameter, held in data:
            if parameter.data_ptr() != held.data_ptr():
                parameter.data = held
        for parameter, copy in written:
            if _differs(parameter.data, copy):
                parameter.data.copy_(copy)  # which is not counted
        with torch.no_grad():
            for tensor, version, copy in saved:
                if tensor._version != version or _differs(tensor, copy):
                    tensor.copy_(copy)


def _written(root: nn.Module) -> list[nn.Parameter]:
    """The parameters that code of modules or of their hooks may write to, as far as names in it
    tell: it names one, and ``data`` or a function that writes in place."""
    found: dict[int, nn.Parameter] = {}
    for module in root.modules():
        held = {key.rpartition(".")[2]: None for key, _ in module.named_parameters()}
        hooks = [*module._forward_pre_hooks.values(), *module._forward_hooks.values()]
        if is_scripted(module) or not held:
            continue
        for one in (*code_of(module), *hooks):
            code = getattr(getattr(one, "__func__", one), "__code__", None)
            names = frozenset().union(*names_in(code)) if code is not None else frozenset()
            named = not names.isdisjoint((*held, "parameters", "named_parameters"))
            if named and any(n == "data" or (n[0] != "_" and n.endswith("_")) for n in names):
                found.update((id(each), each) for each in module.parameters())
    return [each for each in found.values() if _is_plain(each)]


def _is_plain(parameter: nn.Parameter) -> bool:
    return type(parameter) is nn.Parameter and parameter.layout is torch.strided


def _differs(tensor: torch.Tensor, copy: torch.Tensor) -> bool:
    """Whether a tensor has other elements: batch normalization writes without being counted."""
    plain = tensor.layout is torch.strided and not tensor.is_nested and not tensor.is_quantized
    return plain and not torch.equal(tensor, copy)


@contextmanager
def observed(
    root: nn.Module, without: Mapping[str, Iterable[str]]
) -> Iterator[dict[str, dict[str, None]]]:
    """Gives the modules that calls of a network change, and the names of their attributes; each
    call finds, and all leave, what was there before.

    without: attributes which are not there meanwhile, so that it is an error to read them.  Of
    those, computed weights are not state: nobody has read what they were before the call.
    """
    found: dict[str, dict[str, None]] = {}
    computed: dict[str, set[str]] = {}
    outside = ModuleState(root)
    for path, names in without.items():
        module = root.get_submodule(path)
        for name in names:
            if name not in OF_MODULES:
                vars(module).pop(name, None)
        computed[path] = computed_weights(module).intersection(names)
    forward = root.forward

    @functools.wraps(forward)
    def watching(*args: Any, **kwargs: Any) -> Any:
        before = ModuleState(root)
        try:
            return forward(*args, **kwargs)
        finally:
            for path, names in before.changed(outside).items():
                if stated := {n: None for n in names if n not in computed.get(path, ())}:
                    found[path] = stated
            before.restore()

    vars(root)["forward"] = watching
    try:
        yield found
    finally:
        outside.restore()  # PyTorch leaves copies of tuples and lists


def _is_same(value: Any, before: Any, names: Mapping[int, str]) -> bool:
    """Whether two things are one, equal numbers or strings, parameters of one name, or lists,
    dicts, sets of such or references to them.

    names: of parameters, by their identity.
    """
    if value is before:
        return True
    if (name := names.get(id(value))) is not None:
        return name == names.get(id(before))
    if type(value) is not type(before):
        return False
    if isinstance(value, weakref.ref):
        return _is_same(value(), before(), names)
    if isinstance(value, (list, tuple)):
        return len(value) == len(before) and all(
            _is_same(now, then, names) for now, then in zip(value, before, strict=True)
        )
    if isinstance(value, dict):
        return value.keys() == before.keys() and all(
            _is_same(value[k], before[k], names) for k in value
        )
    if isinstance(value, PLAIN):
        return bool(value == before)
    return isinstance(value, (set, frozenset)) and bool(value == before)


def _containers(value: Any, seen: dict[int, Any]) -> Iterator[Any]:
    """The lists, dicts and sets that a thing is made of, but those that were seen."""
    if isinstance(value, (dict, list, set, deque, tuple)) and id(value) not in seen:
        seen[id(value)] = value
        if not isinstance(value, tuple):
            yield value
        for each in _values(value):
            yield from _containers(each, seen)


def _values(container: Any) -> Iterable[Any]:
    return container.values() if isinstance(container, dict) else container


def _content(container: Any) -> Any:
    """A copy of a list, dict or set; of one that is like a list, a list."""
    for kind in (dict, set):
        if isinstance(container, kind):
            return kind(container)
    return list(container)


def _is_identical(now: Any, before: Any) -> bool:
    """Whether copies hold the same objects."""
    if isinstance(now, set):
        return bool(now == before)
    if isinstance(now, dict) and list(now) != list(before):
        return False
    return len(now) == len(before) and all(map(is_, _values(now), _values(before)))
