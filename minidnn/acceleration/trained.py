"""A captured program in training: compiled parts are operations on PyTorch's autograd tape.

Parameters and buffers are arguments of every run, in PyTorch's own memory, so that no compiled part
depends on their values.  Operations that PyTorch runs are recorded on its tape as usual.
"""

from __future__ import annotations

import warnings
from collections.abc import Container, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import fx

from minidnn.acceleration.double_backward import affects_outputs, in_pytorch
from minidnn.acceleration.engine import Engine
from minidnn.acceleration.overlaps import Overlaps
from minidnn.acceleration.program import SizedProgram, divided, moves_alone
from minidnn.acceleration.step import DoubleBackward, MixedPrecision, TrainedPart
from minidnn.errors import MiniDNNWarning, UnsupportedError
from minidnn.frontends.torch.aten.call import key_of
from minidnn.frontends.torch.captured import Captured, reader_of
from minidnn.frontends.torch.convert import Part, convert
from minidnn.frontends.torch.functional import is_tracked
from minidnn.frontends.torch.memory import Memory
from minidnn.frontends.torch.narrow import was_narrow, widen
from minidnn.frontends.torch.partition import Level
from minidnn.gradients.reverse import pullback, reached_values
from minidnn.graph.ir import Graph

_FULL = "it multiplies in float32, between values in half precision"
#: Substrings of the names of operations that multiply matrices or convolve.
_PRODUCTS = ("conv", "linear", "matmul", "mm", "einsum", "dot", "mv", "attention")


class TrainedProgram(SizedProgram):
    """A network that is trained, for arguments of one size; see
    :class:`minidnn.acceleration.program.SizedProgram`.

    Attributes:
        parts: the compiled parts, in order; each has a gradient.
        half: "float16" or "bfloat16" where products are computed in it; None for float32.
    """

    parts: list[TrainedPart]

    def __init__(
        self,
        captured: Captured,
        engine: Engine,
        name: str,
        sizes: str,
        strict: bool = False,
        half: str | None = None,
        weights: Container[int] = (),
    ) -> None:
        """half: the half precision of products, unless captured values are in one themselves, which
        then counts.  weights: the places of weights among the arguments."""
        self._weights = weights
        self.half = widen(captured) or half
        #: Whether the captured program itself says which values are in half precision.
        self._is_said = any(map(was_narrow, captured.module.graph.nodes))
        if self.half is not None and (reason := engine.why_not_mixed(self.half)) is not None:
            raise UnsupportedError(f"it computes in {self.half}, and {reason}")
        self._is_strict = strict
        self._said: set[str] = set()
        super().__init__(captured, engine, name, sizes, strict)

    def compile(self) -> None:
        """Makes the parts, whose programs :meth:`prepare` or the first call compiles."""
        self.parts = []
        for level in self.levels:
            if level.taken:
                name = f"{self.name}.{len(self.parts)}"
                part = self._part(level, name)
                double_backward = DoubleBackward(
                    in_pytorch(self.captured, level.nodes, part.inputs, part.outputs),
                    tuple(place for place, node in enumerate(part.inputs) if affects_outputs(node)),
                    self._say,
                )
                self.parts.append(
                    TrainedPart(part, self.engine, self._narrow(part), double_backward)
                )
        self._runner, held, self.places = self._build()
        self._read = reader_of(held)
        self._overlaps = None
        if self.captured.has_writes:
            self._overlaps = Overlaps(self.captured, self._weights)
        self._direct = self.direct = None
        self._is_bare = self.starts_early = False

    def _own_writes(self) -> dict[fx.Node, fx.Node]:
        """The running statistics that the last part updates: it alone reads them, and nothing reads
        their new values.  So the part may write them outside PyTorch's tape, before the rest of the
        program has run.  An earlier part may not: where a later one turns out not to be possible,
        PyTorch computes the whole piece, and would update them again."""
        last_nodes = next((set(each.nodes) for each in reversed(self.levels) if each.taken), set())
        results = list(self._results)
        return {
            target: results[place]
            for place, target in self.captured.writes
            if target in self.captured.untaped
            and not is_tracked(target)
            and target.users
            and last_nodes.issuperset((results[place], *target.users))
            and len(results[place].users) == results.count(results[place]) == 1
        }

    def _say(self, said: str) -> None:
        """Warns once for each message about work left to PyTorch; raises if strict."""
        if self._is_strict:
            raise UnsupportedError(f"strict=True, and {said}")
        if said not in self._said:
            self._said.add(said)
            warnings.warn(said, MiniDNNWarning, stacklevel=2)

    def _part(self, level: Level, name: str) -> Part:
        """Converts a level to a part, whose differentiable results come first."""
        captured, within = self.captured, set(level.nodes)
        own_writes = {target: new for target, new in self._own.items() if new in within}
        written_results = set(own_writes.values())
        outputs = [
            node
            for node in level.nodes
            if node not in written_results and any(user not in within for user in node.users)
        ]
        outputs.sort(key=lambda node: not is_tracked(node))
        results = [*outputs, *own_writes.values()]
        part = convert(
            level.nodes, captured.constants, captured.tensor, name, results=results, trained=True
        )
        memory = Memory(captured.module.graph)
        written = {storage for _, node in captured.writes for storage in memory.of(node)}
        overwritten = {p for p, node in enumerate(part.inputs) if written & memory.of(node)}
        return replace(
            part,
            outputs=tuple(outputs),
            written=tuple(own_writes),
            differentiable=sum(map(is_tracked, outputs)),
            overwritten=frozenset(overwritten),
        )

    def prepare(self, leaves: Sequence[Any]) -> None:
        """Compiles all parts for leaves of these kinds, in the current gradient mode."""
        trained = {node: held.tensor.requires_grad for node, held in self.captured.held.items()}
        for node, place in self.captured.given.items():
            leaf = leaves[place]
            trained[node] = isinstance(leaf, torch.Tensor) and leaf.requires_grad
        for node in self.captured.operations:
            trained[node] = any(trained.get(each, False) for each in node.all_input_nodes)
        on = torch.is_grad_enabled()
        for part in self.parts:
            part.prepare([on and trained.get(node, False) for node in part.part.inputs])

    def _narrow(self, part: Part) -> MixedPrecision | None:
        """How a part computes in mixed precision; None if it does not."""
        if self.half is None:
            return None
        inputs = (place for place, node in enumerate(part.inputs) if was_narrow(node))
        given = (*part.outputs, *map(self._own.__getitem__, part.written))
        outputs = (place for place, node in enumerate(given) if was_narrow(node))
        return MixedPrecision(self.half, frozenset(inputs), frozenset(outputs))

    def _divided(self, prices: bool) -> tuple[list[Level], dict[fx.Node, str]]:
        judge = partial(_why_not, self.engine)
        return divided(self.captured, self.engine, judge, _why_dropped, self._why_left, True)

    def _why_left(self, node: fx.Node) -> str | None:
        """Why an operation is left that could be taken: it is a product in float32, in a program
        that itself says which values are in half precision."""
        is_full = not was_narrow(node) and any(word in key_of(node) for word in _PRODUCTS)
        return _FULL if self._is_said and is_full else None


def _why_dropped(part: Part, has_others: bool) -> str | None:
    return moves_alone(part)


def _why_not(engine: Engine, graph: Graph) -> str | None:
    """Why the device cannot run a graph or its gradient; None if it can run both."""
    reason = engine.why_not(graph)
    if reason is not None:
        return reason
    reached = reached_values(graph)
    floating = [value for value in graph.inputs if value in reached]
    if not floating:
        return None
    try:
        backward = pullback(graph, floating)
    except UnsupportedError as error:
        return str(error)
    return engine.why_not(backward)
