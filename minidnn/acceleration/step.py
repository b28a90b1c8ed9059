"""A part of a network that is trained: PyTorch's tape sees one operation, with its gradient.

What requires a gradient decides what is kept and what is computed backwards, so there is a pair of
programs for each such choice: the graph with what is kept as further outputs, and its gradient.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from minidnn._forks import ForkLock
from minidnn.acceleration.engine import Engine
from minidnn.acceleration.kept import giving_last, is_image, taking_last
from minidnn.acceleration.part import TakenPart
from minidnn.errors import UnsupportedError
from minidnn.frontends.torch.convert import Part
from minidnn.gradients.halves import BackwardHalf, Halves
from minidnn.graph.ir import Graph
from minidnn.passes.mix_precision import mixed

#: For so many choices of what requires a gradient programs are kept.
_CHOICES = 4

_IS_BATCHED = torch._C._functorch.is_legacy_batchedtensor
_BATCHED = (
    "is_grads_batched=True through {name}, whose gradient minidnn computes for one tensor at a "
    "time; valid is the module that was optimized: fast.original"
)
_TWICE = (
    "create_graph=True (a gradient of a gradient) through {name}, whose gradient minidnn computes "
    "and does not record; valid is the module that was optimized: fast.original"
)


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
    """

    def __init__(self, part: Part, engine: Engine, narrow: Narrow | None = None) -> None:
        """narrow: how it computes in half precision, if it does."""
        super().__init__()
        self.part = part
        self.pairs: OrderedDict[tuple[int, ...], Pair] = OrderedDict()
        self._engine = engine
        self._narrow = narrow
        self._device = torch.device(engine.memory)
        self._places = {node: place for place, node in enumerate(part.inputs)}
        self._written = [self._places[node] for node in part.written]
        self._lock = ForkLock()

    def forward(self, *tensors: torch.Tensor) -> Any:
        pair = self._pair(_trained(tensors))
        numbers = self._random()
        results = _Through.apply(pair, *tensors, *numbers)
        count = len(self.part.outputs)
        with torch.no_grad():
            for place, result in zip(self._written, results[count:], strict=True):
                tensors[place].copy_(result)
        return results[0] if count == 1 else results[:count]

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
                pair = self.pairs[trained] = Pair(self.part, self._engine, trained, self._narrow)
                if len(self.pairs) > _CHOICES:
                    self.pairs.popitem(last=False)
            self.pairs.move_to_end(trained)
        return pair


class Pair:
    """The programs of a part, for one choice of what requires a gradient.

    Attributes:
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
    ) -> None:
        self.name = part.graph.name
        self.outputs = len(part.graph.outputs)
        mixed = narrow is not None
        self.halves = Halves(part.graph, trained, len(part.outputs), compute_again=mixed)
        self._engine, self._narrow = engine, narrow
        #: Of each result of the program forwards its dtype, and which are kept channels last.
        self._dtypes: list[str] = []
        self._last: set[int] = set()
        self.forward = self._compiled(self._forward())
        self.backwards: dict[tuple[int, ...], tuple[BackwardHalf, TakenPart]] = {}
        #: Results by which there are no gradients.
        self.others = [p for p in range(self.outputs) if p not in self.halves.floating]
        self._lock = ForkLock()
        if len(self.halves.floating) == 1 and self.halves.backward.differentiated:
            self.backward(self.halves.floating)

    @property
    def kept_bytes(self) -> int:
        """Bytes of what is kept beside inputs and outputs."""
        kept = self.forward.part.graph.outputs[self.outputs :]
        return sum(value.type.bytes for value in kept)

    def backward(self, present: tuple[int, ...]) -> tuple[BackwardHalf, TakenPart]:
        """What is computed backwards where there are gradients by these results."""
        with self._lock:
            if present not in self.backwards:
                every = present == self.halves.floating
                found = self.halves.backward if every else self.halves.backward_of(present)
                self.backwards[present] = found, self._compiled(self._backward(found, present))
            return self.backwards[present]

    def _forward(self) -> Graph:
        """What runs forwards, in the precision of the part; values are kept as they are there."""
        graph, narrow = self.halves.forward, self._narrow
        if narrow is None:
            return graph
        given = [graph.inputs[place] for place in narrow.inputs]
        wanted = [place in narrow.outputs for place in range(self.outputs)]
        kept = [None] * (len(graph.outputs) - self.outputs)
        made = mixed(graph, narrow.dtype, given, [*wanted, *kept])
        self._dtypes = [value.dtype for value in made.outputs]
        self._last = {
            place
            for place, value in enumerate(made.outputs)
            if place >= self.outputs and value.dtype == narrow.dtype and is_image(value)
        }
        return giving_last(made, sorted(self._last))

    def _backward(self, found: BackwardHalf, present: tuple[int, ...]) -> Graph:
        """The same backwards: kept values are given as they were kept, gradients have the dtypes of
        what they are by."""
        graph, narrow = found.graph, self._narrow
        if narrow is None:
            return graph
        are_narrow = [
            *(place in narrow.inputs for place in found.given),
            *(self._dtypes[place] == narrow.dtype for place in found.kept),
            *(place in narrow.outputs for place in present),
        ]
        given = [v for v, is_it in zip(graph.inputs, are_narrow, strict=True) if is_it]
        wanted = [place in narrow.inputs for place in found.differentiated]
        last = [i for i, p in enumerate(found.kept, len(found.given)) if p in self._last]
        return taking_last(mixed(graph, narrow.dtype, given, wanted), last)

    def _compiled(self, graph: Graph) -> TakenPart:
        engine, narrow = self._engine, self._narrow
        executable = (
            engine.compile_trained(graph)
            if narrow is None
            else engine.compile_mixed(graph, narrow.dtype)
        )
        return TakenPart(Part(graph, (), ()), executable, engine.memory, True, True)


class _Through(torch.autograd.Function):
    """A part as one operation on PyTorch's tape."""

    @staticmethod
    def forward(ctx: Any, pair: Pair, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        results = _all(pair.forward(*map(_plain, tensors)))
        whole = pair.halves.backward
        kept = (results[place] for place in whole.kept)
        ctx.save_for_backward(*(tensors[place] for place in whole.given), *kept)
        ctx.pair, ctx.count = pair, len(tensors)
        ctx.mark_non_differentiable(*(results[place] for place in pair.others))
        ctx.set_materialize_grads(False)
        return results[: pair.outputs]

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        pair: Pair = ctx.pair
        if torch.is_grad_enabled():
            raise UnsupportedError(_TWICE.format(name=pair.name))
        if any(each is not None and _IS_BATCHED(each) for each in gradients):
            raise UnsupportedError(_BATCHED.format(name=pair.name))
        present = tuple(p for p in pair.halves.floating if gradients[p] is not None)
        if not present:
            return (None,) * (1 + ctx.count)
        backward, program = pair.backward(present)
        whole = pair.halves.backward
        kept = (ctx.count + place for place in whole.kept)
        saved = dict(zip((*whole.given, *kept), ctx.saved_tensors, strict=True))
        read = (*backward.given, *(ctx.count + place for place in backward.kept))
        given = (*(saved[place] for place in read), *(g for g in gradients if g is not None))
        found = _all(program(*map(_plain, given)))
        results: list[torch.Tensor | None] = [None] * (1 + ctx.count)
        for place, gradient in zip(backward.differentiated, found, strict=True):
            results[1 + place] = gradient
        return tuple(results)


def _all(results: Any) -> tuple[torch.Tensor, ...]:
    return results if isinstance(results, tuple) else (results,)


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor that lies as programs take it."""
    return tensor if tensor.is_contiguous() else tensor.contiguous()


def _trained(tensors: Sequence[torch.Tensor]) -> tuple[int, ...]:
    if not torch.is_grad_enabled():
        return ()
    return tuple(place for place, tensor in enumerate(tensors) if tensor.requires_grad)
