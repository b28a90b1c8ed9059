"""What modules hold besides weights: seeing that a call changes it, and putting it back.

A program has attributes in it as they were when it was captured.  A module that writes to its own,
or to a list of its own, keeps state and must not be captured; and what it writes meanwhile are
tensors without data, which its owner must never see.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from operator import is_
from typing import Any

import torch
from torch import nn

from minidnn.frontends.torch.scripted import is_scripted

#: Types of attributes that are compared by their values.
PLAIN = (bool, int, float, complex, str)
_MISSING = object()

#: What every module has, of PyTorch's.
OF_MODULES = frozenset(vars(nn.Module()))


class State:
    """The attributes of a module and of those in it, and what is in their lists, dicts and sets,
    as they are now."""

    def __init__(self, root: nn.Module) -> None:
        self._attributes = [
            (path, vars(module), dict(vars(module)))
            for path, module in root.named_modules()
            if not is_scripted(module)
        ]
        seen: dict[int, Any] = {}
        self._contents = [
            (path, name, container, _content(container))
            for path, _, attributes in self._attributes
            for name, value in attributes.items()
            for container in _containers(value, seen)
        ]

    def changed(self) -> dict[str, dict[str, None]]:
        """By the paths of modules, the names of attributes that are others, or whose contents
        are."""
        found: dict[str, dict[str, None]] = {}
        for path, name, container, content in self._contents:
            if not _is_same(_content(container), content):
                found.setdefault(path, {})[name] = None
        for path, now, before in self._attributes:
            for name in {**before, **now}:
                if not _is_same(now.get(name, _MISSING), before.get(name, _MISSING)):
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
    """Leaves what was there before, and as it was where PyTorch counts the writes; and PyTorch's
    random numbers."""
    state = State(root)
    tensors = [tensor for tensor in state.tensors() if not tensor.is_inference()]
    saved = [(tensor, tensor._version, tensor.detach().clone()) for tensor in tensors]
    gpus = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    try:
        with torch.random.fork_rng(gpus):
            yield
    finally:
        state.restore()
        with torch.no_grad():
            for tensor, version, copy in saved:
                if tensor._version != version:
                    tensor.copy_(copy)


@contextmanager
def observed(
    root: nn.Module, without: Mapping[str, Iterable[str]]
) -> Iterator[dict[str, dict[str, None]]]:
    """Gives the modules that calls of a network change, and the names of their attributes; each
    call finds, and all leave, what was there before.

    without: attributes which are not there meanwhile, so that it is an error to read them.
    """
    found: dict[str, dict[str, None]] = {}
    outside = State(root)
    for path, names in without.items():
        attributes = vars(root.get_submodule(path))
        for name in names:
            if name not in OF_MODULES:
                attributes.pop(name, None)
    forward = root.forward

    @functools.wraps(forward)
    def watching(*args: Any, **kwargs: Any) -> Any:
        before = State(root)
        try:
            return forward(*args, **kwargs)
        finally:
            found.update(before.changed())
            before.restore()

    vars(root)["forward"] = watching
    try:
        yield found
    finally:
        outside.restore()  # PyTorch leaves copies of tuples and lists


def _is_same(value: Any, before: Any) -> bool:
    """Whether two things are one, or equal numbers, strings, or lists, dicts or sets of such."""
    if value is before or type(value) is not type(before):
        return value is before
    if isinstance(value, (list, tuple)):
        return len(value) == len(before) and all(map(_is_same, value, before))
    if isinstance(value, dict):
        return value.keys() == before.keys() and all(_is_same(value[k], before[k]) for k in value)
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
