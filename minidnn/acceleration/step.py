"""A part of a network in training: one autograd function with a compiled forward and backward.

Which inputs require gradients decides which values are kept and which gradients are computed.  So
there is a pair of programs for each such choice: the graph with the kept values as further outputs,
and its gradient.
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
from minidnn.acceleration.double_backward import Autocast, autocast_of, gradients_again
from minidnn.acceleration.engine import Engine
from minidnn.acceleration.kept import channels_last_values, giving_last, only_cast, taking_last
from minidnn.acceleration.kept_block import KeptBlock
from minidnn.acceleration.part import CompiledPart, ExpectedTensors
from minidnn.acceleration.program import REHEARSING
from minidnn.errors import UnsupportedError
from minidnn.frontends.torch.convert import Part
from minidnn.gradients.forward_backward import BackwardGraph, ForwardBackward
from minidnn.graph.attention_patterns import compose_attention
from minidnn.graph.ir import Graph, Value, drop_unread
from minidnn.passes.fold import fold_batch_norm
from minidnn.passes.infrastructure import Context
from minidnn.passes.linear import transpose_linear_rows
from minidnn.passes.mix_precision import mixed
from minidnn.passes.simplify import share_concats

#: The number of choices of inputs that require gradients for which programs are kept.
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
class DoubleBackward:
    """How PyTorch computes a part again, for gradients of gradients.

    Attributes:
        compute: the part as a PyTorch function: its outputs from its inputs.
        used_inputs: the inputs that its outputs depend on, by place.
        warn: warns that PyTorch computes the part, or raises if strict.
    """

    compute: Callable[..., Any]
    used_inputs: tuple[int, ...]
    warn: Callable[[str], None]


@dataclass(frozen=True)
class MixedPrecision:
    """How a part computes in mixed precision.

    Attributes:
        dtype: "float16" or "bfloat16".
        inputs: the inputs that have this dtype, by place.
        outputs: the outputs that have it, by place.
    """

    dtype: str
    inputs: frozenset[int] = frozenset()
    outputs: frozenset[int] = frozenset()


class TrainedPart(nn.Module):
    """A part as a module with a gradient.

    Attributes:
        part: its graph, and the captured nodes that are its inputs and outputs.
        pairs: the compiled programs, by the places of the inputs that require gradients.
        double_backward: how PyTorch computes the part again, for gradients of gradients.
    """

    def __init__(
        self,
        part: Part,
        engine: Engine,
        narrow: MixedPrecision | None = None,
        double_backward: DoubleBackward | None = None,
    ) -> None:
        """narrow: how the part computes in mixed precision; None if it does not."""
        super().__init__()
        self.double_backward = double_backward
        self.part = part
        self.pairs: OrderedDict[tuple[int, ...], ProgramPair] = OrderedDict()
        self._engine = engine
        self._narrow = narrow
        self._device = torch.device(engine.memory)
        self._lock = ForkLock()

    def forward(self, *tensors: torch.Tensor) -> Any:
        pair = self._pair(_trained(tensors))
        given = (*tensors, *self._random())
        # Only inputs that require gradients need be on the tape.
        results = _PartFunction.apply(pair, given, *(tensors[place] for place in pair.trained))
        return results[0] if len(results) == 1 else results

    def prepare(self, trained: Sequence[bool]) -> None:
        """Compiles for inputs of which those that are ``trained`` require gradients."""
        self._pair(tuple(place for place, is_trained in enumerate(trained) if is_trained))

    def _random(self) -> Sequence[torch.Tensor]:
        """Draws the seeds of all random numbers of a run from PyTorch's generator of the device."""
        if not self.part.random:
            return ()
        size = (self.part.random,)
        drawn = torch.empty(size, dtype=torch.int64, device=self._device).random_()
        return drawn.unbind()

    def _pair(self, trained: tuple[int, ...]) -> ProgramPair:
        """The pair for these trained inputs, compiled if there is none; an LRU cache."""
        with self._lock:
            pair = self.pairs.get(trained)
            if pair is None:
                pair = self.pairs[trained] = ProgramPair(
                    self.part, self._engine, trained, self._narrow, self.double_backward
                )
                if len(self.pairs) > _CHOICES:
                    self.pairs.popitem(last=False)
            self.pairs.move_to_end(trained)
        return pair


class ProgramPair:
    """The forward and backward programs of a part, for one choice of trained inputs.

    Attributes:
        double_backward: how PyTorch computes the part again, for gradients of gradients.
        name: the part's, for messages.
        trained: the inputs that require gradients, by place.
        outputs: the number of the graph's outputs: results, and values that the part writes.
        results: the number of results.
        graphs: the forward and the backward graph.
        forward: the compiled forward program.
        backwards: the compiled backward programs, by the places of the results that have output
            gradients.  A result that the loss does not depend on has none, nor has an input that
            only such results depend on.
        random: the number of seeds among the inputs.
        more: inputs that are kept for gradients of gradients alone, by place.
        kept: the outputs of the forward program that the backward program reads, by place.
        kept_beside: those of them that are not in the block.
        others: the results that have no gradient, by place.
    """

    def __init__(
        self,
        part: Part,
        engine: Engine,
        trained: Sequence[int],
        narrow: MixedPrecision | None = None,
        double_backward: DoubleBackward | None = None,
    ) -> None:
        self.double_backward = double_backward
        self.name = part.graph.name
        self.trained = tuple(trained)
        self.outputs, self.results = len(part.graph.outputs), len(part.outputs)
        places = {node: place for place, node in enumerate(part.inputs)}
        self._written = [places[node] for node in part.written]
        mixed = narrow is not None
        # Concatenations share prefixes before differentiation: then gradients are added so, too.
        graph = share_concats(part.graph, Context())
        if engine.memory != "cpu":
            graph = transpose_linear_rows(graph, Context())
        composed, _ = compose_attention(graph)
        graph = drop_unread(composed)
        first = len(part.outputs) if part.differentiable is None else part.differentiable
        self.graphs = ForwardBackward(graph, trained, first, compute_again=mixed)
        self._engine, self._narrow = engine, narrow
        self._overwritten = part.overwritten.intersection(self.graphs.backward.given)
        self.random, self._given = part.random, len(part.inputs)
        read = self.graphs.backward.given
        self.more = [
            place
            for place in range(self._given)
            if place not in read and place not in part.overwritten
        ]
        self._device = torch.device(engine.memory)
        #: The dtypes of the forward program's outputs, and which of them are kept channels last.
        self._dtypes: list[str] = []
        self._last: set[int] = set()
        self.forward = self._compiled(self._forward())
        self.forward.use_external_buffers()
        #: For each stream, free tensors of earlier calls for values that the part writes: they hold
        #: them until they are copied to where the part writes.
        self._copied: defaultdict[int, list[list[torch.Tensor]]] = defaultdict(list)
        self.backwards: dict[tuple[int, ...], tuple[BackwardGraph, CompiledPart]] = {}
        #: For each backward program, the predicate of its inputs outside the block.
        self._loose: dict[tuple[int, ...], ExpectedTensors] = {}
        self.kept = self.graphs.backward.kept
        self.kept_beside = [place for place in self.kept if place < self.outputs]
        self._keeps_copied = any(place >= self.results for place in self.kept_beside)
        self.others = [p for p in range(self.results) if p not in self.graphs.floating]
        self._lock = ForkLock()
        #: Whether the block is donated to the program of all gradients, which overwrites it.
        self._donates_block = False
        self._block = self._block_layout()

    def _block_layout(self) -> KeptBlock:
        """Lays out the block of kept values, as the backward program wants it if it is donated."""
        kept_values = self.forward.part.graph.outputs[self.outputs :]
        if len(self.graphs.floating) != 1 or not self.graphs.backward.differentiated:
            return KeptBlock(kept_values, self._device)
        backward, program = self.graphs.backward, self._add_backward(self.graphs.floating)
        inputs = {
            place - self.outputs: number
            for number, place in enumerate(backward.kept, len(backward.given))
            if place >= self.outputs
        }
        layout = program.use_external_buffers(list(inputs.values()))
        if layout is None:
            return KeptBlock(kept_values, self._device)
        self._donates_block = True
        places = dict(zip(inputs, layout.offsets, strict=True))
        return KeptBlock(kept_values, self._device, places, layout.bytes)

    @property
    def kept_bytes(self) -> int:
        """The size of the kept values in bytes, without inputs and outputs."""
        kept = self.forward.part.graph.outputs[self.outputs :]
        return sum(value.type.bytes for value in kept)

    def run(
        self, tensors: Sequence[torch.Tensor]
    ) -> tuple[list[torch.Tensor], torch.Tensor | None]:
        """Runs the forward program, and writes to the inputs that the part writes to.

        Returns the program's outputs up to those that are only kept, and the block of these; or
        all outputs as tensors, and None.
        """
        forward, contiguous, block = self.forward, tensors, None
        if not (is_by_address := forward.is_addressed and forward.takes(contiguous)):
            contiguous = [*map(_plain, tensors)]
            is_by_address = forward.is_addressed and forward.takes(contiguous)
        if not is_by_address:
            results = list(_all(forward(*contiguous)))
            self._write(tensors, results[self.results : self.outputs])
            return results, None
        stream, block = forward.stream, self._block.empty()
        free_copies = self._copied[stream]
        copied = free_copies.pop() if free_copies else forward.empty(self.results, self.outputs)
        results = [*forward.empty(0, self.results), *copied]
        addresses = [*map(_ADDRESS, results), *self._block.addresses(block)]
        forward.compute(list(map(_ADDRESS, contiguous)), addresses)
        self._write(tensors, copied)
        if not self._keeps_copied:
            free_copies.append(copied)
        return results, block

    def _write(self, tensors: Sequence[torch.Tensor], results: list[torch.Tensor]) -> None:
        """Copies results to the inputs that the part writes to."""
        if results and not REHEARSING.get():
            copy_each([tensors[place] for place in self._written], results)

    def run_back(
        self,
        given: Mapping[int, torch.Tensor],
        kept: Mapping[int, torch.Tensor],
        block: torch.Tensor | None,
        gradients: Sequence[torch.Tensor | None],
    ) -> dict[int, torch.Tensor]:
        """Runs the backward program; returns the gradients by inputs, by place.

        given: the inputs that are kept, by place.
        kept, block: the outputs of :meth:`run` that are kept, by place, and its block.
        gradients: the gradient by each result; None where there is none.
        """
        present = tuple(place for place in self.graphs.floating if gradients[place] is not None)
        if not present:
            return {}
        backward, program = self.backward(present)
        inputs = [given[place] for place in backward.given]
        output_gradients = [_plain(cast(torch.Tensor, gradients[place])) for place in present]
        if block is not None:
            kept_tensors = [kept[place] for place in backward.kept if place in kept]
            if program.is_addressed and self._loose[present](
                [*inputs, *kept_tensors, *output_gradients]
            ):
                block_addresses = self._block.addresses(block)
                read = [
                    _ADDRESS(kept[place])
                    if place in kept
                    else block_addresses[place - self.outputs]
                    for place in backward.kept
                ]
                addresses = [*map(_ADDRESS, inputs), *read, *map(_ADDRESS, output_gradients)]
                results = program.empty_gradients()
                donated = self._donated(block, present)
                program.compute(addresses, list(map(_ADDRESS, results)), donated)
                return dict(zip(backward.differentiated, results, strict=True))
            kept = {**kept, **dict(enumerate(self._block.tensors(block), self.outputs))}
        tensors = [*inputs, *(kept[place] for place in backward.kept), *output_gradients]
        results = list(_all(program(*map(_plain, tensors))))
        return dict(zip(backward.differentiated, results, strict=True))

    def _donated(self, block: torch.Tensor, present: tuple[int, ...]) -> int:
        """The address of the block, if it is donated to the program for these results; 0 if not:
        PyTorch may retain the graph for another backward pass."""
        donates = self._donates_block and present == self.graphs.floating
        return _ADDRESS(block) if donates and not keeps_graph() else 0

    def run_twice(
        self,
        given: Mapping[int, torch.Tensor],
        autocast: Autocast,
        gradients: Sequence[torch.Tensor | None],
    ) -> Sequence[torch.Tensor | None]:
        """The gradients by the trained inputs, computed by PyTorch on its tape."""
        double_backward = self.double_backward
        if self.random or double_backward is None:
            raise UnsupportedError(_RANDOM.format(name=self.name))
        missing = [place for place in double_backward.used_inputs if place not in given]
        if missing:
            raise UnsupportedError(_GONE.format(name=self.name))
        double_backward.warn(_TWICE.format(name=self.name))
        values = enumerate(self.graphs.graph.inputs[: self._given])
        tensors = [given[p] if p in given else self._zeros(value) for p, value in values]
        return gradients_again(double_backward.compute, autocast, tensors, self.trained, gradients)

    def _zeros(self, value: Value) -> torch.Tensor:
        """Zeros in place of an input on whose values nothing depends."""
        return torch.zeros(value.shape, dtype=getattr(torch, value.dtype), device=self._device)

    def to_keep(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The inputs that are kept; copies of those that the network writes to afterwards."""
        given = list(map(tensors.__getitem__, self.graphs.backward.given))
        for place in self._overwritten:
            given[self.graphs.backward.given.index(place)] = tensors[place].clone()
        return given

    def backward(self, present: tuple[int, ...]) -> tuple[BackwardGraph, CompiledPart]:
        """Returns the backward graph and program for output gradients of these results."""
        with self._lock:
            if present not in self.backwards:
                self._add_backward(present).use_external_buffers()
            return self.backwards[present]

    def _add_backward(self, present: tuple[int, ...]) -> CompiledPart:
        is_whole = present == self.graphs.floating
        backward = self.graphs.backward if is_whole else self.graphs.backward_of(present)
        program = self._compiled(self._backward(backward, present))
        self._loose[present] = self._lying_beside_block(backward, program)
        self.backwards[present] = backward, program
        return program

    def _lying_beside_block(self, found: BackwardGraph, program: CompiledPart) -> ExpectedTensors:
        """Returns a predicate: whether a backward program takes its inputs outside the block by
        address."""
        begin = len(found.given)
        within = {begin + i for i, place in enumerate(found.kept) if place >= self.outputs}
        values = enumerate(program.part.graph.inputs)
        return program.expected_tensors(value for place, value in values if place not in within)

    def _forward(self) -> Graph:
        """The forward graph in the part's precision, with kept values in the layout it computes."""
        graph, narrow = self.graphs.forward, self._narrow
        if narrow is None:
            return graph
        graph = fold_batch_norm(graph, Context())  # before it becomes a formula of two dtypes
        given = [graph.inputs[place] for place in narrow.inputs]
        wanted = [place in narrow.outputs for place in range(self.outputs)]
        kept: list[bool | None] = [None] * (len(graph.outputs) - self.outputs)
        narrowed = mixed(graph, narrow.dtype, given, [*wanted, *kept])
        self._dtypes = [value.dtype for value in narrowed.outputs]
        # Values that are read in half precision alone are kept in it.
        backward = self.graphs.backward
        backward_graph = self._mixed_backward(backward, self.graphs.floating, narrow)
        cast_values = only_cast(backward_graph, narrow.dtype)
        for place, value in zip(
            backward.kept, backward_graph.inputs[len(backward.given) :], strict=False
        ):
            if place >= self.outputs and value in cast_values:
                kept[place - self.outputs] = True
        narrowed = mixed(graph, narrow.dtype, given, [*wanted, *kept])
        self._dtypes = [value.dtype for value in narrowed.outputs]
        channels_last = channels_last_values(narrowed) if self._engine.lays_last else ()
        places = enumerate(narrowed.outputs[self.outputs :], self.outputs)
        self._last = {place for place, value in places if value in channels_last}
        return giving_last(narrowed, sorted(self._last))

    def _backward(self, found: BackwardGraph, present: tuple[int, ...]) -> Graph:
        """The backward graph in the part's precision: it takes kept values in the layout in which
        they are kept; a gradient has the dtype of its input or result."""
        if self._narrow is None:
            return found.graph
        last = [i for i, p in enumerate(found.kept, len(found.given)) if p in self._last]
        return taking_last(self._mixed_backward(found, present, self._narrow), last)

    def _mixed_backward(
        self, found: BackwardGraph, present: tuple[int, ...], narrow: MixedPrecision
    ) -> Graph:
        """The backward graph in mixed precision."""
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


class _PartFunction(torch.autograd.Function):
    """A part as one autograd function on PyTorch's tape."""

    @staticmethod
    def forward(
        ctx: Any, pair: ProgramPair, tensors: Sequence[torch.Tensor], *trained: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """trained: the tensors that require gradients, which PyTorch records on the tape."""
        given = pair.to_keep(tensors)  # before the part writes to any of it
        results, block = pair.run(tensors)
        kept = pair.kept if block is None else pair.kept_beside
        block_tensors = () if block is None else (block,)
        for_twice = map(tensors.__getitem__, pair.more)
        ctx.save_for_backward(
            *block_tensors, *given, *(results[place] for place in kept), *for_twice
        )
        ctx.autocast = autocast_of(tensors[0]) if tensors else None
        ctx.has_block = block is not None
        ctx.pair = pair
        ctx.mark_non_differentiable(*(results[place] for place in pair.others))
        ctx.set_materialize_grads(False)
        return tuple(results[: pair.results])

    # Else Dynamo would trace this code where a piece's own code asks for gradients.
    @staticmethod
    @torch.compiler.disable(reason="minidnn runs it")
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        pair: ProgramPair = ctx.pair
        if any(each is not None and is_batched(each) for each in gradients):
            raise UnsupportedError(_BATCHED.format(name=pair.name))
        block, *saved = ctx.saved_tensors if ctx.has_block else (None, *ctx.saved_tensors)
        given, kept = pair.graphs.backward.given, pair.kept_beside if ctx.has_block else pair.kept
        if torch.is_grad_enabled():
            more = saved[len(given) + len(kept) :]
            tensors_at = dict(zip((*given, *pair.more), (*saved[: len(given)], *more), strict=True))
            return None, None, *pair.run_twice(tensors_at, ctx.autocast, gradients)
        input_gradients = pair.run_back(
            dict(zip(given, saved, strict=False)),
            dict(zip(kept, saved[len(given) :], strict=False)),
            block,
            gradients,
        )
        return None, None, *map(input_gradients.get, pair.trained)


def _all(results: Any) -> tuple[torch.Tensor, ...]:
    return results if isinstance(results, tuple) else (results,)


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor as a contiguous one."""
    return tensor if tensor.is_contiguous() else tensor.contiguous()


def _trained(tensors: Sequence[torch.Tensor]) -> tuple[int, ...]:
    """The places of the tensors that require gradients."""
    if not torch.is_grad_enabled():
        return ()
    return tuple(compress(count(), map(_IS_TRAINED, tensors)))
