"""Programs of whole networks for a dynamic batch: one for any number of rows, not one a size.

A network is captured for two batches.  If the two graphs differ in the number of rows alone, one
:class:`~minidnn.dynamic.executable.DynamicExecutable` computes all batches of the range.
"""

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
"""Keys of arguments for which the reason that there is no program is remembered, at most."""

#: The leaves of a call's arguments.
Leaves = Sequence[Any]
#: Whether each leaf has the batch: as its first axis, or as its value, if it is a number.
BatchMask = Sequence[bool]


@dataclass(frozen=True)
class DynamicBatchPart:
    """The only part of a network, compiled for any number of rows."""

    part: Part
    executable: DynamicExecutable


@dataclass(frozen=True)
class DynamicBatch:
    """The dynamic batch of a network.

    Attributes:
        dim: its name and its range.
        has_batch: whether each argument has the batch.
        other: the network, captured for another batch.
        keep: how many programs are kept (2 at the least).
    """

    dim: Dim
    has_batch: BatchMask
    other: Captured
    keep: int


class DynamicBatchProgram(SizedProgram):
    """The program of a network for any number of rows in a range.

    UnsupportedError if PyTorch runs some of it, or its rows depend on each other.
    """

    def __init__(
        self, captured: Captured, batch: DynamicBatch, engine: Engine, name: str, sizes: str
    ) -> None:
        self._batch = batch
        super().__init__(captured, engine, name, sizes)

    def compile(self) -> None:
        """Compiles for one row and for the captured batch; others are compiled as they come."""
        self.watch.renew()
        captured, batch = self.captured, self._batch
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
        #: The memory order of each result's axes; None if all results are contiguous.
        self._orders = orders if any(each is not None for each in orders) else None
        batched_inputs = {place for place, each in enumerate(self._takes) if batch.has_batch[each]}
        if not batched_inputs:
            raise UnsupportedError("no argument that it reads has the batch")
        executable = self._executable(part.graph, batched_inputs)
        executable.warm([part.graph.inputs[min(batched_inputs)].shape[0]])
        #: Programs that were run, as parts that take tensors by address, by their input shapes.
        self._direct_parts: dict[Any, CompiledPart] = {}
        self.parts = [DynamicBatchPart(part, executable)]  # type: ignore[list-item]
        self.starts_early = False

    def _executable(self, graph: Graph, with_rows: set[int]) -> DynamicExecutable:
        """Makes the executable for any batch; UnsupportedError if graphs of two batches differ."""
        batch, other = self._batch, self._batch.other
        second = convert(other.operations, other.constants, other.tensor, self.name).graph
        first = min(with_rows)
        if [len(second.inputs), len(second.outputs)] != [len(graph.inputs), len(graph.outputs)]:
            raise UnsupportedError("it is another for another batch")
        small, large = sorted((graph, second), key=lambda each: each.inputs[first].shape[0])
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
        """The executable of the one part."""
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
        """The results for a number of rows whose program is missing or not ready yet."""
        if self.engine.device == "cpu":
            rest()
        result = self.dynamic(*tensors)
        results = result if isinstance(result, tuple) else (result,)
        return tuple(each.to(dtype) for each, dtype in zip(results, self._dtypes, strict=True))

    def _direct_part(self, shapes: Any, executable: Executable) -> CompiledPart:
        """Returns a part that runs a program on tensors by their addresses."""
        part = replace(self.parts[0].part, graph=self._of_rows(shapes[self._first][0]))
        direct = CompiledPart(part, executable, self.engine.memory)
        if len(self._direct_parts) >= 2 * self._batch.keep:
            self._direct_parts.clear()
        self._direct_parts[shapes] = direct
        return direct


class DynamicBatchPrograms(Programs):
    """Programs by the types of arguments, whatever their number of rows is.

    Attributes:
        refused: the reasons why there is no program, by the keys of arguments.
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
        has_batch: BatchMask,
        arranged: Any,
        make: Callable[[], DynamicBatchProgram],
        arguments: Sequence[Any],
    ) -> tuple[bool, Any]:
        """Whether there is a program for these arguments, and its result."""
        arrangement = (arranged, tuple(has_batch))
        if self._key(leaves, arrangement) in self.refused:
            return False, None
        try:
            return True, self.run_by(leaves, arrangement, make, arguments)[1]
        except UnsupportedError as error:
            self._refuse(leaves, arrangement, error)
            return False, None

    def _refuse(self, leaves: Leaves, arrangement: Any, error: UnsupportedError) -> None:
        if len(self.refused) >= _REFUSED:
            self.refused.clear()
        self.refused[self._key(leaves, arrangement)] = str(error)
        log.info("%s: each batch has a program of its own: %s", self._name, error)

    def _key(self, leaves: Leaves, arranged: Any) -> Any:
        _, has_batch = arranged
        pairs = zip(leaves, has_batch, strict=True)
        return (arranged, *(key_of_leaf(leaf, batch) for leaf, batch in pairs))


def symbols_of(module: Any) -> BatchMask | None:
    """Which arguments of a piece have the batch, for which Dynamo has made a symbolic size: tensors
    whose first axis is that symbol, and the symbol itself; None if there is no single such symbol,
    or another axis depends on it."""
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    values = [node.meta.get("example_value") for node in placeholders]
    first_axes, other_axes = set(), set()
    for value in values:
        if isinstance(value, torch.Tensor):
            axes = [str(size) if isinstance(size, torch.SymInt) else None for size in value.shape]
            first_axes.update(axes[:1])
            other_axes.update(axes[1:])
    symbols = sorted(each for each in first_axes if each is not None)
    if len(symbols) != 1 or any(symbols[0] in str(each) for each in other_axes):
        return None
    (batch,) = symbols
    return [
        str(value.shape[0]) == batch and isinstance(value.shape[0], torch.SymInt)
        if isinstance(value, torch.Tensor) and value.dim()
        else isinstance(value, torch.SymInt) and str(value) == batch
        for value in values
    ]


def with_rows(leaves: Leaves, has_batch: BatchMask, rows: int) -> list[Any]:
    """The arguments with another batch: zeros in the same memory format, and ``rows`` itself."""
    return [
        leaf if not has else _zeros(leaf, rows) if isinstance(leaf, torch.Tensor) else rows
        for leaf, has in zip(leaves, has_batch, strict=True)
    ]


def _zeros(tensor: torch.Tensor, rows: int) -> torch.Tensor:
    zeros = tensor.new_zeros((rows, *tensor.shape[1:]))
    last = torch.channels_last
    is_last = tensor.dim() == 4 and tensor.is_contiguous(memory_format=last)
    return zeros if tensor.is_contiguous() or not is_last else zeros.contiguous(memory_format=last)


def another(rows: int, dim: Dim) -> int:
    """A second number of rows in range: the least, for which code most often has a branch.

    UnsupportedError if there is none.
    """
    if dim.least == dim.most:
        raise UnsupportedError(f"{dim.name!r} has one size")
    return dim.least if rows != dim.least else dim.least + dim.multiple
