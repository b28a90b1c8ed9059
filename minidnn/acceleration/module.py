"""A PyTorch module that runs through minidnn: the same to its callers, and faster."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any, Self

import torch
from torch import nn

from minidnn._torch_internals import GLOBAL_HOOKS, is_exporting
from minidnn.acceleration.any_batch import AnyBatch
from minidnn.acceleration.below import Below
from minidnn.acceleration.container import StandsForContainer
from minidnn.acceleration.engine import engine_for, memory_of
from minidnn.acceleration.explain import explain_program
from minidnn.acceleration.narrowing import LeftError, Narrowing
from minidnn.acceleration.program import GAINS_LESS, OverlapError, SizedProgram
from minidnn.acceleration.programs import Kept, Programs, arrangement, describe, foreign
from minidnn.acceleration.recorded import how_transformed, is_recorded
from minidnn.acceleration.trained import TrainedProgram
from minidnn.acceleration.watch import check_weights
from minidnn.dynamic.dim import Dim
from minidnn.errors import MiniDNNWarning, UnsupportedError
from minidnn.frontends.torch.capture import NotCapturable, capture
from minidnn.frontends.torch.hooks import BACKWARD_HOOKS, has_hooks, with_hooks, without_hooks
from minidnn.frontends.torch.narrow import autocast_to, uncached
from minidnn.frontends.torch.unseen import NOTHING, Changing, changing

log = logging.getLogger(__name__)

_COMPILING = torch.compiler.is_dynamo_compiling

#: What makes a call of a module more than one of ``forward``, as long as none of it is empty.
_ASIDE = (
    *("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"),
    "_compiled_call_impl",
)
_SHARED = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")
#: Hooks that are called where the state dict is the original's.
_STATE_HOOKS = (
    *("_state_dict_hooks", "_state_dict_pre_hooks"),
    *("_load_state_dict_pre_hooks", "_load_state_dict_post_hooks"),
)
_GLOBAL_HOOKS = tuple(GLOBAL_HOOKS.values())
#: Those that run when a module is called.
_FORWARD_HOOKS = _GLOBAL_HOOKS[:2]
_WITH_HOOKS = "with hooks of all modules (register_module_forward_hook)"


def _are_hooked(module: nn.Module) -> Any:
    """Whether a module has hooks that run when it is called."""
    own = module.__dict__
    return own["_forward_hooks"] or own["_forward_pre_hooks"]


class OptimizedModule(StandsForContainer):
    """What :func:`minidnn.optimize` gives.

    It shares the parameters, buffers and children of the module that it was made of: state dict,
    ``to``, ``apply``, hooks of the module's own and attributes are the original's.

    Attributes:
        original: the module that it was made of.
    """

    def __init__(
        self,
        original: nn.Module,
        device: str | None,
        precision: str | None,
        strict: bool,
        sizes: int,
        options: Mapping[str, Any],
        within: bool = False,
        changing: Changing = NOTHING,
        dynamic: Dim | None = None,
    ) -> None:
        """within: whether it stands for a module in one that cannot be captured: what is not taken
        of it is said by the one around it.  changing: what that one changes."""
        super().__init__()
        own = self.__dict__
        own["original"] = original  # not as a child: names in the state dict stay what they are
        for shared in (*_SHARED, *_STATE_HOOKS):
            own[shared] = original.__dict__[shared]
        own["_settings"] = (device, precision, strict, sizes, dict(options))
        own["_any_batch"] = AnyBatch(original, dynamic, own["_settings"], changing)
        own["_programs"] = Programs(type(original).__name__, sizes, warns=not within)
        own["_trained"] = Programs(type(original).__name__, sizes, warns=not within)
        own["_within"] = within
        own["_changing"] = changing
        own["_warned"] = set()  # of what
        own["_narrowing"] = Narrowing(device, precision, options)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As of every module, with its hooks.  Without any, the way is the shortest: the network
        has driven PyTorch's and Python's code out of the caches since the call before.

        Where the call before was one that a GPU does alone, it begins with this one, too, before
        it is known whether that is all there is to do; else its result is thrown away, and the next
        does not begin so."""
        if not _COMPILING():  # else this is part of another network
            programs = self._programs
            if programs.begins and not kwargs and not is_recorded():
                begun = programs.begun(args)
                if begun is not None:
                    result, program = begun
                    if self._is_bare() and self._is_plain(args) and program.watch.is_as_it_was():
                        return result
                    programs.begins = False
            if not self._is_bare():
                result = super().__call__(*args, **kwargs)
                programs.begins = False
                return result
        elif not self._is_bare():
            return super().__call__(*args, **kwargs)
        return self.forward(*args, **kwargs)

    def _is_bare(self) -> bool:
        """Whether a call is one of ``forward`` and no more."""
        own = self.__dict__
        return not (any(map(own.get, _ASIDE)) or any(_GLOBAL_HOOKS) or _are_hooked(own["original"]))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the original gives, without gradients unless it is in training mode.

        UnsupportedError under autocast where the device computes in float32 alone, or when not all
        is taken and ``strict`` was asked for.
        Where operations of PyTorch's are recorded, the original is.
        """
        if _COMPILING():  # of a network that this one is part of
            if is_exporting():
                return self.original(*args, **kwargs)
            return self._uncompiled(*args, **kwargs)
        if type(args) is not tuple:  # but a Proxy for all of them, at the root of a symbolic trace
            return self._traced(args)
        if is_recorded():
            return self._recorded(args, kwargs)
        if any(_FORWARD_HOOKS):
            # They ran for this module, which stands for the original.
            call = partial(with_hooks, self.original, without_hooks(self.original))
            why = "which runs those of the modules within"
            return self._left(_WITH_HOOKS, args, kwargs, why, lambda *a, **k: call(a, k))
        is_hooked = _are_hooked(self.__dict__["original"]) and has_hooks(self.original)
        if not kwargs and not is_hooked and self._is_plain(args):
            result = self._programs.at_once(args)
            if result is not None:
                return result
        leaves, arranged = arrangement(args, kwargs)
        if any(isinstance(leaf, torch.fx.Proxy) for leaf in leaves):  # a symbolic trace
            return self.original.forward(*args, **kwargs)  # of the children, which are found there
        given = (leaf for leaf in leaves if isinstance(leaf, torch.Tensor))
        if (
            not self.training
            and torch.is_grad_enabled()
            and any(tensor.requires_grad for tensor in given)
        ):
            return self._left("with an input that requires a gradient", args, kwargs)
        run = self._train if self.training or self._is_narrow(leaves) else self._run
        if is_hooked:
            return with_hooks(self.original, partial(self._within_hooks, run), args, kwargs)
        return run(leaves, arranged, args, kwargs)

    def _within_hooks(self, run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """What the original gives without its own hooks."""
        return run(*arrangement(args, kwargs), args, kwargs, without_hooks(self.original))

    @torch.compiler.disable(reason="minidnn runs it")
    def _uncompiled(self, *args: Any, **kwargs: Any) -> Any:
        return self.forward(*args, **kwargs)

    def _traced(self, given: Any) -> Any:
        """What the original gives in a symbolic trace, whose graph from now on is that of the
        original, with the original's arguments in the place of ``given``."""
        graph = given.tracer.trace(self.original)
        output = graph.output_node()
        result = torch.fx.map_arg(output.args[0], given.tracer.proxy)
        graph.erase_node(output)  # the trace makes it again, of the result
        return result

    def _recorded(self, args: Any, kwargs: Any) -> Any:
        """The original, whose operations are recorded, or computed in another way."""
        how = how_transformed()
        if how is None:
            return self.original(*args, **kwargs)
        return self._left(how, args, kwargs)

    def _is_plain(self, args: tuple[Any, ...]) -> bool:
        """Whether a call for tensors is inference, without gradients or autocast."""
        if self.__dict__["original"].training or any(
            map(torch.is_autocast_enabled, ("cpu", "cuda"))
        ):
            return False
        return not torch.is_grad_enabled() or not any(
            isinstance(arg, torch.Tensor) and arg.requires_grad for arg in args
        )

    def prepare(self, *args: Any, **kwargs: Any) -> None:
        """Compiles for arguments of these sizes, without running."""
        leaves, arranged = arrangement(args, kwargs)
        kind = foreign(leaves)
        autocast = any(map(torch.is_autocast_enabled, ("cpu", "cuda")))
        if self._within and (kind is not None or self.training or autocast):
            return  # such a call will be PyTorch's, or is compiled when it comes
        if kind is not None:
            raise UnsupportedError(
                f"{type(self.original).__name__} cannot be compiled for a {kind}; calls with one "
                "run in PyTorch: leave example away"
            )
        memory = self._memory(leaves)
        taped = self.training or self._is_narrow(leaves)
        if not taped:
            self._narrowing.refuse(memory, type(self.original).__name__)
        if not taped and self._any_batch.prepare(memory, leaves, arranged, args, kwargs):
            return
        programs = self._trained if taped else self._programs
        key = self._key(arranged, memory) if taped else (arranged, memory)
        with nullcontext() if self.training else torch.no_grad():
            program = programs.program_for(
                leaves, key, lambda: self._compile(memory, leaves, args, kwargs, taped)
            )
            if isinstance(program, Below):
                program.prepare(args, kwargs)
                self._warn_of_nothing(program)

    def explain(self) -> str:
        """What was taken, what was left to PyTorch and why, for every size compiled so far."""
        programs = self.kept
        if not programs:
            return f"{type(self.original).__name__}: not called yet"
        return "\n\n".join([*map(explain_program, programs), *self._any_batch.notes])

    @property
    def programs(self) -> list[SizedProgram]:
        """What was compiled so far, the program used last at the end; of a module that cannot be
        captured, what was compiled of those that it calls."""
        return [
            program
            for each in self.kept
            for program in (each.programs if isinstance(each, Below) else [each])
        ]

    @property
    def kept(self) -> list[Kept]:
        """What there is for each size that it was called with, the one used last at the end: for
        training, then for evaluation."""
        return [*self._trained, *self._programs, *self._any_batch.programs]

    def refresh(self) -> None:
        """Lets the next call of each size capture and compile anew, for changes that are not
        noticed: of ``parameter.data`` or a NumPy view, or of what code reads beyond the attributes
        of modules."""
        for program in self.kept:
            program.watch.doubt()

    def _run(
        self,
        leaves: Any,
        arranged: Any,
        args: Any,
        kwargs: Any,
        original: Callable[..., Any] | None = None,
    ) -> Any:
        """What the program for these arguments gives; where there can be none, ``original`` does,
        which is the whole one if left away."""
        if (kind := foreign(leaves)) is not None:
            why = "which takes objects of any kind"
            return self._left(f"with a {kind}", args, kwargs, why, original)
        memory = self._memory(leaves)
        if self._within and autocast_to(memory) is not None:
            return self._left("under autocast", args, kwargs, original=original)
        self._narrowing.refuse(memory, type(self.original).__name__)
        try:
            with torch.no_grad() if torch.is_grad_enabled() else nullcontext():
                done, result = self._any_batch.run(memory, leaves, arranged, args, kwargs)
                if done:
                    return result
                result = self._programs.run(
                    leaves, (arranged, memory), lambda: self._compile(memory, leaves, args, kwargs)
                )
                return result(*args, **kwargs) if isinstance(result, Below) else result
        except OverlapError as error:
            why = "where writes are made in their order"
            return self._left(str(error), args, kwargs, why, original)

    def _train(
        self,
        leaves: Any,
        arranged: Any,
        args: Any,
        kwargs: Any,
        original: Callable[..., Any] | None = None,
    ) -> Any:
        """What the program for these arguments gives that reads weights where they lie: in training
        mode on PyTorch's tape, and without gradients in evaluation under autocast."""
        memory = self._memory(leaves)
        if (how := self._not_trained(leaves, memory)) is not None:
            return self._left(f"in training mode {how[0]}", args, kwargs, how[1], original)

        def make() -> Kept:
            self._narrowing.check(memory, self.original.parameters())
            return self._compile(memory, leaves, args, kwargs, True)

        try:
            with nullcontext() if self.training else torch.no_grad():
                result = self._trained.run(leaves, self._key(arranged, memory), make)
                return result(*args, **kwargs) if isinstance(result, Below) else result
        except LeftError as error:
            how, why = error.args
            return self._left(f"in training mode {how}", args, kwargs, why, original)

    def _not_trained(self, leaves: Any, memory: str) -> tuple[str, str] | None:
        """How a call in training mode is made for which there is no program, and why there is none;
        None if there is."""
        unknown = "as minidnn does not train so"
        if (kind := foreign(leaves)) is not None:
            return f"with a {kind}", unknown
        if any(map(self.original.__dict__.get, BACKWARD_HOOKS)):
            return "with hooks on the way back", unknown
        return self._narrowing.why_left(memory, leaves)

    def _key(self, arranged: Any, memory: str) -> Any:
        """What a program that is trained is for, beside the types of its arguments."""
        return (arranged, memory, self._narrowing.half(memory), self.training)

    def _is_narrow(self, leaves: Any) -> bool:
        """Whether a call is one under autocast that the device can follow."""
        return self._narrowing.is_followed(self._memory(leaves))

    def _compile(
        self, memory: str, leaves: Any, args: Any, kwargs: Any, trained: bool = False
    ) -> Kept:
        """trained: whether PyTorch's tape is around the program."""
        device, precision, strict, _, options = self._settings
        engine = engine_for(memory, device, precision, options)
        name = type(self.original).__name__
        try:
            with uncached(memory):
                captured = capture(
                    self.original,
                    args,
                    kwargs,
                    runs_hooks=True,
                    changing=self._changing,
                    trained=trained,
                )
            check_weights(captured, type(self.original).__name__)
        except UnsupportedError as error:
            if strict or not (self._within or isinstance(error, NotCapturable)):
                raise
            reason = error.reason if isinstance(error, NotCapturable) else str(error)
            log.info("%s: its own code runs in PyTorch: %s", name, reason)
            found = self._changing.also(changing(self.original, args, kwargs))
            below = partial(self._for_below, found)
            return Below(self.original, describe(leaves), reason, below)
        given = describe(leaves)
        root, within = self.original, self._within
        if trained:
            half = self._narrowing.half(memory)
            made = TrainedProgram(captured, engine, name, given, strict, root, within, half)
            made.prepare(leaves)
            program: SizedProgram = made
        else:
            program = SizedProgram(captured, engine, name, given, strict, root, within)
        self._warn_of_nothing(program)
        return program

    def _for_below(self, changing: Changing, module: nn.Module) -> OptimizedModule:
        device, precision, strict, sizes, options = self._settings
        return OptimizedModule(module, device, precision, strict, sizes, options, True, changing)

    def _warn_of_nothing(self, program: Kept) -> None:
        compiled = program.programs if isinstance(program, Below) else [program]
        if self._within or any(GAINS_LESS in each.left.values() for each in compiled):
            return
        if not any(each.parts for each in compiled):
            warnings.warn(
                f"{program.name}: nothing was taken, all runs in PyTorch:\n{program.why_nothing()}",
                MiniDNNWarning,
                stacklevel=3,
            )

    def _memory(self, leaves: Any) -> str:
        """The device on which this call computes."""
        for leaf in leaves:
            if isinstance(leaf, torch.Tensor):
                return memory_of(leaf)
        first = next(self.original.parameters(), None)
        return "cpu" if first is None else memory_of(first)

    def _left(
        self,
        how: str,
        args: Any,
        kwargs: Any,
        why: str = "where derivatives and transforms are computed",
        original: Callable[..., Any] | None = None,
    ) -> Any:
        """The original's result for a call which is PyTorch's as a whole."""
        name = type(self.original).__name__
        if self._settings[2]:
            raise UnsupportedError(f"strict=True, and {name} was called {how}")
        call = self.original if original is None else original
        result = call(*args, **kwargs)  # whose errors come alone
        if not self._within and how not in self._warned:
            self._warned.add(how)
            warnings.warn(
                f"{name} was called {how}: it runs in PyTorch, {why}",
                MiniDNNWarning,
                stacklevel=4,
            )
        return result

    # What a module is asked for is the original's.

    @property
    def training(self) -> bool:
        return self.original.training

    @training.setter
    def training(self, mode: bool) -> None:
        if "original" in self.__dict__:  # else it is PyTorch that begins with True
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
            if name == "original":  # not yet there, while one is copied
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
        """Pickled without what was compiled."""
        return (OptimizedModule, self._again(self.original), self._own_hooks())

    def _again(self, original: nn.Module) -> tuple[Any, ...]:
        """The arguments that make the same of a module."""
        return (original, *self._settings, False, NOTHING, self._any_batch.dim)

    def _own_hooks(self) -> dict[str, Any]:
        """The hooks that it has besides the original's."""
        return {name: each for name, each in vars(self).items() if "_hooks" in name and each}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def __repr__(self) -> str:
        return f"OptimizedModule({self.original!r})"
