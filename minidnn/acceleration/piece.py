"""One piece of PyTorch code between two graph breaks, which minidnn runs as far as it can.

Dynamo hands it over with the weights among the arguments.  A piece is compiled at its first call
for each size, which is all that has to be done where PyTorch has made a size dynamic, and for each
module that shares it: several of one class have the same pieces.  What cannot be taken runs in
PyTorch, with a warning.
"""

from __future__ import annotations

import itertools
import re
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from operator import is_, itemgetter
from typing import Any

import torch
from torch import fx

from minidnn._torch_internals import is_wrapper, pytree
from minidnn.acceleration.engine import Engine, engine_for, memory_of
from minidnn.acceleration.explain import explain_program
from minidnn.acceleration.named import (
    NamedBatch,
    NamedProgram,
    NamedPrograms,
    another,
    symbols_of,
    with_rows,
)
from minidnn.acceleration.program import GAINS_LESS, MOVES, REHEARSING, OverlapError, SizedProgram
from minidnn.acceleration.programs import Programs, describe
from minidnn.acceleration.sources import is_recorded, numbers_of, weights_of, with_numbers
from minidnn.acceleration.trained import TrainedProgram
from minidnn.backends.backend import check_not_automatic
from minidnn.dynamic.dim import Dim
from minidnn.errors import MiniDNNWarning, UnsupportedError
from minidnn.frontends.torch.captured import Captured, Held
from minidnn.frontends.torch.functional import functional, switches_on
from minidnn.frontends.torch.narrow import HALVES, autocast_to, uncached


@dataclass(frozen=True)
class BridgeSettings:
    """How a network is accelerated.

    Attributes:
        name: the network's, for messages.
        device, precision, strict, sizes, options: as :func:`minidnn.optimize` takes them.
        warned: of what there was a warning.
    """

    name: str
    device: str | None = None
    precision: str | None = None
    strict: bool = False
    sizes: int = 8
    options: Mapping[str, Any] = field(default_factory=dict)
    warned: set[str] = field(default_factory=set, compare=False)

    def __post_init__(self) -> None:
        check_not_automatic(self.precision, "networks that are compiled piece by piece")


class PiecePrograms:
    """The programs of pieces of one code, as many as are kept."""

    def __init__(self, settings: BridgeSettings) -> None:
        name, sizes = settings.name, settings.sizes
        self.inference = Programs(name, sizes, "sizes of arguments and modules")
        self.trained = Programs(name, sizes)
        self.named = NamedPrograms(name, sizes)


class _LittleError(UnsupportedError):
    """There is nothing to compute in a piece, or what is known of it gains less than it costs."""


#: Pieces that hold anything of their own are told apart by these.
_NUMBERS = itertools.count()


def _identity(module: fx.GraphModule, example: Sequence[Any]) -> Any:
    """What pieces have in common that compute the same: Dynamo makes several of one code, one in
    inference mode and one without it."""
    holds = any(node.op in ("get_attr", "call_module") for node in module.graph.nodes)
    tensors = [each for each in example if isinstance(each, torch.Tensor)]
    if holds or any(each.layout is not torch.strided for each in tensors):
        return next(_NUMBERS)
    # What is made of nothing follows the defaults; what is a view depends on strides.
    strides = (str(each.stride()) for each in tensors)
    return (str(module.code), torch.get_default_dtype(), torch.get_default_device(), *strides)


def _is_symbolic(example: Any) -> bool:
    """Whether an argument is given with sizes that may be any."""
    if isinstance(example, torch.Tensor):
        return any(isinstance(size, torch.SymInt) for size in example.shape)
    return True


def _several(places: Sequence[int]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """Gives what lies at these places, which are none or one."""
    return lambda args: tuple(args[place] for place in places)


class Piece:
    """One piece of a model: takes its arguments, gives its results, compiled or not.

    Attributes:
        module: what Dynamo handed over.
        settings: the network's.
        broken: why the code goes on in Python behind it; None where it is the last piece.
        is_among_others: whether the code begins or goes on in Python, so that what is taken has to
            gain more than it costs.
    """

    def __init__(
        self,
        module: Any,
        example: Sequence[Any],
        settings: BridgeSettings,
        kept: PiecePrograms | None = None,
    ) -> None:
        """kept: the programs of other pieces of the same code, beside which its own are kept."""
        self.module = module
        self.broken = _why_broken(module)
        self.is_among_others = self.broken is not None
        self.settings = settings
        self._kept = PiecePrograms(settings) if kept is None else kept
        self._identity = _identity(module, example)
        #: Which arguments have the batch, where it may be any.
        self._batch = symbols_of(module)
        self._weights = weights_of(module, example)
        #: Arguments that stand for numbers which modules hold, and the values that they had.
        self._numbers = numbers_of(module)
        self._values: set[tuple[float, ...]] = set()
        self._engines: dict[str, Engine] = {}
        #: Whether Dynamo calls the piece for one size and one mode alone.
        self._is_static = not self._numbers and not any(map(_is_symbolic, example))
        #: What a static piece ran last, and the weights that are in it, if they are.
        self._last: tuple[weakref.ref[SizedProgram], tuple[Any, ...] | None] | None = None
        places = tuple(self._weights)
        #: Gives the weights among arguments.
        self._weights_of: Any = itemgetter(*places) if len(places) > 1 else _several(places)
        self._switches_on = any(map(switches_on, module.graph.nodes))
        #: Why pieces were not taken, by the types of their arguments.
        self._refused: dict[Any, str] = {}

    @property
    def programs(self) -> list[SizedProgram]:
        """What was compiled, for gradients and without."""
        kept, own = self._kept, self._identity
        every = (*kept.trained.items(), *kept.inference.items())
        sized = [program for key, program in every if key[0][0] == own]
        return [*sized, *(p for key, p in kept.named.items() if key[0][0][0] == own)]

    def forget(self) -> None:
        """Frees all programs, and with them the weights."""
        self._last = None
        for each in (self._kept.inference, self._kept.trained, self._kept.named):
            each.clear()  # Dynamo holds what a piece has, too

    def __call__(self, *args: Any) -> Any:
        try:
            if self._last is not None and not is_recorded():
                found = self._again(args, *self._last)
                if found is not None:
                    return found
            reason = self._not_now(args)
            if reason is None:
                half = autocast_to(_memory(args))
                # Under autocast weights are given to every run, whether there are gradients or not.
                enabled = torch.is_grad_enabled()
                taped = (enabled or self._switches_on) and any(map(_is_trained, args))
                trained = half is not None or taped
                with self._taping(trained, taped):
                    done, results = self._run(args, trained, half, enabled)
                if done:
                    return results
            else:
                self._leave(reason, reason)
        except OverlapError as error:
            self._leave(str(error), str(error))
        if REHEARSING.get():
            args = pytree.tree_map_only(torch.Tensor, torch.clone, args)
        return self.module(*args)

    def _again(
        self,
        args: Sequence[Any],
        reference: weakref.ref[SizedProgram],
        weights: tuple[Any, ...] | None,
    ) -> Any:
        """The results of the program that ran last, if it still is the one for these arguments."""
        program = reference()
        if program is None:
            return None
        if weights is None:
            with self._taping(True, True):
                return program.run(args)
        if not all(map(is_, self._weights_of(args), weights)):
            return None
        # A GPU is at work already while weights are looked at.
        found = self._run_plain(program, args) if program.starts_early else None
        if not program.watch.is_as_it_was():
            return None
        return self._run_plain(program, args) if found is None else found

    def _run_plain(self, program: SizedProgram, args: Sequence[Any]) -> Any:
        """The results of a program for inference; None where tensors do not lie as it takes them,
        or are of another layout."""
        given = [args[place] for place in program.places]
        part = program.direct
        if part is not None and part.takes(given):
            result = part.run_at(given)
            return result if isinstance(result, tuple) else (result,)
        return program.run(args) if all(map(_is_strided, given)) else None

    def _taping(self, trained: bool, taped: bool) -> AbstractContextManager[Any]:
        """Has PyTorch's tape run for a program, where some of the code has it run."""
        if taped and self._switches_on:
            return torch.enable_grad()
        return nullcontext() if trained else torch.no_grad()

    def explain(self) -> str:
        """What was taken of the piece, and what was left and why."""
        left = [f"left to PyTorch: {reason}" for reason in self._refused.values()]
        named = self._kept.named
        left += [f"note: not for any batch: {why}" for why in named.reasons_of(self._identity)]
        return "\n\n".join([*map(explain_program, self.programs), *left])

    def _not_now(self, args: Sequence[Any]) -> str | None:
        """Why a call is PyTorch's, whatever the piece is."""
        if is_recorded():
            return "its operations are recorded, or computed in another way"
        for arg in args:
            if not _is_strided(arg):
                return f"a tensor has layout {arg.layout}"
        device, memory = self.settings.device, _memory(args)
        # Weights that lie elsewhere are a mistake; code between others may compute there.
        may = device is not None and self.is_among_others and not self._weights
        if may and (own := Engine(device or "").memory) != memory:
            return f"its tensors lie on {memory!r}; device={device!r} computes on {own!r}"
        if (half := autocast_to(memory)) is not None:
            reason = self._engine(args).why_not_mixed(half)
            return None if reason is None else f"autocast is on, which PyTorch honours, as {reason}"
        return None

    def _run(
        self, args: Sequence[Any], trained: bool, half: str | None, enabled: bool
    ) -> tuple[bool, Any]:
        """Whether the piece was taken, and what it then gives.

        half: to what autocast casts; enabled: whether gradients are on around the piece.
        """
        values = self._values_of(args)
        inputs = [
            arg
            for place, arg in enumerate(args)
            if (trained or place not in self._weights) and place not in values
        ]
        engine = self._engine(args)
        weights = None if trained else _Weights([args[place] for place in self._weights])
        if self._batch is not None and not trained:
            places = [p for p in range(len(args)) if p not in self._weights and p not in values]
            named = [self._batch[place] for place in places]
            rows = _rows(inputs, named)
            if rows is not None:
                done, result = self._kept.named.try_run(
                    inputs,
                    named,
                    (self._identity, len(args), weights, *values.values()),
                    lambda: self._made_named(args, inputs, values, engine, rows),
                    args,
                )
                if done:
                    return True, result
        key = trained, half, enabled, describe(inputs)
        if key in self._refused:
            return False, None
        try:
            # Pieces of one code are not the same for tensors with gradients and without.
            taped = tuple(map(_is_trained, args)) if trained else (len(args),)
            programs = self._kept.trained if trained else self._kept.inference
            program, result = programs.run_by(
                inputs,
                (self._identity, taped, weights, half, enabled, *values.values()),
                lambda: self._made(args, inputs, values, engine, trained, half, enabled),
                args,
            )
            if self._is_static:
                own = None if trained else self._weights_of(args)
                part = program.direct
                # Dynamo has a piece of its own for tensors that lie otherwise in memory.
                if part is None or part.takes([args[place] for place in program.places]):
                    self._last = weakref.ref(program), own
            return True, result
        except UnsupportedError as error:
            if str(error).startswith("strict=True"):
                raise
            self._leave(key, str(error), not isinstance(error, _LittleError))
            return False, None

    def _values_of(self, args: Sequence[Any]) -> dict[int, float]:
        """The numbers that modules hold, which are part of a program; ones that change again and
        again are tensors, as PyTorch gives them, lest each value be compiled."""
        found = {place: args[place].item() for place in self._numbers}
        values = tuple(found.values())
        if values not in self._values:
            if len(self._values) == self.settings.sizes:
                self._numbers = []  # another thread may be walking through what it was
                return {}
            self._values.add(values)
        return found

    def _engine(self, args: Sequence[Any]) -> Engine:
        """The one for these arguments: errors for what is not legal are the caller's to see."""
        memory = _memory(args)
        if memory not in self._engines:
            engine = engine_for(
                memory, self.settings.device, self.settings.precision, self.settings.options
            )
            engine.check()
            self._engines[memory] = engine
        return self._engines[memory]

    def _made(
        self,
        args: Sequence[Any],
        inputs: Sequence[Any],
        values: Mapping[int, float],
        engine: Engine,
        trained: bool,
        half: str | None,
        enabled: bool,
    ) -> SizedProgram:
        for arg in filter(is_wrapper, args):
            raise UnsupportedError(
                f"a {type(arg).__name__} is given, which has no memory of its own"
            )
        captured = self._captured(args, args, values, engine, trained, enabled)
        own = [arg for place, arg in enumerate(args) if place not in self._weights]
        said = self.settings.name, describe(own), self.settings.strict
        if trained:
            half = half or (self.settings.precision if self.settings.precision in HALVES else None)
            program: SizedProgram = TrainedProgram(
                captured, engine, *said, half=half, weights=self._weights
            )
        else:
            program = SizedProgram(captured, engine, *said, among=self.is_among_others)
        if not program.parts:
            why = f"nothing of it is taken:\n{program.why_nothing()}"
            reasons = set(program.left.values())
            is_little = not reasons or GAINS_LESS in reasons or reasons == {MOVES}
            raise _LittleError(why) if is_little else UnsupportedError(why)
        if isinstance(program, TrainedProgram):
            program.prepare(args)
        return program

    def _captured(
        self,
        args: Sequence[Any],
        given: Sequence[Any],
        values: Mapping[int, float],
        engine: Engine,
        trained: bool,
        enabled: bool,
    ) -> Captured:
        """The piece on other arguments, with the weights that are among these."""
        module = with_numbers(self.module, values) if values else self.module
        weights = {place: args[place] for place in self._weights}
        held = {place: Held(weights, place, name) for place, name in self._weights.items()}
        with uncached(engine.memory):
            return functional(module, given, {} if trained else held, trained, enabled)

    def _made_named(
        self,
        args: Sequence[Any],
        inputs: Sequence[Any],
        values: Mapping[int, float],
        engine: Engine,
        rows: int,
    ) -> NamedProgram:
        """A program for any batch, of which PyTorch has proved that the piece does the same."""
        assert self._batch is not None
        if any(map(is_wrapper, args)):
            raise UnsupportedError("an argument has no memory of its own")
        others = with_rows(args, self._batch, another(rows, _ANY))
        captured = self._captured(args, args, values, engine, False, False)
        other = self._captured(args, others, values, engine, False, False)
        batches = NamedBatch(_ANY, self._batch, other, self.settings.sizes)
        given = f"any batch of {describe(inputs)}"
        return NamedProgram(captured, batches, engine, self.settings.name, given)

    def _leave(self, key: Any, reason: str, warns: bool = True) -> None:
        if self.settings.strict:
            raise UnsupportedError(
                f"strict=True, and a piece of {self.settings.name} is left to PyTorch: {reason}"
            )
        self._refused.setdefault(key, reason)
        said = _ANY_NUMBER.sub("", reason)
        if warns and said not in self.settings.warned:
            self.settings.warned.add(said)
            warnings.warn(
                f"{self.settings.name}: a piece runs in PyTorch: {reason}",
                MiniDNNWarning,
                stacklevel=4,
            )


#: What may differ between reasons that are the same to whoever reads them.
_ANY_NUMBER = re.compile(r"\d+")

#: NamedBatch for which PyTorch hands over one piece: for one row there is another.
_ANY = Dim("batch", 2, 1 << 20)


def _rows(inputs: Sequence[Any], named: Sequence[bool]) -> int | None:
    """How many rows arguments have; None if there is no program for so many."""
    rows = {
        each.shape[0] if isinstance(each, torch.Tensor) else each
        for each, has in zip(inputs, named, strict=True)
        if has
    }
    return rows.pop() if len(rows) == 1 and _ANY.takes(min(rows)) else None


class _Weights:
    """The weights that a piece is called with, which are equal if they are the same tensors."""

    def __init__(self, tensors: Sequence[Any]) -> None:
        self._tensors = tensors

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Weights) and all(map(is_, self._tensors, other._tensors))

    def __hash__(self) -> int:
        return hash(tuple(map(id, self._tensors)))


def _is_strided(arg: Any) -> bool:
    """Whether an argument is no tensor of a layout of its own (sparse, of oneDNN, nested)."""
    return not isinstance(arg, torch.Tensor) or arg.layout is torch.strided


def _is_trained(arg: Any) -> bool:
    return isinstance(arg, torch.Tensor) and arg.requires_grad


def _memory(args: Sequence[Any]) -> str:
    """Where a piece computes: numbers on the CPU are given to code on other devices, too."""
    found = (memory_of(each) for each in args if isinstance(each, torch.Tensor))
    return next((memory for memory in found if memory != "cpu"), "cpu")


def _why_broken(module: Any) -> str | None:
    """Why Dynamo ends a piece before the code ends, and where."""
    said = getattr(module, "compile_subgraph_reason", None)
    if said is None or not getattr(said, "graph_break", False):
        return None
    where = [f"{frame.filename}:{frame.lineno}" for frame in said.user_stack[-1:]]
    return " at ".join([str(said.reason).partition("\n")[0], *where])
