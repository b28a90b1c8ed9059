"""A module that cannot be captured: its own code runs in PyTorch, what is below it is taken.

Its code runs on a stand-in, an object of a class derived from the module's that has the module's
very attributes, so what it writes to itself is written to the module.  Only its children are other
objects there: each stands for one of the module's and is called by way of an optimized module.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from minidnn._torch_internals import pytree
from minidnn.acceleration.program import SizedProgram
from minidnn.acceleration.watch import StandsFor
from minidnn.errors import UnsupportedError
from minidnn.frontends.torch.hooks import without_hooks
from minidnn.frontends.torch.scripted import is_scripted
from minidnn.frontends.torch.unseen import unseen


class Below:
    """What runs a module that cannot be captured, for arguments of one size; it is used in the
    place of a :class:`minidnn.acceleration.program.SizedProgram`.

    Attributes:
        reason: why the module cannot be captured.
        children: the optimized modules below it by their paths, as far as they were called.
        watch: itself, as nothing of it is compiled: what is below looks at its own weights.
    """

    starts_early = False
    at_once = None

    def __init__(
        self,
        root: nn.Module,
        sizes: str,
        reason: str,
        optimized: Callable[[nn.Module], Any],
    ) -> None:
        """optimized: makes the optimized module of one below."""
        self.name = type(root).__name__
        self.sizes = sizes
        self.reason = reason
        self.children: dict[str, Any] = {}
        self.watch = self
        self._root = root
        self._optimized = optimized
        #: Modules of which nothing was taken when they were called: PyTorch calls them.
        self._left: set[int] = set()
        self._made: dict[int, tuple[nn.Module, Any]] = {}
        self._is_doubted = False
        self._stands = StandIns(self._call).of(root)

    def run(self, _: Any) -> Below:
        """Itself: whoever asks calls it with the arguments themselves, which may be lists that the
        module writes to."""
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The module's result, without its own hooks, which the caller runs."""
        if type(self._root).__call__ is nn.Module.__call__:
            return without_hooks(self._stands)(*args, **kwargs)
        return type(self._root).__call__(self._stands, *args, **kwargs)

    def prepare(self, args: Any, kwargs: Any) -> None:
        """Compiles what is below for what a call with these arguments gives it.  The module's code
        runs for that, on copies of all that it may write to."""

        def work(subject: nn.Module, _: Any) -> None:
            originals = dict(zip(map(id, subject.modules()), self._root.modules(), strict=True))

            def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
                if (original := originals.get(id(module))) is not None:
                    self._below(original).prepare(*args, **kwargs)
                return module(*args, **kwargs)

            given = pytree.tree_map_only(torch.Tensor, torch.clone, (args, kwargs))
            type(self._root).__call__(StandIns(call).of(subject), *given[0], **given[1])

        unseen(self._root, work)

    def _call(self, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if id(module) in self._left:
            return module(*args, **kwargs)
        fast = self._below(module)
        result = fast(*args, **kwargs)
        kept = fast.kept
        if kept and all(isinstance(each, SizedProgram) and not each.parts for each in kept):
            self._left.add(id(module))
        return result

    def _below(self, module: nn.Module) -> Any:
        """The optimized module of one below."""
        if id(module) not in self._made:
            fast = self._optimized(module)
            self._made[id(module)] = module, fast
            paths = (path for path, each in self._root.named_modules() if each is module)
            self.children[next(paths, type(module).__name__)] = fast
        return self._made[id(module)][1]

    # As a program and its watch

    @property
    def programs(self) -> list[Any]:
        """What was compiled of all that is below."""
        return [program for child in self.children.values() for program in child.programs]

    def why_nothing(self) -> str:
        """Why there is no part."""
        left = [
            f"  {path}:\n{program.why_nothing()}"
            for path, child in self.children.items()
            for program in child.programs
        ]
        return "\n".join([f"  it cannot be captured: {self.reason}", *left])

    def doubt(self) -> None:
        self._is_doubted = True
        for child in self.children.values():
            child.refresh()

    def is_as_it_was(self) -> bool:
        return not self._is_doubted

    def restructured(self) -> str | None:
        return "refresh() was called" if self._is_doubted else None

    def changed(self) -> None:
        return None


class _StandIn:
    """What every stand-in is, before it is of the module's class."""

    __slots__ = ("_minidnn_for", "_minidnn_others")

    def __init_subclass__(cls, **_: Any) -> None:
        """The class derived from is not told: there may be a register of what is derived from."""

    @property
    def _modules(self) -> dict[str, Any]:
        return _Children(vars(self)["_modules"], self._minidnn_others)

    def __getattr__(self, name: str) -> Any:
        child = vars(self)["_modules"].get(name)
        if child is not None:
            return self._minidnn_others.of(child)
        return super().__getattr__(name)  # type: ignore[misc]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._minidnn_others.call(self._minidnn_for, *args, **kwargs)

    def __eq__(self, other: Any) -> bool:
        return self._minidnn_for is getattr(other, "_minidnn_for", other)

    def __hash__(self) -> int:
        return hash(self._minidnn_for)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._minidnn_for.__reduce_ex__(protocol)  # a copy is one of the module


class _Children(dict[str, Any]):
    """A module's children as stand-ins; what is written is written to the module."""

    def __init__(self, own: dict[str, Any], others: StandIns) -> None:
        super().__init__((name, others.of(each)) for name, each in own.items())
        self._own = own

    def __setitem__(self, name: str, module: Any) -> None:
        self._own[name] = module
        super().__setitem__(name, module)

    def __delitem__(self, name: str) -> None:
        del self._own[name]
        super().__delitem__(name)


class StandIns:
    """The stand-ins for the modules of a network, one for each, and at a call of one ``call`` is
    called with the module and the arguments."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self.call = call
        self._classes: dict[type, Any] = {}
        self._made: dict[int, tuple[Any, Any]] = {}

    def of(self, module: Any) -> Any:
        """The stand-in for a module; itself where it is optimized already, or TorchScript's.

        UnsupportedError if Python cannot make one.
        """
        if module is None or is_scripted(module) or isinstance(module, (StandsFor, _StandIn)):
            return module
        if id(module) not in self._made:
            self._made[id(module)] = module, self._stand_in(module)
        return self._made[id(module)][1]

    def _stand_in(self, module: nn.Module) -> Any:
        kind = type(module)
        try:
            if kind not in self._classes:
                self._classes[kind] = _derived(kind)
            made = object.__new__(self._classes[kind])
            object.__setattr__(made, "__dict__", vars(module))
        except TypeError as error:  # its class, or that one's class, does not allow it
            raise UnsupportedError(f"{kind.__name__} cannot be derived from: {error}") from error
        object.__setattr__(made, "_minidnn_for", module)
        object.__setattr__(made, "_minidnn_others", self)
        return made


def _derived(kind: type[nn.Module]) -> Any:
    """A class of stand-ins for modules of a class, by which they call themselves."""
    told = {name: getattr(kind, name) for name in ("__module__", "__qualname__", "__doc__")}
    own = {"__slots__": (), "__class__": property(lambda self: kind)}
    derived: Any = type(kind)
    return derived(kind.__name__, (_StandIn, kind), {**told, **own})
