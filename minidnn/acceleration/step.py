"""A part of a network that is trained: PyTorch's tape sees one operation, with its gradient.

What requires a gradient decides what is kept and what is computed backwards, so there is a pair of
programs for each such choice: the graph with what is kept as further outputs, and its gradient.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress, count
from operator import attrgetter
from typing import Any, cast

import torch
from torch import nn

from minidnn._forks import ForkLock
from minidnn._torch_internals import copy_each, is_batched, keeps_graph
from minidnn.acceleration.engine import Engine
from minidnn.acceleration.kept import giving_last, lying_last, only_cast, taking_last
from minidnn.acceleration.kept_block import KeptBlock
from minidnn.acceleration.part import CompiledPart, ExpectedTensors
from minidnn.acceleration.program import REHEARSING
from minidnn.acceleration.twice import Autocast, autocast_of, gradients_again
from minidnn.errors import UnsupportedError
from minidnn.frontends.torch.convert import Part
from minidnn.gradients.halves import BackwardHalf, Halves
from minidnn.graph.attention_patterns import compose_attention
from minidnn.graph.ir import Graph, Value, drop_unread
from minidnn.passes.fold import fold_batch_norm
from minidnn.passes.infrastructure import Context
from minidnn.passes.linear import rows_turned
from minidnn.passes.mix_precision import mixed
from minidnn.passes.simplify import share_joins

#: For so many choices of what requires a gradient programs are kept.
_CHOICES = 4

_ADDRESS = torch.Tensor.data_ptr
_IS_TRAINED = attrgetter("requires_grad")
_BATCHED = (
    "is_grads_batched=True through {name}, whose gradient minidnn computes for one tensor at a "
    "time; valid is the module that was optimized: fast.original"
)
_TWICE = (
    "{name}: a gradient of a gradient (create_graph=True) is asked for: PyTorch computes the part "
    "again, and its own gradient"
)
_RANDOM = (
    "create_graph=True (a gradient of a gradient) through {name}, which draws random numbers that "
    "PyTorch would draw otherwise; valid is the module that was optimized: fast.original"
)
_GONE = (
    "create_graph=True (a gradient of a gradient) through {name}, which writes to what it was "
    "given; valid is the module that was optimized: fast.original"
)


@dataclass(frozen=True)
class Twice:
    """How PyTorch computes a part again, for gradients of gradients.

    Attributes:
        compute: gives a part's outputs of its inputs.
        counting: the inputs that its outputs depend on, by place.
        say: warns, or raises where nothing may be left to PyTorch.
    """

    compute: Callable[..., Any]
    counting: tuple[int, ...]
    say: Callable[[str], None]


@dataclass(frozen=True)
class Narrow:
    """How a part computes in half precision.

    Attributes:
        dtype: the half.
        inputs: which of its inputs are given in it, by place.
        outputs: which of its outputs are.
    """

    dtype: str
    inputs: frozenset[int] = frozenset()
    outputs: frozenset[int] = frozenset()


class TrainedPart(nn.Module):
    """A part as a module with a gradient.

    Attributes:
        part: its graph, and the captured nodes that its inputs and outputs are.
        pairs: the compiled programs, by which of the inputs require gradients.
        twice: has PyTorch compute it again, for gradients of gradients.
    """

    def __init__(
        self, part: Part, engine: Engine, narrow: Narrow | None = None, twice: Twice | None = None
    ) -> None:
        """narrow: how it computes in half precision, if it does."""
        super().__init__()
        self.twice = twice
        self.part = part
        self.pairs: OrderedDict[tuple[int, ...], Pair] = OrderedDict()
        self._engine = engine
        self._narrow = narrow
        self._device = torch.device(engine.memory)
        self._lock = ForkLock()

    def forward(self, *tensors: torch.Tensor) -> Any:
        pair = self._pair(_trained(tensors))
        given = (*tensors, *self._random())
        # Of what is not trained nothing need be on the tape.
        results = _Through.apply(pair, given, *(tensors[place] for place in pair.trained))
        return results[0] if len(results) == 1 else results

    def prepare(self, trained: Sequence[bool]) -> None:
        """Compiles for inputs of which these require gradients."""
        self._pair(tuple(place for place, is_trained in enumerate(trained) if is_trained))

    def _random(self) -> Sequence[torch.Tensor]:
        """The numbers that all random numbers of a run follow from: PyTorch's generator of the
        device gives them."""
        if not self.part.random:
            return ()
        size = (self.part.random,)
        drawn = torch.empty(size, dtype=torch.int64, device=self._device).random_()
        return drawn.unbind()

    def _pair(self, trained: tuple[int, ...]) -> Pair:
        with self._lock:
            pair = self.pairs.get(trained)
            if pair is None:
                pair = self.pairs[trained] = Pair(
                    self.part, self._engine, trained, self._narrow, self.twice
                )
                if len(self.pairs) > _CHOICES:
                    self.pairs.popitem(last=False)
            self.pairs.move_to_end(trained)
        return pair


class Pair:
    """The programs of a part, for one choice of what requires a gradient.

    Attributes:
        trained: the inputs that require gradients, by place.
        outputs: how many there are of the graph: results, and what the part writes.
        results: how many results.
        halves: their graphs.
        forward: what is computed forwards.
        backwards: what is computed backwards, by the results that there are gradients by: those
            that the loss does not depend on have none, and nor have inputs that these alone are
            computed of.
    """

    def __init__(
        self,
        part: Part,
        engine: Engine,
        trained: Sequence[int],
        narrow: Narrow | None = None,
        twice: Twice | None = None,
    ) -> None:
        self.twice = twice
        self.name = part.graph.name
        self.trained = tuple(trained)
        self.outputs, self.results = len(part.graph.outputs), len(part.outputs)
        places = {node: place for place, node in enumerate(part.inputs)}
        self._written = [places[node] for node in part.written]
        mixed = narrow is not None
        # Joins of joins before there are gradients by them: these are added up join by join, too.
        graph = share_joins(part.graph, Context())
        if engine.memory != "cpu":
            graph = rows_turned(graph, Context())
        composed, _ = compose_attention(graph)
        graph = drop_unread(composed)
        first = len(part.outputs) if part.differentiable is None else part.differentiable
        self.halves = Halves(graph, trained, first, compute_again=mixed)
        self._engine, self._narrow = engine, narrow
        self._overwritten = part.overwritten.intersection(self.halves.backward.given)
        self.random, self._given = part.random, len(part.inputs)
        read = self.halves.backward.given
        #: Inputs that are kept for gradients of gradients alone.
        self.more = [
            place
            for place in range(self._given)
            if place not in read and place not in part.overwritten
        ]
        self._device = torch.device(engine.memory)
        #: Of each result of the program forwards its dtype, and which are kept channels last.
        self._dtypes: list[str] = []
        self._last: set[int] = set()
        self.forward = self._compiled(self._forward())
        self.forward.use_external_buffers()
        #: By streams, memory of calls before for what the part writes, until it is copied there.
        self._copied: defaultdict[int, list[list[torch.Tensor]]] = defaultdict(list)
        self.backwards: dict[tuple[int, ...], tuple[BackwardHalf, CompiledPart]] = {}
        self._loose: dict[tuple[int, ...], ExpectedTensors] = {}
        #: Which results of the program forwards are kept as tensors, by place.
        self.kept = self.halves.backward.kept
        #: Those of them that do not lie in a block, if there is one.
        self.kept_beside = [place for place in self.kept if place < self.outputs]
        self._keeps_copied = any(place >= self.results for place in self.kept_beside)
        #: Results by which there are no gradients.
        self.others = [p for p in range(self.results) if p not in self.halves.floating]
        self._lock = ForkLock()
        #: Whether the block is donated to the program of all gradients: what is kept is gone then.
        self._donates_block = False
        self._block = self._laid_block()

    def _laid_block(self) -> KeptBlock:
        """How what is kept lies: as the program backwards wants it to which it is donated."""
        kept = self.forward.part.graph.outputs[self.outputs :]
        if len(self.halves.floating) != 1 or not self.halves.backward.differentiated:
            return KeptBlock(kept, self._device)
        found, program = self.halves.backward, self._add_backward(self.halves.floating)
        inputs = {
            place - self.outputs: number
            for number, place in enumerate(found.kept, len(found.given))
            if place >= self.outputs
        }
        laid = program.use_external_buffers(list(inputs.values()))
        if laid is None:
            return KeptBlock(kept, self._device)
        self._donates_block = True
        places = dict(zip(inputs, laid.offsets, strict=True))
        return KeptBlock(kept, self._device, places, laid.bytes)

    @property
    def kept_bytes(self) -> int:
        """Bytes of what is kept beside inputs and outputs."""
        kept = self.forward.part.graph.outputs[self.outputs :]
        return sum(value.type.bytes for value in kept)

    def run(
        self, tensors: Sequence[torch.Tensor]
    ) -> tuple[list[torch.Tensor], torch.Tensor | None]:
        """The results of the program forwards, and the block in which those of them lie that are
        only kept; without one, all are tensors.  What the part writes to is written."""
        forward, plain, block = self.forward, tensors, None
        if not (lying := forward.is_addressed and forward.takes(plain)):
            plain = [*map(_plain, tensors)]
            lying = forward.is_addressed and forward.takes(plain)
        if not lying:
            results = list(_all(forward(*plain)))
            self._write(tensors, results[self.results : self.outputs])
            return results, None
        stream, block = forward.stream, self._block.empty()
        free = self._copied[stream]
        copied = free.pop() if free else forward.empty(self.results, self.outputs)
        results = [*forward.empty(0, self.results), *copied]
        addresses = [*map(_ADDRESS, results), *self._block.addresses(block)]
        forward.compute(list(map(_ADDRESS, plain)), addresses)
        self._write(tensors, copied)
        if not self._keeps_copied:
            free.append(copied)
        return results, block

    def _write(self, tensors: Sequence[torch.Tensor], results: list[torch.Tensor]) -> None:
        """Writes results to what the part writes to."""
        if results and not REHEARSING.get():
            copy_each([tensors[place] for place in self._written], results)

    def run_back(
        self,
        given: Mapping[int, torch.Tensor],
        kept: Mapping[int, torch.Tensor],
        block: torch.Tensor | None,
        gradients: Sequence[torch.Tensor | None],
    ) -> dict[int, torch.Tensor]:
        """The gradients by inputs, by place.

        given, kept, block: inputs, and what :meth:`run` gave, by place.
        gradients: by each of the results.
        """
        present = tuple(place for place in self.halves.floating if gradients[place] is not None)
        if not present:
            return {}
        backward, program = self.backward(present)
        first = [given[place] for place in backward.given]
        last = [_plain(cast(torch.Tensor, gradients[place])) for place in present]
        if block is not None:
            own = [kept[place] for place in backward.kept if place in kept]
            if program.is_addressed and self._loose[present]([*first, *own, *last]):
                at = self._block.addresses(block)
                read = [
                    _ADDRESS(kept[place]) if place in kept else at[place - self.outputs]
                    for place in backward.kept
                ]
                addresses = [*map(_ADDRESS, first), *read, *map(_ADDRESS, last)]
                results = program.empty_gradients()
                donated = self._donated(block, present)
                program.compute(addresses, list(map(_ADDRESS, results)), donated)
                return dict(zip(backward.differentiated, results, strict=True))
            kept = {**kept, **dict(enumerate(self._block.tensors(block), self.outputs))}
        tensors = [*first, *(kept[place] for place in backward.kept), *last]
        results = list(_all(program(*map(_plain, tensors))))
        return dict(zip(backward.differentiated, results, strict=True))

    def _donated(self, block: torch.Tensor, present: tuple[int, ...]) -> int:
        """The address of the block, if it is donated to the gradients by these results; 0 if not,
        as where PyTorch keeps it for another backward pass."""
        donates = self._donates_block and present == self.halves.floating
        return _ADDRESS(block) if donates and not keeps_graph() else 0

    def run_twice(
        self,
        given: Mapping[int, torch.Tensor],
        autocast: Autocast,
        gradients: Sequence[torch.Tensor | None],
    ) -> Sequence[torch.Tensor | None]:
        """The gradients by the inputs that are trained, which PyTorch computes on its tape."""
        twice = self.twice
        if self.random or twice is None:
            raise UnsupportedError(_RANDOM.format(name=self.name))
        missing = [place for place in twice.counting if place not in given]
        if missing:
            raise UnsupportedError(_GONE.format(name=self.name))
        twice.say(_TWICE.format(name=self.name))
        values = enumerate(self.halves.graph.inputs[: self._given])
        tensors = [given[p] if p in given else self._zeros(value) for p, value in values]
        return gradients_again(twice.compute, autocast, tensors, self.trained, gradients)

    def _zeros(self, value: Value) -> torch.Tensor:
        """In the place of an input on whose numbers nothing depends."""
        return torch.zeros(value.shape, dtype=getattr(torch, value.dtype), device=self._device)

    def to_keep(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """What is kept of inputs: copies of those that the network is about to write to."""
        given = list(map(tensors.__getitem__, self.halves.backward.given))
        for place in self._overwritten:
            given[self.halves.backward.given.index(place)] = tensors[place].clone()
        return given

    def backward(self, present: tuple[int, ...]) -> tuple[BackwardHalf, CompiledPart]:
        """What is computed backwards where there are gradients by these results."""
        with self._lock:
            if present not in self.backwards:
                self._add_backward(present).use_external_buffers()
            return self.backwards[present]

    def _add_backward(self, present: tuple[int, ...]) -> CompiledPart:
        every = present == self.halves.floating
        found = self.halves.backward if every else self.halves.backward_of(present)
        program = self._compiled(self._backward(found, present))
        self._loose[present] = self._lying_beside_block(found, program)
        self.backwards[present] = found, program
        return program

    def _lying_beside_block(self, found: BackwardHalf, program: CompiledPart) -> ExpectedTensors:
        """What tells of what a program is given beside the block whether it takes it at its
        address."""
        begin = len(found.given)
        within = {begin + i for i, place in enumerate(found.kept) if place >= self.outputs}
        values = enumerate(program.part.graph.inputs)
        return program.lying(value for place, value in values if place not in within)

    def _forward(self) -> Graph:
        """What runs forwards, in the precision of the part; values are kept as they are there."""
        graph, narrow = self.halves.forward, self._narrow
        if narrow is None:
            return graph
        graph = fold_batch_norm(graph, Context())  # before it is a formula of both dtypes
        given = [graph.inputs[place] for place in narrow.inputs]
        wanted = [place in narrow.outputs for place in range(self.outputs)]
        kept: list[bool | None] = [None] * (len(graph.outputs) - self.outputs)
        made = mixed(graph, narrow.dtype, given, [*wanted, *kept])
        self._dtypes = [value.dtype for value in made.outputs]
        # What is read in half precision alone is not kept in float32.
        found = self.halves.backward
        back = self._mixed_backward(found, self.halves.floating, narrow)
        cast = only_cast(back, narrow.dtype)
        for place, value in zip(found.kept, back.inputs[len(found.given) :], strict=False):
            if place >= self.outputs and value in cast:
                kept[place - self.outputs] = True
        made = mixed(graph, narrow.dtype, given, [*wanted, *kept])
        self._dtypes = [value.dtype for value in made.outputs]
        last = lying_last(made) if self._engine.lays_last else ()
        places = enumerate(made.outputs[self.outputs :], self.outputs)
        self._last = {place for place, value in places if value in last}
        return giving_last(made, sorted(self._last))

    def _backward(self, found: BackwardHalf, present: tuple[int, ...]) -> Graph:
        """The same backwards: kept values are given as they were kept, gradients have the dtypes of
        what they are by."""
        if self._narrow is None:
            return found.graph
        last = [i for i, p in enumerate(found.kept, len(found.given)) if p in self._last]
        return taking_last(self._mixed_backward(found, present, self._narrow), last)

    def _mixed_backward(
        self, found: BackwardHalf, present: tuple[int, ...], narrow: Narrow
    ) -> Graph:
        """What runs backwards, in the precision of the part."""
        graph = fold_batch_norm(found.graph, Context())
        are_narrow = [
            *(place in narrow.inputs for place in found.given),
            *(self._dtypes[place] == narrow.dtype for place in found.kept),
            *(place in narrow.outputs for place in present),
        ]
        given = [v for v, is_it in zip(graph.inputs, are_narrow, strict=True) if is_it]
        wanted = [place in narrow.inputs for place in found.differentiated]
        return mixed(graph, narrow.dtype, given, wanted)

    def _compiled(self, graph: Graph) -> CompiledPart:
        engine, narrow = self._engine, self._narrow
        executable = (
            engine.compile_trained(graph)
            if narrow is None
            else engine.compile_mixed(graph, narrow.dtype)
        )
        return CompiledPart(Part(graph, (), ()), executable, engine.memory, True, True)


class _Through(torch.autograd.Function):
    """A part as one operation on PyTorch's tape."""

    @staticmethod
    def forward(
        ctx: Any, pair: Pair, tensors: Sequence[torch.Tensor], *trained: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """trained: those of the tensors that are on the tape."""
        given = pair.to_keep(tensors)  # before the part writes to any of it
        results, block = pair.run(tensors)
        kept = pair.kept if block is None else pair.kept_beside
        own = () if block is None else (block,)
        more = map(tensors.__getitem__, pair.more)
        ctx.save_for_backward(*own, *given, *(results[place] for place in kept), *more)
        ctx.autocast = autocast_of(tensors[0]) if tensors else None
        ctx.has_block = block is not None
        ctx.pair = pair
        ctx.mark_non_differentiable(*(results[place] for place in pair.others))
        ctx.set_materialize_grads(False)
        return tuple(results[: pair.results])

    # Else Dynamo would look at this code, where a piece's own code asks for gradients.
    @staticmethod
    @torch.compiler.disable(reason="minidnn runs it")
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        pair: Pair = ctx.pair
        if any(each is not None and is_batched(each) for each in gradients):
            raise UnsupportedError(_BATCHED.format(name=pair.name))
        block, *saved = ctx.saved_tensors if ctx.has_block else (None, *ctx.saved_tensors)
        given, kept = pair.halves.backward.given, pair.kept_beside if ctx.has_block else pair.kept
        if torch.is_grad_enabled():
            more = saved[len(given) + len(kept) :]
            there = dict(zip((*given, *pair.more), (*saved[: len(given)], *more), strict=True))
            return None, None, *pair.run_twice(there, ctx.autocast, gradients)
        found = pair.run_back(
            dict(zip(given, saved, strict=False)),
            dict(zip(kept, saved[len(given) :], strict=False)),
            block,
            gradients,
        )
        return None, None, *map(found.get, pair.trained)


def _all(results: Any) -> tuple[torch.Tensor, ...]:
    return results if isinstance(results, tuple) else (results,)


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor that lies as programs take it."""
    return tensor if tensor.is_contiguous() else tensor.contiguous()


def _trained(tensors: Sequence[torch.Tensor]) -> tuple[int, ...]:
    if not torch.is_grad_enabled():
        return ()
    return tuple(compress(count(), map(_IS_TRAINED, tensors)))
