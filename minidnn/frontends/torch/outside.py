"""What a network's code writes beyond its modules: seeing it, putting it back, telling who did it.

PyTorch captures a replica of the network's modules, whose attributes are its own.  What their code
and hooks reach otherwise (closures, globals, classes, other objects) are the user's own things:
what is written to them meanwhile are tensors without data, which must not stay there, and a program
would not write it again.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from minidnn._torch_internals import FakeTensor, FunctionalTensor
from minidnn.frontends.torch.caches import Caches
from minidnn.frontends.torch.opaque import HOOKS, whole_call
from minidnn.frontends.torch.printed import KEY, Printed
from minidnn.frontends.torch.reach import (
    Place,
    Reach,
    code_of,
    is_alike,
    is_looked_into,
)
from minidnn.frontends.torch.replica import holding
from minidnn.frontends.torch.scripted import is_scripted
from minidnn.frontends.torch.state import OF_MODULES

_HOLDERS = ("_parameters", "_buffers", "_modules")
#: What is written to when a hook is registered or removed.
_REGISTERS = (
    *HOOKS,
    *("_forward_pre_hooks_with_kwargs", "_forward_hooks_with_kwargs"),
    "_forward_hooks_always_called",
)
_FAKES = (FakeTensor, FunctionalTensor)


class Outside:
    """All that a network's code reaches beyond what PyTorch captures of it, as it is now.

    without: the paths of modules that are not looked at, with those in them.
    with_modules: whether what the modules themselves hold is looked at, too.
    """

    def __init__(
        self, root: nn.Module, without: Collection[str] = (), with_modules: bool = True
    ) -> None:
        every = [(path, module) for path, module in root.named_modules() if not is_scripted(module)]
        self._modules = [(path, each) for path, each in every if not is_within(path, without)]
        self._reach = Reach(module for _, module in every)
        #: What this thread prints, while it is counted.
        self.printed = Printed()
        for path, module in self._modules:
            name = path or "the network"
            for hooks in HOOKS:
                for hook in getattr(module, hooks).values():
                    self._reach.add(hook, f"what a hook of {name} uses")
            for hooks in _REGISTERS:
                self._reach.add_entries(vars(module)[hooks], f"the hooks of {name}")
            self._reach.add(type(module), f"the class of {name}")
            for attribute, value in vars(module).items():
                if attribute not in OF_MODULES:
                    label = f"attribute {f'{path}.{attribute}'.lstrip('.')!r}"
                    self._reach.add(value, label)
            for tensor in (*module._parameters.values(), *module._buffers.values()):
                if type(tensor) in (torch.Tensor, nn.Parameter):
                    self._reach.add_attributes(
                        tensor.__dict__, f"an attribute of a weight of {name}"
                    )
            if with_modules:
                self._reach.add_attributes(vars(module), f"an attribute of {name}")
                for holder in _HOLDERS:
                    self._reach.add_attributes(vars(module)[holder], f"a weight of {name}")
        self._tensors = [
            (tensor, tensor._version, tensor.detach().clone())
            for tensor in self._reach.tensors.values()
            if type(tensor) in (torch.Tensor, nn.Parameter)
            and not tensor.is_inference()
            and not tensor.requires_grad
        ]

    @property
    def places(self) -> dict[Any, Place]:
        """All that it could write to, by key."""
        return {KEY: self.printed, **self._reach.places}

    @property
    def caches(self) -> dict[int, Any]:
        """The functions that keep their results."""
        return self._reach.caches

    def changed(self) -> dict[Any, Place]:
        """The places that hold other things than before."""
        return {key: each for key, each in self.places.items() if each.has_changed()}

    def restore_fakes(self) -> None:
        """Puts back what was there where tensors without data are now."""
        for place in self.changed().values():
            if holds_fakes(place.now().values()):
                place.restore()

    def restore(self) -> None:
        """Puts back what was there."""
        for place in self._reach.places.values():
            place.restore()
        with torch.no_grad():
            for tensor, version, copy in self._tensors:
                if tensor._version != version:
                    tensor.copy_(copy)

    def holders(self, places: Mapping[Any, Place]) -> Iterator[tuple[str, str]]:
        """The modules by whose attributes one comes to such places: their paths, and the names of
        the attributes."""
        aims = set(places)
        for path, names in self.attributes(places):
            yield from ((path, name) for name in names)
        for path, module in self._modules:
            for name, value in vars(module).items():
                if name not in OF_MODULES and self._reach.reaches(value, aims):
                    yield path, name

    def attributes(self, places: Mapping[Any, Place]) -> Iterator[tuple[str, list[str]]]:
        """The modules whose own attributes are among such places: their paths, and the names of
        those that are others now."""
        for path, module in self._modules:
            if (place := places.get(id(vars(module)))) is not None:
                now, before = place.now(), place.before
                names = [
                    name for name in {**before, **now} if now.get(name) is not before.get(name)
                ]
                yield path, [name for name in names if name not in OF_MODULES]

    def readers(self, places: Mapping[Any, Place]) -> Iterator[tuple[str, str]]:
        """The modules whose code comes to such places, other than by attributes: their paths, and
        how messages call the places."""
        for path, module in self._modules:
            hooks = {id(vars(module)[name]) for name in _REGISTERS if path}
            code = code_of(module)
            for key, place in places.items():
                if key in hooks or any(self._reach.reaches(each, {key}) for each in code):
                    yield path, place.label
                    break


def is_within(path: str, paths: Collection[str]) -> bool:
    """Whether a module is one of these, or in one of them."""
    return any(path == each or path.startswith(f"{each}.") for each in paths)


def writers(
    root: nn.Module, places: Iterable[Place], without: Collection[str], run: Callable[[], Any]
) -> dict[str, str]:
    """The paths of modules that write to places when the network runs, and what they write to.

    root: what ``run`` runs.
    """
    places = list(places)
    found: dict[str, str] = {}
    before = [place.now() for place in places]
    stack = [""]

    def note() -> None:
        for at, place in enumerate(places):
            now = place.now()
            if not is_alike(now, before[at]):
                before[at] = now
                if not is_within(stack[-1], without):
                    found.setdefault(stack[-1], place.label)

    def noting(path: str, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def noted(*args: Any, **kwargs: Any) -> Any:
            note()
            stack.append(path)
            try:
                return call(*args, **kwargs)
            finally:
                note()
                stack.pop()

        return noted

    with ExitStack() as held:
        for path, module in list(root.named_modules()):
            if not is_scripted(module):
                none: dict[str, Any] = {name: {} for name in HOOKS}
                call = noting(path, whole_call(module))
                held.enter_context(holding(module, **none, forward=call))
        run()
        note()
    return found


@contextmanager
def nothing_kept(outside: Outside, *replicas: nn.Module) -> Iterator[None]:
    """Afterwards no function that keeps its results (``functools.lru_cache``) keeps any that were
    made within of tensors without data, or for modules of these replicas: such are cleared."""
    own = {id(module) for replica in replicas for module in replica.modules()}
    before = Caches(outside.caches.values())
    try:
        yield
    finally:
        for each in before.changed(outside.caches.values()):
            within = (each.__wrapped__, each.__dict__)
            kept = [o for o in gc.get_referents(each) if not any(o is w for w in within)]
            if holds_fakes(kept, own):
                each.cache_clear()


def holds_fakes(things: Iterable[Any], modules: Collection[int] = ()) -> bool:
    """Whether tensors without data are among things, or modules of these identities, or in what the
    things hold."""
    pending = list(things)
    for _ in range(4):  # so deep are they looked into
        if any(isinstance(each, _FAKES) or id(each) in modules for each in pending):
            return True
        pending = [
            inner
            for each in pending
            if isinstance(each, (dict, list, tuple, set))
            or type(each).__name__.startswith("_lru")
            or (is_looked_into(type(each).__module__) and not isinstance(each, type))
            for inner in gc.get_referents(each)
        ]
    return False
