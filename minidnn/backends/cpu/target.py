"""The CPU as a target of the passes: layouts, predicted times, and refusals of fusions."""

from __future__ import annotations

from dataclasses import dataclass

from ...fusion.device import Device
from ...fusion.region import (
    FusedContraction,
    FusedNormalization,
    FusedSequence,
    FusedSums,
    Region,
    parts_of,
)
from ...fusion.stacks import mixes_floats, reads_otherwise
from ...fusion.target import Target
from ...graph.expression import argument, linearize
from ...graph.ir import Constant, Node, Value
from ...graph.layout import PLANAR, Layout, blocked
from ...graph.operator import Contraction, Reshaping, Windowed, is_integer_product
from ...graph.operators import (
    AdaptiveAvgPool2d,
    Concat,
    Conv2d,
    Conv2dInputGradient,
    Conv2dWeightGradient,
    Formula,
    Linear,
    Reorder,
)
from ...graph.types import INT8_DTYPES
from .contraction import NominalWork, why_not_epilogue, why_not_in_blocks, work_of
from .contraction.choose import nominal_speed
from .contraction.gradients import why_not as why_no_gradient
from .contraction.problem import FEW_CHANNELS
from .isa import ISAS, Isa, bfloat16_isa, with_int8
from .operators.matmul import reads_weight_unpacked
from .regions import REGION_KERNELS
from .tensor import ELEMENTS, tensor_of


@dataclass(frozen=True)
class CpuTarget(Target):
    """The CPU as passes see it.  Values of rank 4 have a blocked layout where kernels allow it: as
    many channels of a pixel are contiguous as a vector register has lanes."""

    lanes: int = 16
    accuracy: str = "normal"
    #: The dtype of float values in memory between kernels.
    precision: str = "float32"
    #: Whether kernels serve any spatial size.
    any_size: bool = False

    @property
    def storage(self) -> str:
        return self.precision

    @property
    def keeps_interface(self) -> bool:
        """Inputs and outputs stay float32, since NumPy has no bfloat16."""
        return True

    @property
    def multiplies_int8(self) -> bool:
        return self.precision == "float32"

    @property
    def prefers_linear(self) -> bool:
        return self.precision == "bfloat16"

    def layouts(self, node: Node) -> tuple[Layout, ...]:
        lanes = blocked(self.lanes)
        if any(value.dtype not in ELEMENTS for value in (*node.inputs, *node.outputs)):
            return (PLANAR,)
        if isinstance(node.op, (FusedContraction, Contraction)) and is_integer(parts_of(node).node):
            return (lanes if self._in_blocks(node) else PLANAR,)
        if isinstance(node.op, Reshaping):
            _, channels, rows, columns = node.inputs[0].type.plane
            as_is = rows * columns == 1 and channels % self.lanes == 0
            as_is &= node.output.type.rank != 4
            return (lanes,) if as_is else (PLANAR,)
        if isinstance(node.op, FusedSequence) or self._averages_any(node):
            return (lanes, PLANAR)
        takes_blocks = (
            *(FusedContraction, FusedNormalization, FusedSums, Contraction, Concat),
            *(AdaptiveAvgPool2d, Conv2dInputGradient, Windowed),
        )
        if not isinstance(node.op, takes_blocks) or isinstance(node.op, Linear):
            return (PLANAR,)
        return (PLANAR,) if _joins_elsewhere(node) else (lanes,)

    def reads_any(self, node: Node, value: Value) -> bool:
        """Sequences transpose rows of NCHW while they read and write them; long averages have
        kernels for both layouts."""
        return isinstance(node.op, FusedSequence) or self._averages_any(node)

    def reads(self, node: Node, value: Value, layout: Layout) -> Layout:
        if isinstance(node.op, Conv2dWeightGradient):
            is_stem_input = value.shape[1] <= FEW_CHANNELS and value is not node.inputs[1]
            return PLANAR if is_stem_input else blocked(self.lanes)
        if isinstance(node.op, Conv2dInputGradient):
            return layout if value is node.inputs[0] else PLANAR
        if self._is_stem(node) and value is node.inputs[0]:
            return PLANAR
        return PLANAR if value is _weight(node) else layout

    def _averages_any(self, node: Node) -> bool:
        """Whether a node is an average with a kernel for each layout."""
        op = node.op
        return isinstance(op, AdaptiveAvgPool2d) and (
            self.any_size or op.is_long(node.inputs[0].type)
        )

    def _is_stem(self, node: Node) -> bool:
        """Whether a node is a contraction of images with few channels, which are read as NCHW."""
        if not isinstance(node.op, (Contraction, FusedContraction)):
            return False
        source = parts_of(node).source
        return source.type.rank == 4 and source.shape[1] <= FEW_CHANNELS

    def refuse_convolution_gradient(self, node: Node) -> str | None:
        return why_no_gradient(node, self.lanes)

    def refuse_fusion(self, region: Region) -> str | None:
        if (kernel := REGION_KERNELS.get(type(region))) is not None:
            return kernel.why_not(region)
        return super().refuse_fusion(region)

    def refuse_prologue(self, contraction: Node, node: Node) -> str | None:
        if isinstance(contraction.op, Linear):
            return "a linear layer reads its input without a prologue"
        if is_integer(contraction):
            return "its int8 input is packed without a prologue"
        op = contraction.op
        if isinstance(op, Conv2d) and op.groups == 1 and _is_cast(node):
            return None  # each number is packed once, and zero stays zero
        return super().refuse_prologue(contraction, node)

    def refuse_epilogue(self, contraction: Node, node: Node) -> str | None:
        if reads_weight_unpacked(contraction, self.accuracy):
            return "its weight is read unpacked, and its result transposed"
        if isinstance(contraction.op, Linear) and contraction.output.type.rank != 2:
            return f"its values have rank {contraction.output.type.rank}"
        if is_integer(contraction):
            return why_not_epilogue(contraction, node)
        return reads_otherwise(node) or super().refuse_epilogue(contraction, node)

    def refuse_mixed(self, node: Node) -> str | None:
        dtypes = {value.dtype for value in (*node.inputs, *node.outputs)}
        if mixes_floats(node) and dtypes.isdisjoint(INT8_DTYPES):
            return None
        return super().refuse_mixed(node)

    def compute_seconds(self, node: Node) -> float:
        """A node's predicted time; that of convolutions is of the algorithms chosen for them."""
        seconds = super().compute_seconds(node)
        for inner in self._convolutions(node):
            types = tuple(v.type for v in inner.inputs), (inner.output.type,)
            seconds -= inner.op.operations(*types) / self.device.contraction_operations
            speed = nominal_speed(self._isa)
            seconds += self._work(inner).seconds * speed.threads / self.device.workers
        return seconds

    def weight_bytes(self, node: Node) -> int:
        """Bytes of the constants; weights of convolutions count as their algorithms pack them."""
        total = super().weight_bytes(node)
        for inner in self._convolutions(node):
            if isinstance(weight := inner.inputs[1], Constant):
                total += self._work(inner).weight_bytes - weight.type.bytes
        return total

    @property
    def _isa(self) -> Isa:
        isa = next(isa for isa in ISAS.values() if isa.lanes == self.lanes)
        return isa if self.precision == "float32" else bfloat16_isa(isa)

    def _convolutions(self, node: Node) -> list[Node]:
        """The convolutions of images in a node for which an algorithm is chosen."""
        inner = node.op.body.nodes if isinstance(node.op, Region) else (node,)
        convolutions = [n for n in inner if isinstance(n.op, Conv2d) and n.output.type.rank == 4]
        return [n for n in convolutions if not is_integer(n) or self._in_blocks(node)]

    def _in_blocks(self, node: Node) -> bool:
        """Whether an integer contraction is computed on blocks of channels."""
        return why_not_in_blocks(parts_of(node), with_int8(self._isa)) is None

    def _work(self, convolution: Node) -> NominalWork:
        layout = PLANAR if self._is_stem(convolution) else blocked(self.lanes)
        source = tensor_of(convolution.inputs[0].type, layout)
        result = tensor_of(convolution.output.type, blocked(self.lanes))
        isa = with_int8(self._isa) if is_integer(convolution) else self._isa
        return work_of(convolution, source, result, isa, self.accuracy)

    def refuse_batch_tiling(self, node: Node) -> str | None:
        kinds = (Region, Conv2d, Concat, Reorder, AdaptiveAvgPool2d)
        if any(value.dtype not in ELEMENTS for value in (*node.inputs, *node.outputs)):
            return "only dtypes that kernels have are packed image by image"
        contracts = isinstance(node.op, (Contraction, FusedContraction))
        if contracts and is_integer(parts_of(node).node) and not self._in_blocks(node):
            return "its integers are packed for all images at once"
        if _weight(node) is not None:
            return "its weights would be packed for every image"
        if isinstance(node.op, FusedSums):
            return "it adds up all images"
        return None if isinstance(node.op, kinds) else f"{node.op.name} reads whole batches"

    def refuse_slice(self, node: Node, value: Value, channel: int) -> str | None:
        if value.type.rank == 1 and isinstance(node.op, (FusedSums, Concat)):
            return None
        if not isinstance(node.op, (FusedSequence, Contraction, FusedContraction, Concat)):
            return f"{node.op.name} writes a value of its own"
        return self._refuse_lanes(value, channel)

    def refuse_part(self, node: Node, value: Value, channel: int) -> str | None:
        contracts = (Contraction, FusedContraction, Conv2dWeightGradient)
        kinds = (FusedSequence, FusedSums, Reorder, *contracts)
        if not isinstance(node.op, kinds) or value is _weight(node):
            return f"{node.op.name} reads a value of its own"
        return self._refuse_lanes(value, channel)

    def _refuse_lanes(self, value: Value, channel: int) -> str | None:
        """Why a value cannot be a view of a wider buffer that begins at ``channel``; None if it
        can."""
        if value.dtype not in ELEMENTS:
            return f"it is {value.dtype}"
        if value.type.rank != 4:
            return f"it has rank {value.type.rank}"
        if value.shape[1] % self.lanes:
            return f"its {value.shape[1]} channels are no multiple of {self.lanes} lanes"
        if channel % self.lanes:
            return f"channel {channel}, where it would begin, is no multiple of {self.lanes} lanes"
        return None


def _weight(node: Node) -> Value | None:
    """The operand that is a contraction's weight; None if that is a constant."""
    if not isinstance(node.op, (Contraction, FusedContraction)):
        return None
    weight = parts_of(node).node.inputs[1]
    if isinstance(node.op, FusedContraction):
        weight = dict(zip(node.op.body.inputs, node.inputs, strict=True)).get(weight, weight)
    return None if isinstance(weight, Constant) else weight


def _is_cast(node: Node) -> bool:
    """Whether a node casts float32 to bfloat16."""
    (source, *others), result = node.inputs, node.output
    return (
        not others
        and (source.dtype, result.dtype) == ("float32", "bfloat16")
        and isinstance(node.op, Formula)
        and linearize(node.op.body) == linearize(argument(0))
    )


def is_integer(node: Node) -> bool:
    """Whether a contraction is one of integers."""
    return is_integer_product(*(value.type for value in node.inputs))


def _joins_elsewhere(node: Node) -> bool:
    """Whether a node concatenates along another axis than channels."""
    return isinstance(node.op, Concat) and node.op.axis % node.output.type.rank != 1


def device_for(isa: Isa, threads: int) -> Device:
    """The cost model's figures for a processor with that ISA.

    Rough, from one Zen 5 core a thread: choices must not change from machine to machine or with
    its load, so they are not measured here.
    """
    return Device(
        name=f"CPU, {threads} threads, {isa.name}",
        workers=threads,
        operations=10.5e9 * isa.lanes * threads,
        contraction_operations=16e9 * isa.lanes * threads,
        bandwidth=25e9 * min(threads, 4),
        local_bandwidth=28e9 * isa.lanes * threads,
        stages_inputs=True,
        in_order=True,
        step_overhead=20e-9,
        local_bytes=1 << 20,
        near_bytes=52 << 10,
        shared_bytes=24 << 20,
        shared_bandwidth=60e9 * threads,
        lanes=isa.lanes,
        overhead=1e-6,
    )
