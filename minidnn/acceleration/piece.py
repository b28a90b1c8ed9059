"""One piece of a network: the FX graph between two graph breaks, compiled as far as possible.

Dynamo hands a piece over with the weights among its arguments.  A piece is compiled at its first
call for each size of the arguments, also where Dynamo has made a size dynamic, and for each module
that shares it: modules of one class have the same pieces.  A piece that cannot be compiled runs in
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
from minidnn.acceleration.dynamic_batch import (
    DynamicBatch,
    DynamicBatchProgram,
    DynamicBatchPrograms,
    another,
    symbols_of,
    with_rows,
)
from minidnn.acceleration.engine import Engine, engine_for, memory_of
from minidnn.acceleration.explain import explain_program
from minidnn.acceleration.program import GAINS_LESS, MOVES, REHEARSING, OverlapError, SizedProgram
from minidnn.acceleration.programs import Programs, describe
from minidnn.acceleration.sources import is_recorded, numbers_of, weights_of, with_numbers
from minidnn.acceleration.trained import TrainedProgram
from minidnn.backends.backend import check_not_automatic
from minidnn.dynamic.dim import Dim
from minidnn.errors import MiniDNNWarning, UnsupportedError
from minidnn.frontends.torch.captured import Captured, Held
from minidnn.frontends.torch.functional import functional, switches_on
from minidnn.frontends.torch.higher_order import nodes_of
from minidnn.frontends.torch.narrow import HALF_DTYPES, autocast_to, uncached


@dataclass(frozen=True)
class BridgeSettings:
    """How a network is accelerated.

    Attributes:
        name: the network's, for messages.
        device, precision, strict, sizes, options: as :func:`minidnn.optimize` takes them.
        warned: the reasons of which there was a warning already.
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
    """The cached programs of all pieces with the same code: for inference, for training, and for
    any batch."""

    def __init__(self, settings: BridgeSettings) -> None:
        name, sizes = settings.name, settings.sizes
        self.inference = Programs(name, sizes, "sizes of arguments and modules")
        self.trained = Programs(name, sizes)
        self.dynamic_batch = DynamicBatchPrograms(name, sizes)


class _SmallGainError(UnsupportedError):
    """A piece computes nothing, or its part would gain less than it costs: no warning is due."""


#: Numbers that identify pieces with tensors or modules of their own.
_NUMBERS = itertools.count()


def _identity(module: fx.GraphModule, example: Sequence[Any]) -> Any:
    """A key that is equal for pieces that compute the same: Dynamo makes several of the same code,
    as one in inference mode and one outside of it."""
    holds_own = any(node.op in ("get_attr", "call_module") for node in module.graph.nodes)
    tensors = [each for each in example if isinstance(each, torch.Tensor)]
    if holds_own or any(each.layout is not torch.strided for each in tensors):
        return next(_NUMBERS)
    # Factory functions follow the defaults; whether a result is a view depends on strides.
    strides = (str(each.stride()) for each in tensors)
    return (str(module.code), torch.get_default_dtype(), torch.get_default_device(), *strides)


def _is_symbolic(example: Any) -> bool:
    """Whether an example argument has symbolic sizes, or is a number."""
    if isinstance(example, torch.Tensor):
        return any(isinstance(size, torch.SymInt) for size in example.shape)
    return True


def _several(places: Sequence[int]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """Like ``operator.itemgetter``, for no place or one: gives a tuple of the items."""
    return lambda args: tuple(args[place] for place in places)


class Piece:
    """One piece of a model: a callable that gives the results, by compiled programs or by PyTorch.

    Attributes:
        module: the FX graph module that Dynamo handed over.
        settings: the network's.
        broken: why there is a graph break after it; None if it is the last piece.
        is_among_others: whether Python code runs before or after the piece, so that a part has to
            gain more than entering and leaving it costs.
    """

    def __init__(
        self,
        module: Any,
        example: Sequence[Any],
        settings: BridgeSettings,
        kept: PiecePrograms | None = None,
    ) -> None:
        """kept: the programs of all pieces with the same code; None makes new ones."""
        self.module = module
        self.broken = _why_broken(module)
        self.is_among_others = self.broken is not None
        self.settings = settings
        self._kept = PiecePrograms(settings) if kept is None else kept
        self._identity = _identity(module, example)
        #: Which arguments have the batch, where Dynamo has made it dynamic.
        self._batch = symbols_of(module)
        self._weights = weights_of(module, example)
        #: Places of arguments for numbers that modules hold, and the values that they had.
        self._numbers = numbers_of(module)
        self._values: set[tuple[float, ...]] = set()
        self._engines: dict[str, Engine] = {}
        #: Whether Dynamo's guards admit only one size and one mode to the piece.
        self._is_static = not self._numbers and not any(map(_is_symbolic, example))
        #: The last program of a static piece, and the weights that are compiled in, if any.
        self._last: tuple[weakref.ref[SizedProgram], tuple[Any, ...] | None] | None = None
        places = tuple(self._weights)
        #: Returns the weights among the arguments.
        self._weights_of: Any = itemgetter(*places) if len(places) > 1 else _several(places)
        self._switches_on = any(map(switches_on, nodes_of(module)))
        #: Why the piece runs in PyTorch, by the key of the call, or by the reason itself.
        self._refused: dict[Any, str] = {}

    @property
    def programs(self) -> list[SizedProgram]:
        """The programs of this piece, for inference and for training."""
        kept, identity = self._kept, self._identity
        every = (*kept.trained.items(), *kept.inference.items())
        sized = [program for key, program in every if key[0][0] == identity]
        return [*sized, *(p for key, p in kept.dynamic_batch.items() if key[0][0][0] == identity)]

    def forget(self) -> None:
        """Frees all programs, and with them the weights."""
        self._last = None
        for each in (self._kept.inference, self._kept.trained, self._kept.dynamic_batch):
            each.clear()  # Dynamo holds references to them, too

    def __call__(self, *args: Any) -> Any:
        try:
            if self._last is not None and not is_recorded():
                found = self._again(args, *self._last)
                if found is not None:
                    return found
            reason = self._not_now(args)
            if reason is None:
                half = autocast_to(_memory(args))
                # Under autocast weights are arguments of every run, with gradients or without.
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
        """The results of the last program; None if it no longer is the one for these arguments."""
        program = reference()
        if program is None:
            return None
        if weights is None:
            with self._taping(True, True):
                return program.run(args)
        if not all(map(is_, self._weights_of(args), weights)):
            return None
        # The GPU computes already while weights are checked.
        results = self._run_plain(program, args) if program.starts_early else None
        if not program.watch.is_as_it_was():
            return None
        return self._run_plain(program, args) if results is None else results

    def _run_plain(self, program: SizedProgram, args: Sequence[Any]) -> Any:
        """The results of a program for inference; None where a tensor is not strided."""
        given = [args[place] for place in program.places]
        part = program.direct
        if part is not None and part.takes(given):
            result = part.run_at(given)
            return result if isinstance(result, tuple) else (result,)
        return program.run(args) if all(map(_is_strided, given)) else None

    def _taping(self, trained: bool, taped: bool) -> AbstractContextManager[Any]:
        """Sets PyTorch's gradient mode for a program: on, where the code itself switches it on."""
        if taped and self._switches_on:
            return torch.enable_grad()
        return nullcontext() if trained else torch.no_grad()

    def explain(self) -> str:
        """Describes which operations of the piece were taken, which were left, and why."""
        left = [f"left to PyTorch: {reason}" for reason in self._refused.values()]
        programs = self._kept.dynamic_batch
        left += [f"note: not for any batch: {why}" for why in programs.reasons_of(self._identity)]
        return "\n\n".join([*map(explain_program, self.programs), *left])

    def _not_now(self, args: Sequence[Any]) -> str | None:
        """Why PyTorch must run this call, whatever the piece computes; None if it need not."""
        if is_recorded():
            return "its operations are recorded, or computed in another way"
        for arg in args:
            if not _is_strided(arg):
                return f"a tensor has layout {arg.layout}"
        device, memory = self.settings.device, _memory(args)
        # Weights on another device are a mistake; a piece without any may compute elsewhere.
        may_compute_elsewhere = device is not None and self.is_among_others and not self._weights
        if may_compute_elsewhere and (own_memory := Engine(device or "").memory) != memory:
            return f"its tensors are on {memory!r}; device={device!r} computes on {own_memory!r}"
        if (half := autocast_to(memory)) is not None:
            reason = self._engine(args).why_not_mixed(half)
            return None if reason is None else f"autocast is on, which PyTorch honours, as {reason}"
        return None

    def _run(
        self, args: Sequence[Any], trained: bool, half: str | None, enabled: bool
    ) -> tuple[bool, Any]:
        """Whether a compiled program ran, and its results.

        half: the dtype that autocast casts to; enabled: whether gradients are on around the piece.
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
            has_batch = [self._batch[place] for place in places]
            rows = _rows(inputs, has_batch)
            if rows is not None:
                was_taken, result = self._kept.dynamic_batch.try_run(
                    inputs,
                    has_batch,
                    (self._identity, len(args), weights, *values.values()),
                    lambda: self._dynamic_batch_program(args, inputs, values, engine, rows),
                    args,
                )
                if was_taken:
                    return True, result
        key = trained, half, enabled, describe(inputs)
        if key in self._refused:
            return False, None
        try:
            # Programs of one code differ for tensors with gradients and without.
            taped = tuple(map(_is_trained, args)) if trained else (len(args),)
            programs = self._kept.trained if trained else self._kept.inference
            program, result = programs.run_by(
                inputs,
                (self._identity, taped, weights, half, enabled, *values.values()),
                lambda: self._made(args, inputs, values, engine, trained, half, enabled),
                args,
            )
            if self._is_static:
                compiled_weights = None if trained else self._weights_of(args)
                part = program.direct
                # Dynamo makes another piece for tensors of other strides.
                if part is None or part.takes([args[place] for place in program.places]):
                    self._last = weakref.ref(program), compiled_weights
            return True, result
        except UnsupportedError as error:
            if str(error).startswith("strict=True"):
                raise
            self._leave(key, str(error), not isinstance(error, _SmallGainError))
            return False, None

    def _values_of(self, args: Sequence[Any]) -> dict[int, float]:
        """The numbers that modules hold, by place, which are constants of a program.  After as many
        values as sizes are kept they stay tensor arguments, lest each value be compiled."""
        numbers = {place: args[place].item() for place in self._numbers}
        values = tuple(numbers.values())
        if values not in self._values:
            if len(self._values) == self.settings.sizes:
                self._numbers = []  # not cleared: another thread may be iterating over it
                return {}
            self._values.add(values)
        return numbers

    def _engine(self, args: Sequence[Any]) -> Engine:
        """The engine for these arguments; its errors for illegal options reach the caller."""
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
        """Makes a program for these arguments; UnsupportedError if it would have no part."""
        for arg in filter(is_wrapper, args):
            raise UnsupportedError(
                f"a {type(arg).__name__} is given, which has no memory of its own"
            )
        captured = self._captured(args, args, values, engine, trained, enabled)
        arguments = [arg for place, arg in enumerate(args) if place not in self._weights]
        description = self.settings.name, describe(arguments), self.settings.strict
        if trained:
            half = half or (
                self.settings.precision if self.settings.precision in HALF_DTYPES else None
            )
            program: SizedProgram = TrainedProgram(
                captured, engine, *description, half=half, weights=self._weights
            )
        else:
            program = SizedProgram(captured, engine, *description, among=self.is_among_others)
        if not program.parts:
            why = f"nothing of it is taken:\n{program.why_nothing()}"
            reasons = set(program.left.values())
            is_little = not reasons or GAINS_LESS in reasons or reasons == {MOVES}
            raise _SmallGainError(why) if is_little else UnsupportedError(why)
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
        """Captures the piece for the arguments ``given``, with the weights among ``args``."""
        module = with_numbers(self.module, values) if values else self.module
        weights = {place: args[place] for place in self._weights}
        held = {place: Held(weights, place, name) for place, name in self._weights.items()}
        with uncached(engine.memory):
            return functional(module, given, {} if trained else held, trained, enabled)

    def _dynamic_batch_program(
        self,
        args: Sequence[Any],
        inputs: Sequence[Any],
        values: Mapping[int, float],
        engine: Engine,
        rows: int,
    ) -> DynamicBatchProgram:
        """Makes a program for any batch in the range for which Dynamo's guards hold."""
        assert self._batch is not None
        if any(map(is_wrapper, args)):
            raise UnsupportedError("an argument has no memory of its own")
        others = with_rows(args, self._batch, another(rows, _ANY))
        captured = self._captured(args, args, values, engine, False, False)
        other = self._captured(args, others, values, engine, False, False)
        batches = DynamicBatch(_ANY, self._batch, other, self.settings.sizes)
        given = f"any batch of {describe(inputs)}"
        return DynamicBatchProgram(captured, batches, engine, self.settings.name, given)

    def _leave(self, key: Any, reason: str, warns: bool = True) -> None:
        """Notes that the piece runs in PyTorch, warns once, and raises if strict."""
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


#: Numbers, in which reasons that are the same to a reader may differ.
_ANY_NUMBER = re.compile(r"\d+")

#: The batches for which Dynamo makes one piece: for a batch of 1 it makes another.
_ANY = Dim("batch", 2, 1 << 20)


def _rows(inputs: Sequence[Any], has_batch: Sequence[bool]) -> int | None:
    """The number of rows of the arguments; None if they differ, or it is out of range."""
    rows = {
        each.shape[0] if isinstance(each, torch.Tensor) else each
        for each, has in zip(inputs, has_batch, strict=True)
        if has
    }
    return rows.pop() if len(rows) == 1 and _ANY.takes(min(rows)) else None


class _Weights:
    """The weights of a call, as part of a key: equal if they are the same tensor objects."""

    def __init__(self, tensors: Sequence[Any]) -> None:
        self._tensors = tensors

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Weights) and all(map(is_, self._tensors, other._tensors))

    def __hash__(self) -> int:
        return hash(tuple(map(id, self._tensors)))


def _is_strided(arg: Any) -> bool:
    """Whether an argument is not a tensor of another layout (sparse, oneDNN's, nested)."""
    return not isinstance(arg, torch.Tensor) or arg.layout is torch.strided


def _is_trained(arg: Any) -> bool:
    return isinstance(arg, torch.Tensor) and arg.requires_grad


def _memory(args: Sequence[Any]) -> str:
    """The device that a piece computes on: another one than the CPU, if any tensor is there, since
    CPU tensors that hold a number are also given to code on other devices."""
    devices = (memory_of(each) for each in args if isinstance(each, torch.Tensor))
    return next((memory for memory in devices if memory != "cpu"), "cpu")


def _why_broken(module: Any) -> str | None:
    """The reason and the source line of the graph break that ends a piece; None if none does."""
    graph_break = getattr(module, "compile_subgraph_reason", None)
    if graph_break is None or not getattr(graph_break, "graph_break", False):
        return None
    where = [f"{frame.filename}:{frame.lineno}" for frame in graph_break.user_stack[-1:]]
    return " at ".join([str(graph_break.reason).partition("\n")[0], *where])
