"""Programs for batches of any number of rows: one for a whole network, in place of one a size."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from minidnn.acceleration.engine import Engine
from minidnn.acceleration.part import CompiledPart
from minidnn.acceleration.program import SizedProgram, arranged_as, order_of, ordered
from minidnn.acceleration.programs import Programs, key_of_leaf
from minidnn.acceleration.threads import rest
from minidnn.backends.options import tune_option
from minidnn.dynamic.dim import Dim
from minidnn.dynamic.executable import DynamicExecutable
from minidnn.dynamic.rows import other_batches
from minidnn.dynamic.source import NetworkSource
from minidnn.errors import UnsupportedError
from minidnn.executable import Executable
from minidnn.frontends.torch.captured import Captured
from minidnn.frontends.torch.convert import Part, convert
from minidnn.graph.ir import Graph

log = logging.getLogger(__name__)

_REFUSED = 64
"""Kinds of arguments of which it is remembered why there is no program."""

#: Leaves of a call, and whether each has the batch: as its first axis, or as a number.
Leaves = Sequence[Any]
Named = Sequence[bool]


@dataclass(frozen=True)
class NamedPart:
    """The one part of a network, compiled for any number of rows."""

    part: Part
    executable: DynamicExecutable


@dataclass(frozen=True)
class NamedBatch:
    """A named batch of a network.

    Attributes:
        named: whether each argument has it.
        other: the network, captured for another batch.
    """

    dim: Dim
    named: Named
    other: Captured
    keep: int


class NamedProgram(SizedProgram):
    """A network for any number of rows.

    UnsupportedError if PyTorch runs some of it, or its rows depend on each other.
    """

    def __init__(
        self,
        captured: Captured,
        batch: NamedBatch,
        engine: Engine,
        name: str,
        sizes: str,
        strict: bool = False,
    ) -> None:
        self._named_batch = batch
        super().__init__(captured, engine, name, sizes, strict)

    def compile(self) -> None:
        """Compiles for one row, and for as many as there were; others are made as they come."""
        self.watch.renew()
        captured, batch = self.captured, self._named_batch
        if len(self.levels) != 1 or not self.levels[0].taken or captured.has_writes:
            raise UnsupportedError("PyTorch runs some of it, or it writes to its arguments")
        part = convert(self.levels[0].nodes, captured.constants, captured.tensor, self.name)
        if tuple(self._results) != part.outputs or any(
            n not in captured.given for n in part.inputs
        ):
            raise UnsupportedError("some of its results are not computed of its arguments alone")
        self._takes = [captured.given[node] for node in part.inputs]
        self._dtypes = [getattr(torch, value.dtype) for value in part.graph.outputs]
        orders = [order_of(node.meta["val"]) for node in part.outputs]
        #: How results lie in memory, if any lies otherwise than in order.
        self._orders = orders if any(each is not None for each in orders) else None
        with_rows = {place for place, each in enumerate(self._takes) if batch.named[each]}
        if not with_rows:
            raise UnsupportedError("no argument that it reads has the batch")
        made = self._executable(part.graph, with_rows)
        made.warm([part.graph.inputs[min(with_rows)].shape[0]])
        #: What runs the programs that are there, by the shapes that they take.
        self._direct_parts: dict[Any, CompiledPart] = {}
        self.parts = [NamedPart(part, made)]  # type: ignore[list-item]
        self.starts_early = False

    def _executable(self, graph: Graph, with_rows: set[int]) -> DynamicExecutable:
        batch, other = self._named_batch, self._named_batch.other
        again = convert(other.operations, other.constants, other.tensor, self.name).graph
        first = min(with_rows)
        if [len(again.inputs), len(again.outputs)] != [len(graph.inputs), len(graph.outputs)]:
            raise UnsupportedError("it is another for another batch")
        small, large = sorted((graph, again), key=lambda each: each.inputs[first].shape[0])
        of_rows = other_batches(small, large, with_rows)
        if isinstance(of_rows, str):
            raise UnsupportedError(of_rows)
        self._of_rows, self._first = of_rows, first
        shapes = [
            (batch.dim, *value.shape[1:]) if place in with_rows else value.shape
            for place, value in enumerate(graph.inputs)
        ]
        tunes = tune_option(self.engine.options, "heuristic") != "heuristic"
        source = NetworkSource(
            shapes, lambda bound: of_rows(bound[first][0]), self._compiled, tunes, is_code=False
        )
        return DynamicExecutable(
            source, (batch.dim,), keep=max(2, batch.keep), keep_bytes=None, background=True
        )

    def _compiled(self, graph: Graph, tunes: bool) -> Executable:
        options = self.engine.options
        if "tune" in options and not tunes:
            options = {**options, "tune": False}
        return Engine(self.engine.device, self.engine.precision, options).compile(graph)

    @property
    def dynamic(self) -> DynamicExecutable:
        """What computes."""
        found: DynamicExecutable = self.parts[0].executable  # type: ignore[assignment]
        return found

    def run(self, leaves: Sequence[Any]) -> Any:
        """The network's result for arguments with any number of rows in range."""
        tensors = [leaves[place] for place in self._takes]
        shapes = tuple([tensor.shape for tensor in tensors])
        kept = self.dynamic.ready(shapes)
        if kept is None:
            result = self._run_new(tensors)
        else:
            kept.calls += 1
            part = self._direct_parts.get(shapes)
            if part is None or part.executable is not kept.executable:
                part = self._direct_part(shapes, kept.executable)
            result = part.forward(*tensors)
        results = result if isinstance(result, tuple) else (result,)
        if self._orders is not None:
            results = tuple(
                each if order is None else ordered(each, order)
                for each, order in zip(results, self._orders, strict=True)
            )
        return arranged_as(iter(results), self.captured.arranged)

    def _run_new(self, tensors: Sequence[Any]) -> tuple[Any, ...]:
        """The results for a number of rows that has no program, or whose program is new."""
        if self.engine.device == "cpu":
            rest()
        result = self.dynamic(*tensors)
        results = result if isinstance(result, tuple) else (result,)
        return tuple(each.to(dtype) for each, dtype in zip(results, self._dtypes, strict=True))

    def _direct_part(self, shapes: Any, executable: Executable) -> CompiledPart:
        """What runs a program on tensors where they lie."""
        part = replace(self.parts[0].part, graph=self._of_rows(shapes[self._first][0]))
        taken = CompiledPart(part, executable, self.engine.memory)
        if len(self._direct_parts) >= 2 * self._named_batch.keep:
            self._direct_parts.clear()
        self._direct_parts[shapes] = taken
        return taken


class NamedPrograms(Programs):
    """Programs by the types of arguments, whatever their number of rows is.

    Attributes:
        refused: why there is none for such arguments.
    """

    def __init__(self, name: str, limit: int) -> None:
        super().__init__(name, limit, "types of arguments")
        self.refused: dict[Any, str] = {}

    def reasons_of(self, identity: object) -> list[str]:
        """Why a piece has no program for any number of rows, whatever its arguments."""
        return [why for key, why in self.refused.items() if key[0][0][0] == identity]

    def try_run(
        self,
        leaves: Leaves,
        named: Named,
        arranged: Any,
        make: Callable[[], NamedProgram],
        arguments: Sequence[Any] | None = None,
    ) -> tuple[bool, Any]:
        """Whether there is a program for such arguments, and what it gives."""
        whole = (arranged, tuple(named))
        if self._key(leaves, whole) in self.refused:
            return False, None
        try:
            return True, self.run(leaves, whole, make, arguments)
        except UnsupportedError as error:
            self._refuse(leaves, whole, error)
            return False, None

    def _refuse(self, leaves: Leaves, whole: Any, error: UnsupportedError) -> None:
        if len(self.refused) >= _REFUSED:
            self.refused.clear()
        self.refused[self._key(leaves, whole)] = str(error)
        log.info("%s: each batch has a program of its own: %s", self._name, error)

    def _key(self, leaves: Leaves, arranged: Any) -> Any:
        _, named = arranged
        pairs = zip(leaves, named, strict=True)
        return (arranged, *(key_of_leaf(leaf, batch) for leaf, batch in pairs))


def symbols_of(module: Any) -> Named | None:
    """Which arguments of a piece have the batch, where PyTorch has given it a symbol: tensors whose
    first axis is that symbol, and the symbol itself; None if there is no such one."""
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    values = [node.meta.get("example_value") for node in placeholders]
    first, behind = set(), set()
    for value in values:
        if isinstance(value, torch.Tensor):
            axes = [str(size) if isinstance(size, torch.SymInt) else None for size in value.shape]
            first.update(axes[:1])
            behind.update(axes[1:])
    found = sorted(each for each in first if each is not None)
    if len(found) != 1 or any(found[0] in str(each) for each in behind):
        return None
    (batch,) = found
    return [
        str(value.shape[0]) == batch and isinstance(value.shape[0], torch.SymInt)
        if isinstance(value, torch.Tensor) and value.dim()
        else isinstance(value, torch.SymInt) and str(value) == batch
        for value in values
    ]


def with_rows(leaves: Leaves, named: Named, rows: int) -> list[Any]:
    """Such arguments for another batch, of zeros."""
    return [
        leaf if not has else _zeros(leaf, rows) if isinstance(leaf, torch.Tensor) else rows
        for leaf, has in zip(leaves, named, strict=True)
    ]


def _zeros(tensor: torch.Tensor, rows: int) -> torch.Tensor:
    made = tensor.new_zeros((rows, *tensor.shape[1:]))
    last = torch.channels_last
    lies_so = tensor.dim() == 4 and tensor.is_contiguous(memory_format=last)
    return made if tensor.is_contiguous() or not lies_so else made.contiguous(memory_format=last)


def another(rows: int, dim: Dim) -> int:
    """A number of rows in range beside this one: the least, at which most code differs.

    UnsupportedError if there is none.
    """
    if dim.least == dim.most:
        raise UnsupportedError(f"{dim.name!r} has one size")
    return dim.least if rows != dim.least else dim.least + dim.multiple
