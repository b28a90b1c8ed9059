"""A captured program that is trained: parts run forwards and backwards, PyTorch's tape is around.

Parameters and buffers are arguments of every run, in PyTorch's own memory, so that nothing of a
part depends on their values.  What PyTorch runs is recorded on its tape as ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import fx, nn

from minidnn._torch_internals import HigherOrderOperator
from minidnn.acceleration.engine import Engine
from minidnn.acceleration.program import SizedProgram, elsewhere, moves_alone
from minidnn.acceleration.step import Narrow, TrainedPart
from minidnn.acceleration.watch import TrainedWatch, Watch
from minidnn.errors import UnsupportedError
from minidnn.frontends.torch.aten.call import arguments_of, key_of
from minidnn.frontends.torch.capture import Captured, reader_of
from minidnn.frontends.torch.convert import Part, convert, judge_operations
from minidnn.frontends.torch.inplace import WRITES
from minidnn.frontends.torch.memory import SHARED, Memory
from minidnn.frontends.torch.narrow import was_narrow, widen
from minidnn.frontends.torch.partition import Level, levels
from minidnn.gradients.reverse import pullback, reached_values
from minidnn.graph.ir import Graph

_WRITES = "it writes to what the module holds or is given"
_FULL = "it multiplies in float32, between values in half precision"
#: What stands in the names of operations that multiply matrices or convolve.
_PRODUCTS = ("conv", "linear", "matmul", "mm", "einsum", "dot", "mv", "attention")
#: What batch normalization writes to while it is trained, which its schema does not say.
_STATISTICS = ("running_mean", "running_var")


class TrainedProgram(SizedProgram):
    """A network that is trained, for arguments of one size; see
    :class:`minidnn.acceleration.program.SizedProgram`.

    Attributes:
        parts: what was taken, in order; each runs backwards as well.
    """

    parts: list[TrainedPart]

    def __init__(
        self,
        captured: Captured,
        engine: Engine,
        name: str,
        sizes: str,
        strict: bool = False,
        root: nn.Module | None = None,
        within: bool = False,
        half: str | None = None,
    ) -> None:
        """half: in which half precision products are computed; that of the captured values, if
        there are any, comes first."""
        self.half = widen(captured) or half
        #: Whether the captured values say what is in half precision.
        self._is_said = any(map(was_narrow, captured.module.graph.nodes))
        if self.half is not None and (reason := engine.why_not_mixed()) is not None:
            raise UnsupportedError(f"it computes in {self.half}, and {reason}")
        super().__init__(captured, engine, name, sizes, strict, root, within)

    def compile(self) -> None:
        """Makes the parts, and compiles them for what requires a gradient now."""
        captured = self.captured
        self.parts = []
        for level in self.levels:
            if level.taken:
                name = f"{self.name}.{len(self.parts)}"
                part = convert(level.nodes, captured.constants, captured.tensor, name, trained=True)
                self.parts.append(TrainedPart(part, self.engine, self._narrow(part)))
        self._runner, held, self._places = self._build()
        self._read = reader_of(held)
        self._direct = self._overlaps = None
        self._is_bare = self.starts_early = False
        self.at_once = None

    def prepare(self, leaves: Sequence[Any]) -> None:
        """Compiles all parts for leaves like these, and for whether gradients are on."""
        trained = {node: held.tensor.requires_grad for node, held in self.captured.held.items()}
        for node, place in self.captured.given.items():
            leaf = leaves[place]
            trained[node] = isinstance(leaf, torch.Tensor) and leaf.requires_grad
        for node in self.captured.operations:
            trained[node] = any(trained.get(each, False) for each in node.all_input_nodes)
        on = torch.is_grad_enabled()
        for part in self.parts:
            part.prepare([on and trained.get(node, False) for node in part.part.inputs])

    def _narrow(self, part: Part) -> Narrow | None:
        """How a part computes in half precision, if it does."""
        if self.half is None:
            return None
        inputs = (place for place, node in enumerate(part.inputs) if was_narrow(node))
        outputs = (place for place, node in enumerate(part.outputs) if was_narrow(node))
        return Narrow(self.half, frozenset(inputs), frozenset(outputs))

    def _divided(self, prices: bool) -> tuple[list[Level], dict[fx.Node, str]]:
        return _divide(self.captured, self.engine, self._is_said)

    def _watching(self, root: nn.Module | None) -> Watch:
        captured = self.captured
        held = (each for node, each in captured.held.items() if node.users)
        return TrainedWatch(held, root, (call.module for call in captured.opaque))


def _divide(
    captured: Captured, engine: Engine, narrow: bool
) -> tuple[list[Level], dict[fx.Node, str]]:
    """What is taken and what is left.  What writes to buffers is left without a word: it is no
    part of what is differentiated.  ``narrow`` says that values are in half precision where the
    captured program says so."""
    operations = captured.operations
    reasons = {node: elsewhere(node, engine.memory) for node in operations}
    left = {node: reason for node, reason in reasons.items() if reason is not None}
    left.update((node, _WRITES) for node in operations if WRITES in node.meta)
    left.update((node, SHARED) for node in operations if SHARED in node.meta)
    judge = partial(_why_not, engine)
    judge_operations(operations, captured.constants, captured.tensor, judge, left, trained=True)
    if narrow:
        left.update((node, _FULL) for node in operations if node not in left and _is_full(node))
    after = _order_of_writes(captured)
    while True:
        found = levels(captured.module.graph, left, captured.constants, after)
        dropped: dict[fx.Node, str] = {}
        for level in found:
            if level.taken:
                part = convert(
                    level.nodes, captured.constants, captured.tensor, "part", trained=True
                )
                why = moves_alone(part)
                dropped.update((node, why) for node in level.nodes if why is not None)
        if not dropped:
            quiet = (SHARED, WRITES)
            told = {n: w for n, w in left.items() if not any(key in n.meta for key in quiet)}
            return found, told
        left.update(dropped)


def _is_full(node: fx.Node) -> bool:
    """Whether an operation multiplies in float32, which it is to do among others in halves."""
    return not was_narrow(node) and any(word in key_of(node) for word in _PRODUCTS)


def _why_not(engine: Engine, graph: Graph) -> str | None:
    """Why the device cannot run a graph forwards, or not backwards; None if it can both."""
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


def _order_of_writes(captured: Captured) -> dict[fx.Node, fx.Node]:
    """For operations that use what is written to by some, the one before them that uses it."""
    graph = captured.module.graph
    memory = Memory(graph)
    written: set[int] = set()
    for node in captured.operations:
        if WRITES in node.meta:
            written |= memory.of(node)
        elif isinstance(node.target, HigherOrderOperator):
            # A block may write to all that it is given.
            written |= {s for each in node.all_input_nodes for s in memory.of(each)}
        elif key_of(node) == "batch_norm.default" and arguments_of(node)["training"]:
            given = arguments_of(node)
            for name in _STATISTICS:
                if isinstance(given[name], fx.Node):
                    written |= memory.of(given[name])
    last: dict[int, fx.Node] = {}
    after: dict[fx.Node, fx.Node] = {}
    for node in captured.operations:
        for storage in {s for each in node.all_input_nodes for s in memory.of(each)} & written:
            if storage in last:
                after[node] = last[storage]
            last[storage] = node
    return after
