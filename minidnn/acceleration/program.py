"""A captured program as compiled parts and PyTorch's operations, which run in order.

Operations that are known and supported are taken: they are grouped in parts, and each part is
compiled.  The others are left to PyTorch.  Where PyTorch runs operations around a part, entering
and leaving the part costs time, and a cost model leaves parts that would gain less.
"""

from __future__ import annotations

import contextvars
import logging
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from minidnn._torch_internals import OpOverload, add_each, copy_each, pytree
from minidnn.acceleration.engine import Engine, memory_of
from minidnn.acceleration.overlaps import Overlaps
from minidnn.acceleration.part import CompiledPart
from minidnn.acceleration.watch import Watch
from minidnn.errors import UnsupportedError
from minidnn.frontends.torch.aten.call import arguments_of, key_of
from minidnn.frontends.torch.captured import Captured, Held, reader_of
from minidnn.frontends.torch.convert import Part, convert, judge_operations
from minidnn.frontends.torch.memory import SHARED, Memory
from minidnn.frontends.torch.partition import Level, levels
from minidnn.graph import ir
from minidnn.graph import operators as ops

log = logging.getLogger(__name__)

_SHARES = "a result is in the memory of something else"
_CHANNELS_LAST = (0, 2, 3, 1)
GAINS_LESS = "its part would gain less than entering and leaving it costs"
MOVES = "it only moves elements, which PyTorch does without a kernel"


#: Whether programs compute without writing to arguments or buffers, as when one is prepared.
REHEARSING: contextvars.ContextVar[bool] = contextvars.ContextVar("rehearsing", default=False)


class OverlapError(UnsupportedError):
    """A tensor that a program writes to shares memory with another one, or has other strides."""


class SizedProgram:
    """A network for arguments of one size.

    Attributes:
        sizes: the types of the arguments, as text.
        left: why each operation that PyTorch runs is left to it.
        parts: the compiled parts, in order.
        starts_early: whether the program can be launched before its weights are checked, and the
            result be discarded: a GPU has its own copy of the weights and runs asynchronously,
            PyTorch runs no operation, and nothing is written back.
        places: which of the arguments the parts and operations take.
        direct: the one part, where it takes the arguments by address and gives the results.
    """

    def __init__(
        self,
        captured: Captured,
        engine: Engine,
        name: str,
        sizes: str,
        strict: bool = False,
        among: bool = False,
    ) -> None:
        """among: whether PyTorch runs code before or after the program."""
        self._among = among
        self.captured = captured
        self.engine = engine
        self.name = name
        self.sizes = sizes
        prices = engine.is_priced and not strict
        self.levels, self.left = self._divided(prices)
        if strict and self.left:
            raise UnsupportedError(f"strict=True, and not all of {name} is taken:\n{self.rest()}")
        graph = captured.module.graph
        self._results: Any = next(n for n in graph.nodes if n.op == "output").args[0]
        #: The placeholders that parts write to themselves, and the result written to each.
        self._own = own_writes = self._own_writes()
        #: The placeholders to which the first results are written after a run.
        self._writes = [node for _, node in captured.writes if node not in own_writes]
        self._results = [result for result in self._results if result not in own_writes.values()]
        self._read_first = _read_first(captured, self._results, self._writes)
        self.watch = self._watching()
        if self.watch.uncounted:
            log.warning(
                "%s: %d weights are tensors of inference mode, whose writes PyTorch does not "
                "count; call refresh() after any",
                name,
                self.watch.uncounted,
            )
        self.compile()

    def _divided(self, prices: bool) -> tuple[list[Level], dict[fx.Node, str]]:
        """The levels of taken and left operations, and the reason for each left one.

        A part that gains less than it costs is left, too, where ``prices`` are known and PyTorch
        runs operations around it (around the whole program, if it is among others)."""

        def drop(part: Part, has_others: bool) -> str | None:
            if (why := moves_alone(part)) is not None or not prices:
                return why
            is_among_others = self._among or has_others
            return GAINS_LESS if is_among_others and gain(part, _is_contiguous) <= 0 else None

        return divided(self.captured, self.engine, self.engine.why_not, drop)

    def _own_writes(self) -> Mapping[fx.Node, fx.Node]:
        """The placeholders that parts write to themselves, and the result written to each."""
        return {}

    def _watching(self) -> Watch:
        """Makes the watch that tells whether the weights are still those that are compiled in."""
        held = (h for node, h in self.captured.held.items() if node.users)
        return Watch(held, _statistics(self.captured))

    def compile(self) -> None:
        """Compiles the parts with the weights as they are now."""
        self.watch.renew()
        self.parts: list[CompiledPart] = []
        for place, level in enumerate(self.levels):
            if level.taken:
                name = f"{self.name}.{len(self.parts)}"
                part = convert(level.nodes, self.captured.constants, self.captured.tensor, name)
                executable = self.engine.compile(part.graph)
                later = self.levels[place + 1 :]
                followed = not all(level.taken for level in later)
                among = len(self.levels) > 1
                memory = self.engine.memory
                self.parts.append(CompiledPart(part, executable, memory, followed, among))
        self._overlaps = Overlaps(self.captured) if self.captured.has_writes else None
        self._runner, held, self.places = self._build()
        self._read = reader_of(held)
        is_one_part = len(self.levels) == 1 and self.levels[0].taken and not held
        self._direct = self.parts[0] if is_one_part and self._is_direct() else None
        on_gpu = self.engine.memory != "cpu"
        self.starts_early = on_gpu and self._direct is not None and not self.captured.has_writes
        is_addressed = self._direct is not None and self._direct.is_addressed
        self.direct = self._direct if is_addressed and not self.captured.has_writes else None
        is_one_result = len(self._results) == 1 and not self.captured.has_writes
        self._is_bare = is_one_result and self.captured.arranged == pytree.tree_structure(0)

    def _is_direct(self) -> bool:
        """Whether the one part takes the arguments and gives the results in their own layouts."""
        part = self.parts[0].part
        if any(order_of(node.meta["val"]) is not None for node in part.outputs):
            return False
        given = self.captured.given
        taken = [given.get(node) for node in part.inputs]
        return taken == self.places and tuple(self._results) == part.outputs

    def run(self, leaves: Sequence[Any]) -> Any:
        """Runs the program; returns the network's result for the leaves of its arguments.

        PyTorch's gradients must be off.

        OverlapError, before anything is computed, if a tensor that is written to shares memory
        with another, or has other strides than the captured one.
        """
        if self._overlaps is not None:
            if self._overlaps.are_in(leaves):
                raise OverlapError(
                    "with a tensor to write to that shares memory with another argument, a "
                    "parameter or a buffer"
                )
            if self._overlaps.are_strided_otherwise(leaves):
                raise OverlapError(
                    "with a tensor to write to that has other strides than the one it was captured "
                    "with"
                )
        if self._direct is not None:
            result = self._direct.forward(*[leaves[place] for place in self.places])
            if self._is_bare:
                return result
            results: Sequence[Any] = result if isinstance(result, tuple) else (result,)
        else:
            results = self._runner(*self._read(), *map(leaves.__getitem__, self.places))
        if self._writes or self.captured.counted:
            results = self._write_back(results, leaves)
        return arranged_as(iter(results), self.captured.arranged)

    def _write_back(self, results: Sequence[Any], leaves: Sequence[Any]) -> list[Any]:
        """Writes the results that the network writes in place; returns the other results."""
        written, others = list(results[: len(self._writes)]), list(results[len(self._writes) :])
        quiet: list[tuple[Any, Any]] = []
        if REHEARSING.get():
            return others
        for place in self._read_first:
            written[place] = written[place].clone()
        for node, result in zip(self._writes, written, strict=True):
            target = self._tensor_of(node, leaves)
            if node in self.captured.untaped:
                quiet.append((target, result))
            else:
                target.copy_(result)
        counted = [self._tensor_of(node, leaves) for node in self.captured.counted]
        with torch.no_grad():
            if quiet:
                copy_each(*map(list, zip(*quiet, strict=True)))
            if counted:
                add_each(counted, 1)
        return others

    def _tensor_of(self, node: fx.Node, leaves: Sequence[Any]) -> Any:
        """The tensor that a placeholder stands for."""
        if node in self.captured.held:
            return self.captured.held[node].tensor
        return leaves[self.captured.given[node]]

    def rest(self) -> str:
        """Describes the operations that are left, one line for each operator and reason."""
        labels: dict[str, list[str]] = {}
        for node, reason in self.left.items():
            if node.target is operator.getitem:
                continue
            text = f"{_operation(node)}: {reason}"
            labels.setdefault(text, []).append(self.captured.label(node))
        lines = []
        for text, where in labels.items():
            times = "" if len(where) == 1 else f" ({len(where)} times)"
            shown = ", ".join(where[:4]) + (", ..." if len(where) > 4 else "")
            lines.append(f"  {shown}: {text}{times}")
        return "\n".join(lines)

    def why_nothing(self) -> str:
        """Why there is no part: the operations left, or that there is nothing to compute."""
        if rest := self.rest():
            return rest
        if any(isinstance(result, fx.Node) for result in self._results):
            return "  it computes nothing: its results are what it is given or holds, or views"
        return "  no tensor is among its results"

    def _build(self) -> tuple[Callable[..., Any], list[Any], list[int]]:
        """Builds one function of the parts and the left operations; returns it with the held
        tensors and the places of the arguments that it takes."""
        builder = _Builder(self.captured)
        parts = iter(self.parts)
        for level in self.levels:
            if level.taken:
                builder.part(next(parts))
            else:
                builder.left(level.nodes)
        return builder.finish(self._results)


def arranged_as(results: Iterator[Any], arranged: Any) -> Any:
    """Results as nested containers, by their tree.  PyTorch's ``tree_unflatten`` does the same,
    but makes plain tuples of sizes (``x.shape``)."""
    if arranged.is_leaf():
        return next(results)
    children = [arranged_as(results, each) for each in arranged.children()]
    if arranged.type is torch.Size:
        return torch.Size(children)
    return pytree.SUPPORTED_NODES[arranged.type].unflatten_fn(children, arranged.context)


class _Builder:
    """Builds the FX graph that calls parts and left operations, level by level."""

    def __init__(self, captured: Captured) -> None:
        self._captured = captured
        self._graph = fx.Graph()
        self._modules: dict[str, Any] = {}
        self._parts: dict[str, Callable[..., Any]] = {}
        self._found: dict[fx.Node, fx.Node] = {}
        self._held: list[fx.Node] = []
        self._given: list[fx.Node] = []

    def part(self, part: CompiledPart) -> None:
        """Adds a call of a part."""
        name = f"part{len(self._modules)}"
        self._modules[name] = part
        self._parts[name] = part.forward
        given = tuple(self.value(node) for node in part.part.inputs)
        result = self._graph.call_module(name, given)
        outputs = part.part.outputs
        for place, node in enumerate(outputs):
            value = result
            if len(outputs) > 1:
                value = self._graph.call_function(operator.getitem, (result, place))
            if (order := order_of(node.meta["val"])) is not None:
                # A later operation may be a view that only these strides allow.
                value = self._graph.call_function(ordered, (value, order))
            self._found[node] = value

    def left(self, nodes: Iterable[fx.Node]) -> None:
        """Adds operations that PyTorch runs."""
        for node in nodes:
            self._found[node] = self._graph.node_copy(node, self.value)

    def value(self, node: fx.Node) -> fx.Node:
        """The new node of a captured one; placeholders and constants are added on first use."""
        if node not in self._found:
            if node.op == "placeholder":
                self._found[node] = self._graph.placeholder(node.name)
                (self._held if node in self._captured.held else self._given).append(node)
            elif node.op == "get_attr":
                target = str(node.target)
                self._modules[target] = operator.attrgetter(target)(self._captured.module)
                self._found[node] = self._graph.get_attr(target)
            else:
                self._found[node] = self._graph.node_copy(node, self.value)
        return self._found[node]

    def finish(self, results: Any) -> tuple[Callable[..., Any], list[Any], list[int]]:
        """Returns the function, and its inputs: the held tensors, and the places of arguments."""
        self._graph.output(fx.map_arg(results, self.value))
        order = [*self._held, *self._given]
        self._placeholders_first([self._found[node] for node in order])
        held = [self._captured.held[node] for node in self._held]
        module = fx.GraphModule(self._modules, self._graph)
        # Parts have no hooks: forward is called directly, not the module.
        vars(module).update(self._parts)
        return module.forward, held, [self._captured.given[node] for node in self._given]

    def _placeholders_first(self, placeholders: Sequence[fx.Node]) -> None:
        first = next(iter(self._graph.nodes))
        for placeholder in placeholders:
            if placeholder is not first:
                first.prepend(placeholder)
            else:
                first = first.next


def divided(
    captured: Captured,
    engine: Engine,
    judge: Callable[[ir.Graph], str | None],
    drop: Callable[[Part, bool], str | None],
    leave: Callable[[fx.Node], str | None] = lambda node: None,
    trained: bool = False,
) -> tuple[list[Level], dict[fx.Node, str]]:
    """The levels of taken and left operations, and the reason for each left one.

    judge: why a graph cannot be run; drop: why a part is left, given whether there is more than it;
    leave: why an operation is left that could be taken.  Views that only describe the memory of a
    result are left without a reason.
    """
    operations = captured.operations
    reasons = {node: elsewhere(node, engine.memory) for node in operations}
    left = {node: reason for node, reason in reasons.items() if reason is not None}
    left.update((node, _SHARES) for node in operations if SHARED in node.meta)
    judge_operations(operations, captured.constants, captured.tensor, judge, left, trained=trained)
    for node in operations:
        if node not in left and (reason := leave(node)) is not None:
            left[node] = reason
    while True:
        found = levels(captured.module.graph, left, captured.constants)
        dropped: dict[fx.Node, str] = {}
        for level in found:
            if level.taken:
                part = convert(
                    level.nodes, captured.constants, captured.tensor, "part", trained=trained
                )
                why = drop(part, len(found) > 1)
                dropped.update((node, why) for node in level.nodes if why is not None)
        if not dropped:
            return found, {node: why for node, why in left.items() if SHARED not in node.meta}
        left.update(dropped)


def _read_first(captured: Captured, results: Sequence[Any], writes: Sequence[fx.Node]) -> list[int]:
    """Which of the results that are written to placeholders share memory that is written to: they
    are copied before any write."""
    if not writes:
        return []
    memory = Memory(captured.module.graph)
    written = {storage for node in writes for storage in memory.of(node)}
    numbered = enumerate(results[: len(writes)])
    return [place for place, node in numbered if written & set(memory.of(node))]


def elsewhere(node: fx.Node, memory: str) -> str | None:
    """Why an operation is not for the engine's device: a tensor of it is on another one."""
    for each in (node, *node.all_input_nodes):
        value = each.meta.get("val")
        for tensor in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(tensor, torch.Tensor) and memory_of(tensor) != memory:
                return f"{each.name} is on {tensor.device}"
    return None


def moves_alone(part: Part) -> str | None:
    """Why a part that computes nothing is not taken; None for one that does."""
    idle = (ops.Identity, ops.Dropout)
    is_idle = all(n.op.kind == "movement" or isinstance(n.op, idle) for n in part.graph.nodes)
    return MOVES if is_idle else None


def _is_contiguous(node: fx.Node) -> bool:
    return order_of(node.meta["val"]) is None


def _statistics(captured: Captured) -> list[Held]:
    """The weights that are running statistics of a batch normalization."""
    operands = {
        operand: None
        for node in captured.module.graph.nodes
        if "batch_norm" in key_of(node)
        for name, operand in arguments_of(node).items()
        if name in ("running_mean", "running_var")
    }
    return [captured.held[operand] for operand in operands if operand in captured.held]


def order_of(value: Any) -> tuple[int, ...] | None:
    """The axes in memory order, the largest stride first; None for a contiguous tensor."""
    last = torch.channels_last
    if value.is_contiguous():
        return None
    if value.dim() == 4 and value.is_contiguous(memory_format=last):
        return _CHANNELS_LAST
    strided_axes = [
        axis for axis, size in enumerate(value.shape) if size > 1 and value.stride(axis)
    ]
    by_stride = iter(sorted(strided_axes, key=value.stride, reverse=True))
    order = tuple(next(by_stride) if axis in strided_axes else axis for axis in range(value.dim()))
    return None if order == tuple(range(value.dim())) else order


def ordered(tensor: torch.Tensor, order: Sequence[int]) -> torch.Tensor:
    """The tensor with its axes in this memory order: a copy, unless they are."""
    if tuple(order) == _CHANNELS_LAST:
        return tensor.contiguous(memory_format=torch.channels_last)
    inverse = sorted(range(len(order)), key=order.__getitem__)
    return tensor.permute(*order).contiguous().permute(inverse)


def _operation(node: fx.Node) -> str:
    target: Any = node.target
    return str(target) if isinstance(target, OpOverload) else key_of(node)


# The cost model of the CPU engine against eager PyTorch: float32, two threads.  The figures are
# rough ones, from parts of timm's networks (convnextv2_atto, mobilevit_xxs, vit_tiny, resnetv2_50)
# that were timed both ways on two cores of Zen 3.  They err on the side of leaving a part.

#: Seconds of overhead of a part's call: Python, and the allocation of its results.
_CALL = 60e-6
#: Seconds for each byte of a part's inputs and outputs, to transpose it to or from the layout that
#: the part computes in; and where PyTorch's tensor is not contiguous, so that it is copied too.
_MOVED, _COPIED = 80e-12, 250e-12
#: Seconds that fusing an operation saves, besides a pass over memory.
_FUSED = 10e-6
#: Seconds for each byte of such a pass.
_PASS = 1 / 45e9
#: Seconds that a convolution, or another contraction, saves; and seconds per scalar operation.
_CONVOLUTION, _CONVOLVED = 30e-6, 1.5e-12
_CONTRACTION, _CONTRACTED = 20e-6, 0.5e-12


def gain(part: Part, is_contiguous: Callable[[fx.Node], bool]) -> float:
    """The seconds by which a part is expected to be faster than PyTorch's operations, including
    the cost of its inputs and outputs; less than 0 for a part that is slower.

    is_contiguous: whether the tensor of a captured node is contiguous.
    """
    return sum(map(_saved, part.graph.nodes)) - _crossing(part, is_contiguous)


def _saved(node: ir.Node) -> float:
    """The seconds that a node saves in a part."""
    types = [tuple(value.type for value in each) for each in (node.inputs, node.outputs)]
    if node.op.kind == "movement" or isinstance(node.op, (ops.Identity, ops.Dropout)):
        return 0.0  # mostly views, in PyTorch as in a part
    cost = node.op.cost(*types)
    if isinstance(node.op, ops.Conv2d):
        return _CONVOLUTION + cost.operations * _CONVOLVED
    if node.op.kind == "contraction":
        return _CONTRACTION + cost.operations * _CONTRACTED
    return _FUSED + cost.bytes * _PASS


def _crossing(part: Part, is_contiguous: Callable[[fx.Node], bool]) -> float:
    """The seconds that entering and leaving a part cost."""
    ends = [
        *zip(part.inputs, part.graph.inputs, strict=True),
        *zip(part.outputs, part.graph.outputs, strict=True),
    ]
    moved = (
        value.type.bytes * (_MOVED if is_contiguous(node) else _COPIED) for node, value in ends
    )
    return _CALL + sum(moved)
