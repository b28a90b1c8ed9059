"""explain and profile: a plan as a table of its regions, with predicted or measured times.

``explain`` also says why an automatic precision was chosen; ``profile`` compares the time of each
region with the machine's roofline.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from minidnn.errors import GraphError, UnsupportedError
from minidnn.fusion.functions import LayerFunction
from minidnn.fusion.region import FusedContraction, FusedSequence, Region
from minidnn.graph.ir import Constant, Node
from minidnn.graph.types import FLOATS, INT8_DTYPES, plain
from minidnn.measure import Estimate
from minidnn.runtime.plan import Plan
from minidnn.runtime.program import CountedProgram, DescribedProgram, Program, TimedProgram


def explain(
    plan: Plan,
    device: str,
    precision: str,
    measured: str | None = None,
    chosen: AutomaticPrecision | None = None,
) -> str:
    """Describes what each region computes, from which layers, and its predicted cost.

    ``measured``: a table of measured times, which is shown instead of predictions.
    ``chosen``: the choice of the precision, with ``precision="auto"``.
    """
    lines = [title(plan, device, precision)]
    lines += [] if chosen is None else str(chosen).splitlines()
    lines += _predicted(plan) if measured is None else measured.splitlines()
    arena = plan.arena
    lines.append(
        f"arena {arena.bytes / 1e6:.2f} MB (at least {arena.lower_bound / 1e6:.2f} MB in use at "
        "once)"
    )
    for group in plan.annotations.groups:
        lines.append(f"image after image: {group[0].name} to {group[-1].name}")
    if plan.annotations.groups:
        lines.append(f"arena of each thread for that: {plan.group_arena.bytes / 1e6:.2f} MB")
    for name, note in plan.notes.items():
        lines.append(f"note: {name}: {note}")
    return "\n".join(lines)


#: Abbreviations of dtypes, shown after shapes where a graph has several of them.
_SHORT = {"float16": "f16", "bfloat16": "bf16", "float32": "f32", "float64": "f64"}
_SHORT |= {"int8": "i8", "uint8": "u8"}


def title(plan: Plan, device: str, precision: str) -> str:
    """The headline of a table: the graph, its device and precision, and the target of the cost
    model."""
    return f"{plan.graph.name} on {device} in {precision}, priced for {plan.target.device.name}"


def _predicted(plan: Plan) -> list[str]:
    """The lines of the table with predicted times."""
    lines = [
        f"{'region':<28} {'kind':<12} {'output':<20} {'Mop':>9} {'MB':>7} {'us':>8}  layers",
    ]
    total = 0.0
    kernels = 0
    dtypes = {v.dtype for v in plan.graph.values if v.dtype in (*FLOATS, *INT8_DTYPES)}
    mixed = len(dtypes) > 1 or not dtypes.isdisjoint(INT8_DTYPES)
    for node in plan.graph.nodes:
        kind = kind_of(plan, node)
        free = kind in ("view", "in place")
        operations, moved = (0, 0) if free else work(node)
        seconds = 0.0 if free else predicted_seconds(plan, node)
        total += seconds
        kernels += not free
        shape = "x".join(map(str, node.outputs[0].shape))
        if mixed:
            shape += f" {_precision(node)}".rstrip()
        lines.append(
            f"{short(node.name, 28):<28} {kind:<12} {shape:<20} {operations / 1e6:9.2f} "
            f"{moved / 1e6:7.2f} {seconds * 1e6:8.1f}  {describe(node)}"
        )
    lines.append(f"{kernels} kernels, {total * 1e3:.3f} ms predicted")
    return lines


def kind_of(plan: Plan, node: Node) -> str:
    """The kind of a node of an optimized graph: its kind of region, or why it takes no kernel."""
    if _is_free(plan, node):
        return "view" if plan.annotations.is_view(node) else "in place"
    if node.op.name == "Concat":
        copies = sum(1 for _ in plan.annotations.copied(node))
        return f"copy {copies}/{len(node.inputs)}"
    if isinstance(node.op, FusedSequence):
        return f"{len(node.op.kernel[0].steps)} step" + "s" * (len(node.op.kernel[0].steps) > 1)
    if isinstance(node.op, FusedContraction):
        return "contraction"
    return node.op.kind


def _is_free(plan: Plan, node: Node) -> bool:
    """Whether a node takes no kernel: a view, or a concatenation whose operands were written in
    place."""
    annotations = plan.annotations
    is_in_place = node.op.name == "Concat" and not any(True for _ in annotations.copied(node))
    return is_in_place or annotations.is_view(node)


def work(node: Node) -> tuple[int, int]:
    """The scalar operations of a node, and the bytes that it reads and writes, each counted once,
    weights included."""
    cost = node.op.cost(
        tuple(value.type for value in node.inputs), tuple(value.type for value in node.outputs)
    )
    weights = node.op.constant_bytes if isinstance(node.op, Region) else 0
    return cost.operations, cost.bytes + weights


def weight_bytes(node: Node) -> int:
    """The bytes of the weights that a node reads, which :func:`work` includes."""
    if isinstance(node.op, Region):
        return node.op.constant_bytes
    return sum(value.type.bytes for value in node.inputs if isinstance(value, Constant))


def _precision(node: Node) -> str:
    """The abbreviated dtype of a region's output, after that of int8 inputs if it is another."""
    output_dtype = _SHORT.get(node.outputs[0].dtype, "")
    byte_inputs = [
        v.dtype for v in node.inputs if v.dtype in INT8_DTYPES and not isinstance(v, Constant)
    ]
    if not byte_inputs or byte_inputs[0] == node.outputs[0].dtype:
        return output_dtype
    return f"{_SHORT[byte_inputs[0]]}>{output_dtype}"


def predicted(plan: Plan) -> float:
    """The seconds that all of a plan's nodes are predicted to take."""
    return sum(
        predicted_seconds(plan, node) for node in plan.graph.nodes if not _is_free(plan, node)
    )


def predicted_seconds(plan: Plan, node: Node) -> float:
    """The seconds that the cost model predicts for a node."""
    operations, moved = work(node)
    return plan.target.seconds(operations, moved, contracts(node))


def inner_nodes(node: Node) -> Sequence[Node]:
    """The nodes that a node of an optimized graph computes."""
    return node.op.body.nodes if isinstance(node.op, (Region, LayerFunction)) else (node,)


def contracts(node: Node) -> bool:
    """Whether most of a region's operations are multiply-adds."""
    return any(inner.op.kind == "contraction" for inner in inner_nodes(node))


def describe(node: Node) -> str:
    """Describes a region by its operators, with the layers of those that have weights."""
    if not isinstance(node.op, Region):
        return f"{node.source}: {node.op.name}"
    names = " + ".join(_operator(n) for n in node.op.body.nodes)
    cut = f" [{node.op.origin}: {node.op.schedule}]" if isinstance(node.op, FusedSequence) else ""
    return f"{names}{cut}"


def _operator(node: Node) -> str:
    weights = any(isinstance(value, Constant) for value in node.inputs)
    return f"{node.op.name}({node.source})" if weights else node.op.name


def short(name: str, width: int) -> str:
    """A name in at most ``width`` characters: its end, if it is longer."""
    return name if len(name) <= width else "..." + name[-(width - 3) :]


@dataclass(frozen=True)
class PrecisionTrial:
    """The result of a trial of one precision against float32.

    Attributes:
        precision: its name.
        error: the largest relative error of an output; infinite where results are not finite, None
            where nothing was computed.
        output: the output with that error; "" if there is only one.
        seconds: the median time of a call; None where it was not timed.
        speed: how many times as fast as float32 it is; None where it was not timed.
        refusal: why it was not tried; "" if it was.
    """

    precision: str
    error: float | None = None
    output: str = ""
    seconds: float | None = None
    speed: Estimate | None = None
    refusal: str = ""

    def facts(self, tolerance: float) -> str:
        """Describes error and time, or says why there are none."""
        if self.error is None:
            return self.refusal
        where = f" at output {self.output!r}" if self.output else ""
        text = f"error {percent(self.error)}{where} of {percent(tolerance)} allowed"
        if self.seconds is not None:
            text += f", {self.speed:.2f} times as fast as float32, {milliseconds(self.seconds)}"
        return text


@dataclass(frozen=True)
class AutomaticPrecision:
    """The choice of ``precision="auto"``, with the trials of all precisions.

    Attributes:
        chosen: the precision.
        tolerance: the allowed relative error.
        inputs: the inputs on which errors were measured, in words.
        seconds: the median time of a call in float32; None where no other precision was timed.
        trials: the trials of the device's other precisions for inference.
    """

    chosen: str
    tolerance: float
    inputs: str
    seconds: float | None
    trials: Sequence[PrecisionTrial]

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        facts_of = {trial.precision: trial.facts(self.tolerance) for trial in self.trials}
        facts = facts_of.pop(self.chosen, "")
        if self.seconds is not None and not facts:
            facts = milliseconds(self.seconds)
        inputs = f", on {self.inputs}" if any(t.error is not None for t in self.trials) else ""
        only = "" if self.trials else ", as the device has no other for inference"
        yield f"precision auto: {self.chosen}{f' ({facts})' if facts else ''}{only}{inputs}"
        for precision, why in facts_of.items():
            yield f"precision auto: {precision} left out: {why}"


def percent(share: float) -> str:
    """Formats a share in percent, with two digits."""
    return f"{100 * share:.2g} %" if math.isfinite(share) else "infinite"


def milliseconds(seconds: float) -> str:
    """Formats a time in milliseconds, with three digits."""
    return f"{1e3 * seconds:.3g} ms"


@dataclass(frozen=True)
class RegionTime:
    """One region: the median of its measured time, and the bounds of that time.

    Attributes:
        name, kind, layers: as in ``explain``.
        operations: scalar operations; a multiply-add counts as two.
        bytes: the bytes read and written, each counted once, weights included.
        seconds: the measured time, on all threads.
        predicted_seconds: the time by the cost model that chose how to fuse.
        executed: the operations of the algorithm that is used, which may be fewer.
        arithmetic_seconds: the time of these at the machine's arithmetic rate alone.
        memory_seconds: the time of the bytes alone, at the rate of the memory level that they fit.
        launch_seconds: the cost model's time of a kernel launch.
    """

    name: str
    kind: str
    layers: tuple[str, ...]
    operations: int
    bytes: int
    seconds: float
    predicted_seconds: float
    executed: int
    arithmetic_seconds: float
    memory_seconds: float
    launch_seconds: float

    @property
    def bound_seconds(self) -> float:
        """The lower bound by the machine's rates, as arithmetic and memory accesses overlap."""
        return max(self.arithmetic_seconds, self.memory_seconds)

    @property
    def causes(self) -> dict[str, float]:
        """The measured seconds, split: the larger bound of memory and arithmetic, then the launch,
        then the unexplained rest.  Each part is limited to the time that is left."""
        bound = min(self.seconds, self.bound_seconds)
        is_memory = self.memory_seconds >= self.arithmetic_seconds
        launch = min(self.seconds - bound, self.launch_seconds)
        return {
            "memory": bound if is_memory else 0.0,
            "arithmetic": 0.0 if is_memory else bound,
            "launch": launch,
            "unexplained": self.seconds - bound - launch,
        }

    @property
    def roofline(self) -> float:
        """The fraction of the roofline that is reached.  Above 1 where the data is in a faster
        cache than the level that the bound assumes."""
        return self.bound_seconds / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True)
class Profile:
    """The measured times of all regions, in order; ``str`` gives the table.

    Attributes:
        regions: the time of each region.
        descriptions: the operators, layers and algorithm of each region.
        runs: the number of runs of which times are medians.
    """

    regions: tuple[RegionTime, ...]
    descriptions: tuple[str, ...]
    runs: int
    #: For each algorithm, why it does not compute regions, with the number of regions.
    refusals: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """The sum of the regions' seconds."""
        return sum(region.seconds for region in self.regions)

    def __str__(self) -> str:
        lines = [
            f"{'region':<28} {'kind':<12} {'Mop':>9} {'MB':>7} {'us':>8} {'share':>6} "
            f"{'predicted':>9} {'roofline':>8}  layers"
        ]
        total = self.seconds or 1.0
        for region, text in zip(self.regions, self.descriptions, strict=True):
            lines.append(
                f"{short(region.name, 28):<28} {region.kind:<12} {region.operations / 1e6:9.2f} "
                f"{region.bytes / 1e6:7.2f} {region.seconds * 1e6:8.1f} "
                f"{100 * region.seconds / total:5.1f}% {region.predicted_seconds * 1e6:9.1f} "
                f"{100 * region.roofline:7.0f}%  {text}"
            )
        bound = sum(region.bound_seconds for region in self.regions)
        lines.append(
            f"{len(self.regions)} kernels, {self.seconds * 1e3:.3f} ms measured (medians of "
            f"{self.runs} runs), {100 * bound / total:.0f}% of the roofline"
        )
        for name, reasons in self.refusals.items():
            counted = ", ".join(f"{reason} ({count})" for reason, count in reasons.items())
            lines.append(f"not by {name}: {counted}")
        return "\n".join(lines)


def profile(
    plan: Plan,
    program: Program,
    device: str,
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    runs: int,
) -> Profile:
    """Times every region ``runs`` times.

    GraphError if ``runs`` is not an int of at least 1, UnsupportedError if the program cannot time
    regions.
    """
    runs = plain(runs)
    if type(runs) is not int or runs < 1:
        raise GraphError(f"runs={runs!r}; valid is a number of runs of at least 1")
    if not isinstance(program, TimedProgram):
        raise UnsupportedError(f"device {device!r} does not time regions; 'cpu' and 'cuda' do")
    program.run(inputs, outputs)  # a warm-up, which touches memory for the first time
    measured = [program.seconds_of_nodes(inputs, outputs) for _ in range(runs)]
    regions, descriptions = [], []
    refusals: dict[str, Counter[str]] = defaultdict(Counter)
    for node in measured[0]:
        operations, moved = work(node)
        seconds = statistics.median(times[node] for times in measured)
        executed = operations
        if isinstance(program, CountedProgram):
            executed -= program.spared_operations(node)
        multiplies = contracts(node)
        regions.append(
            RegionTime(
                node.name,
                kind_of(plan, node),
                tuple(dict.fromkeys(inner.source for inner in inner_nodes(node))),
                operations,
                moved,
                seconds,
                predicted_seconds(plan, node),
                executed,
                program.bound_seconds(executed, 0, multiplies),
                program.bound_seconds(0, moved, multiplies),
                plan.target.device.overhead,
            )
        )
        details = program.details(node) if isinstance(program, DescribedProgram) else ""
        descriptions.append(describe(node) + (f" [{details}]" if details else ""))
        reasons = program.refusals(node) if isinstance(program, DescribedProgram) else {}
        for name, reason in reasons.items():
            refusals[name][reason] += 1
    return Profile(tuple(regions), tuple(descriptions), runs, refusals)
