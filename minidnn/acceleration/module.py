"""The PyTorch module that :func:`minidnn.optimize` returns.

:class:`OptimizedModule` stands for the original module, whose state it shares, and runs its code
through the pieces that Dynamo hands over.  Calls that PyTorch has to see operation by operation
(traces, exports, transforms) run the original.
"""

from __future__ import annotations

import contextvars
import copy
import logging
import warnings
import weakref
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any, Self

import torch
from torch import nn

from minidnn._torch_internals import (
    GLOBAL_HOOKS,
    DynamoRuntimeError,
    RecompileLimitError,
    RemovableHandle,
    dynamo,
    is_exporting,
    pytree,
)
from minidnn.acceleration.graphs import RECOMPILES, captured
from minidnn.acceleration.piece import BridgeSettings, Piece, PiecePrograms
from minidnn.acceleration.program import GAINS_LESS, REHEARSING, SizedProgram
from minidnn.acceleration.sources import how_transformed, is_recorded
from minidnn.dynamic.dim import Dim
from minidnn.errors import GraphError, MiniDNNWarning, UnsupportedError
from minidnn.frontends.torch.capture import unchanged

# Hooks that are registered after a network was captured.
#
# Dynamo's guards check at every call that captured hooks are the same, but not that a module which
# had no hook still has none: that would cost as much as all its other guards together.  PyTorch
# numbers hooks in the order of registration, so one comparison tells whether there are new ones.


class LateHooks:
    """Detects hooks of a network, or of all modules, that were registered since the last check."""

    def __init__(self, network: nn.Module) -> None:
        self._network = network
        self._next: int = RemovableHandle.next_id

    def came(self) -> bool:
        """Whether a hook was registered since the last call of this method."""
        if self._next == RemovableHandle.next_id:
            return False
        first_new, self._next = self._next, RemovableHandle.next_id
        own_hooks = (
            hooks
            for module in self._network.modules()
            for name, hooks in vars(module).items()
            if name.endswith("_hooks") and name.startswith(("_forward", "_backward"))
        )
        return any(number >= first_new for hooks in (*GLOBAL_HOOKS, *own_hooks) for number in hooks)


class ContainerProxy(nn.Module):
    """A module that stands for ``original``, also as a container: indexing, length, iteration."""

    original: Any

    # Python looks for these at the type.  A method that the original lacks raises its TypeError.

    def __getitem__(self, key: Any) -> Any:
        return self.original[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self.original[key] = value

    def __delitem__(self, key: Any) -> None:
        del self.original[key]

    def __len__(self) -> int:
        return len(self.original)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.original)

    def __contains__(self, item: Any) -> bool:
        return item in self.original

    def __bool__(self) -> bool:
        return bool(self.original)  # else Python would call __len__, which it may lack


log = logging.getLogger(__name__)

_COMPILING = torch.compiler.is_dynamo_compiling

#: Part of Dynamo's error for a call while any thread makes a symbolic trace.
_TRACES = "symbolically trace a dynamo-optimized function"

#: Attributes that, unless empty, make a call of a module more than a call of ``forward``.
_ASIDE = (
    *("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"),
    "_compiled_call_impl",
)
_SHARED = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")
#: Hooks of the state dict, which is the original's.
_STATE_HOOKS = (
    *("_state_dict_hooks", "_state_dict_pre_hooks"),
    *("_load_state_dict_pre_hooks", "_load_state_dict_post_hooks"),
)


_NO_PIECES = "PyTorch's compiler makes no graph of any of it; TORCH_LOGS=graph_breaks says why"


class _Pieces(list[Piece]):
    """The pieces that Dynamo has handed over so far, in order.

    Attributes:
        broken: the reasons why layers were captured apart from their caller, as keys.
    """

    def __init__(self, settings: BridgeSettings) -> None:
        super().__init__()
        self._settings = settings
        self._programs: dict[Any, PiecePrograms] = {}
        self.broken: dict[str, None] = {}

    def made(self, module: Any, example: Sequence[Any]) -> Piece:
        """Adds a piece; pieces of the same code share their programs."""
        code = tuple((node.op, str(node.target)) for node in module.graph.nodes)
        shared_programs = self._programs.setdefault(code, PiecePrograms(self._settings))
        piece = Piece(module, example, self._settings, shared_programs)
        piece.is_among_others |= bool(self.broken) or any(earlier.broken for earlier in self)
        self.append(piece)
        return piece

    def __del__(self) -> None:
        """Frees the programs: Dynamo's cache holds pieces for as long as a code object exists."""
        for piece in self:
            piece.forget()


class OptimizedModule(ContainerProxy):
    """The module that :func:`minidnn.optimize` returns.

    It shares the parameters, buffers and children of the original module: state dict, ``to``,
    ``apply``, the module's own hooks and attributes are the original's.

    Attributes:
        original: the module that was optimized.
        pieces: the pieces that Dynamo has handed over so far, in order.
    """

    def __init__(
        self, original: nn.Module, settings: BridgeSettings, dynamic: Dim | None = None
    ) -> None:
        """dynamic: the name and range of the batch, if it is dynamic."""
        super().__init__()
        attributes = self.__dict__
        attributes["original"] = (
            original  # not as a child: names in the state dict stay what they are
        )
        for shared in (*_SHARED, *_STATE_HOOKS):
            attributes[shared] = original.__dict__[shared]
        attributes["_settings"] = settings
        attributes["_dim"] = dynamic
        attributes["_warned"] = {}  # the reasons of which there was a warning, in order
        self._forget()

    def _forget(self) -> None:
        """Drops all pieces, so that the next call is captured again."""
        settings = self._settings
        pieces = _Pieces(settings)
        reference = weakref.ref(pieces)

        def backend(module: Any, example: Sequence[Any]) -> Piece:
            current = reference()  # PyTorch holds this function for ever
            assert current is not None
            return current.made(module, example)

        attributes = self.__dict__
        attributes["pieces"] = pieces
        attributes["_broken"] = pieces.broken
        attributes["_late_hooks"] = LateHooks(self.original)
        dynamic = None if self._dim is not None else False
        attributes["_run"] = captured(
            self.original,
            backend,
            settings.strict,
            dynamic,
            self._left_in_python,
            pieces.broken.setdefault,
        )

    def _left_in_python(self, error: Exception) -> None:
        """Warns, once for each reason, that code is not captured and runs in Python.  Errors of the
        code itself are not reported: it raises them when it runs."""
        name = self._settings.name
        if isinstance(error, DynamoRuntimeError):
            return
        reason = " ".join(str(error).split("\n\n")[0].split())
        if isinstance(error, RecompileLimitError):
            reason = f"it was compiled {RECOMPILES} times, for ever other values"
        if self._settings.strict:
            raise UnsupportedError(
                f"strict=True, and {name} cannot be captured whole: {reason:.400}"
            )
        if reason not in self._warned:
            self._warned[reason] = None
            warnings.warn(
                f"{name}: some of its code runs in PyTorch: {reason:.400}",
                MiniDNNWarning,
                stacklevel=6,
            )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the module with its hooks; if there are none, calls ``forward`` at once."""
        own = self.__dict__
        if any(map(own.get, _ASIDE)) or any(GLOBAL_HOOKS) or _COMPILING():
            return super().__call__(*args, **kwargs)
        return self.forward(*args, **kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the original's results.

        UnsupportedError if ``strict`` and not everything is taken.  Where PyTorch's operations are
        recorded, the original runs.
        """
        if _COMPILING():  # as part of another network
            if is_exporting():
                return self.original(*args, **kwargs)
            return self._uncompiled(*args, **kwargs)
        if type(args) is not tuple:  # a Proxy for all of them, at the root of a symbolic trace
            return self._traced(args)
        if is_recorded():
            return self._recorded(args, kwargs)
        for each in (*args, *kwargs.values()):
            if type(each) is torch.fx.Proxy:  # of a symbolic trace
                return self.original.forward(*args, **kwargs)  # its children are found there
            if isinstance(each, torch.Tensor) and each.is_nested:
                # PyTorch 2.13 ends the process where it compares one with a tensor.
                return self._left("with a nested tensor", args, kwargs)
        if self._late_hooks.came():
            self._forget()
        if self._dim is not None:
            self._mark(args, kwargs)
        try:
            result = self._run(*args, **kwargs)
        except RuntimeError as error:
            if _TRACES not in str(error):
                raise
            return self.original(*args, **kwargs)
        if not self.pieces:
            self._left_in_python(UnsupportedError(_NO_PIECES))
        return result

    @torch.compiler.disable(reason="minidnn runs it")
    def _uncompiled(self, *args: Any, **kwargs: Any) -> Any:
        return self.forward(*args, **kwargs)

    def _traced(self, given: Any) -> Any:
        """Returns the original's result in a symbolic trace: the trace is made again of the
        original, whose placeholders replace ``given``, the proxy of all arguments."""
        graph = given.tracer.trace(self.original)
        output = graph.output_node()
        result = torch.fx.map_arg(output.args[0], given.tracer.proxy)
        graph.erase_node(output)  # the outer trace makes its own, of the result
        return result

    def _recorded(self, args: Any, kwargs: Any) -> Any:
        """Runs the original, since its operations are recorded or transformed."""
        how = how_transformed()
        if how is None:
            return self.original(*args, **kwargs)
        return self._left(how, args, kwargs)

    def _mark(self, args: Any, kwargs: Any) -> None:
        """Marks the first axis of every tensor argument as dynamic, for Dynamo."""
        dim: Dim = self._dim
        tensors = [
            leaf
            for leaf in pytree.tree_leaves((args, kwargs))
            if isinstance(leaf, torch.Tensor) and leaf.dim()
        ]
        rows = {tensor.shape[0] for tensor in tensors}
        if not rows:
            return
        if len(rows) > 1 or not dim.takes(min(rows)):
            raise GraphError(
                f"dynamic={dim.name!r}: the first axes of the arguments are {sorted(rows)}; valid "
                f"is one size, {dim.valid}"
            )
        for tensor in tensors:
            dynamo.maybe_mark_dynamic(tensor, 0)

    def prepare(self, *args: Any, **kwargs: Any) -> None:
        """Compiles for arguments of these sizes, in the module's mode: with gradients for training,
        else without.  The module's code runs for that; its writes are undone."""
        contextvars.copy_context().run(self._rehearse, args, kwargs)
        self._warn_of_nothing()

    def _rehearse(self, args: Any, kwargs: Any) -> None:
        REHEARSING.set(True)
        with unchanged(self.original), nullcontext() if self.training else torch.no_grad():
            self.forward(*args, **kwargs)

    def explain(self) -> str:
        """Describes what was taken, what was left to PyTorch and why, for every size so far."""
        name = self._settings.name
        paragraphs = [f"{name}: some of its code runs in PyTorch: {why}" for why in self._warned]
        if not self.pieces and not paragraphs:
            return f"{name}: not called yet"
        for piece in self.pieces:
            paragraphs += [piece.explain()] if piece.explain() else []
            if piece.broken is not None:
                paragraphs.append(f"goes on in Python: {piece.broken}")
        paragraphs += [f"goes on in Python: {why}" for why in self._broken]
        return "\n\n".join(dict.fromkeys(paragraphs))

    @property
    def programs(self) -> list[SizedProgram]:
        """The programs compiled so far, piece by piece."""
        every = (program for piece in self.pieces for program in piece.programs)
        return list(dict.fromkeys(every))

    def refresh(self) -> None:
        """Has the next call of each size capture and compile again, after changes that are not
        noticed: by ``parameter.data`` or a NumPy view."""
        self._forget()

    def _warn_of_nothing(self) -> None:
        """Warns if no program has a part, so that everything runs in PyTorch."""
        programs = self.programs
        if any(program.parts for program in programs) or GAINS_LESS in self.explain():
            return
        why = "\n".join(program.why_nothing() for program in programs)
        why = why or "\n".join(piece.explain() for piece in self.pieces)
        warnings.warn(
            f"{self._settings.name}: nothing was taken, all runs in PyTorch:\n{why}",
            MiniDNNWarning,
            stacklevel=3,
        )

    def _left(self, how: str, args: Any, kwargs: Any) -> Any:
        """Runs the original in PyTorch, and warns once of how the module was called."""
        name = self._settings.name
        if self._settings.strict:
            raise UnsupportedError(f"strict=True, and {name} was called {how}")
        result = self.original(*args, **kwargs)  # before the warning, so that its errors come alone
        if (way := f"called {how}") not in self._warned:
            self._warned[way] = None
            warnings.warn(
                f"{name} was called {how}: it runs in PyTorch, where derivatives and transforms "
                "are computed",
                MiniDNNWarning,
                stacklevel=4,
            )
        return result

    # Attributes, modes and state are the original's.

    @property
    def training(self) -> bool:
        return self.original.training

    @training.setter
    def training(self, mode: bool) -> None:
        if "original" in self.__dict__:  # else nn.Module.__init__ sets it to True
            self.original.training = mode

    def train(self, mode: bool = True) -> Self:
        self.original.train(mode)
        return self

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        self.original._apply(fn, recurse)
        return self

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self.original.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self.original.load_state_dict(*args, **kwargs)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self.original._load_from_state_dict(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "original":  # not set yet, while a module is copied
                raise
            return getattr(self.original, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if hasattr(type(self), name) or name in self.__dict__:
            super().__setattr__(name, value)
        else:
            setattr(self.original, name, value)

    def __delattr__(self, name: str) -> None:
        if hasattr(type(self), name) or name in self.__dict__:
            super().__delattr__(name)
        else:
            delattr(self.original, name)

    def __deepcopy__(self, memo: dict[int, Any]) -> OptimizedModule:
        copied = OptimizedModule(*self._again(copy.deepcopy(self.original, memo)))
        copied.__dict__.update(copy.deepcopy(self._own_hooks(), memo))
        return copied

    def __reduce__(self) -> Any:
        """Pickles the original and the settings, without compiled programs."""
        return (OptimizedModule, self._again(self.original), self._own_hooks())

    def _again(self, original: nn.Module) -> tuple[Any, ...]:
        """The constructor's arguments for the same settings and another original."""
        return (original, self._settings, self._dim)

    def _own_hooks(self) -> dict[str, Any]:
        """The hooks of this module itself, besides the original's."""
        return {name: each for name, each in vars(self).items() if "_hooks" in name and each}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def __repr__(self) -> str:
        return f"OptimizedModule({self.original!r})"
