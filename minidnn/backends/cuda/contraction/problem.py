"""A contraction with its epilogue as plain data: all that a choice of algorithm depends on.

A linear layer is a 1x1 convolution of images of one pixel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ....cudnn.graph.spec import ALIGNMENT, TensorSpec
from ....fusion.region import FusedContraction, Parts, parts_of
from ....graph import operators as ops
from ....graph.expression import Instruction, argument, linearize
from ....graph.ir import Constant, Node, Value
from ....graph.operator import Operator
from ....graph.operators import Conv2d, Conv2dInputGradient, Conv2dWeightGradient, Linear
from ....graph.types import INT8_DTYPES, TensorType
from ....runtime.operand import KernelArgument
from ..pointwise import CHAIN, Argument, PointStep
from ..tensor import Tensor
from .epilogue_reduction import EpilogueReduction
from .gather import Gathering, gather_of, gather_precision, wants_gather
from .producer import Producer

Pair = tuple[int, int]
Direction = Literal["forward", "gradient of the image", "gradient of the filter"]
"""Which of result, image and filter a contraction computes from the other two."""
IMAGE_GRADIENT: Direction = "gradient of the image"
FILTER_GRADIENT: Direction = "gradient of the filter"


@dataclass(frozen=True)
class EpilogueStep:
    """One step of the epilogue.

    ``mode`` is cuDNN's name of it, "" for what only our kernels compute; "bias" adds vector
    ``index``, "add" adds tensor ``index`` of the others.
    """

    mode: str
    step: PointStep
    parameters: tuple[tuple[str, float], ...] = ()
    index: int = 0


@dataclass(frozen=True)
class ContractionProblem:
    """What is computed: ``y = stages(convolution(x, w))``, or a gradient of the convolution, which
    reads y, that is the gradient of its result, and writes x or w.

    Shapes are in NCHW order; ``vectors`` are the dtypes of the vectors over channels that stages
    read, ``others`` the further tensors that stages read, such as residuals.
    """

    x: Tensor
    w: TensorSpec
    y: Tensor
    batch: int
    padding: tuple[Pair, Pair]
    stride: Pair
    dilation: Pair
    groups: int
    stages: tuple[EpilogueStep, ...]
    others: tuple[Tensor, ...]
    vectors: tuple[str, ...]
    #: Whether image and result are NCHW; else NHWC.
    planar: bool
    tf32: bool
    accuracy: str = "normal"
    #: The prologue, which is computed on the image as it is read, and the dtypes of its vectors.
    before: tuple[PointStep, ...] = ()
    before_vectors: tuple[str, ...] = ()
    #: How the image is gathered first; ``w``, padding and stride are those for the gathered image.
    gather: Gathering | None = None
    direction: Direction = "forward"
    #: Whether every run must give the same bits.
    deterministic: bool = True
    #: The epilogue reduction over the result, if there is one.
    reduction: EpilogueReduction | None = None
    #: The producer of the gradient ``y`` that a gradient reads; ``y`` is stored, too.
    producer: Producer | None = None
    #: Of int8 and uint8: whether sums begin with numbers other than 0, or the padding is not 0.
    shifted: bool = False
    #: Whether only algorithms that need no compiler may compute it, so that its size may change.
    any_size: bool = False

    @property
    def made(self) -> Tensor:
        """The tensor that is written, unless that is the filter."""
        return self.x if self.direction == IMAGE_GRADIENT else self.y

    @property
    def passes(self) -> bool:
        """Whether the result is no output, but read by the epilogue reduction alone."""
        return self.reduction is not None and not self.reduction.keeps

    @property
    def is_integer(self) -> bool:
        """Whether it multiplies int8 or uint8, with sums in int32."""
        return self.x.dtype in INT8_DTYPES

    @property
    def numbers(self) -> int:
        """How many scalars stages read, stored before the weights (:mod:`.int8_filter`)."""
        arguments = (a for stage in self.stages for a in stage.step.arguments)
        return 1 + max((a.index for a in arguments if a.kind == "number"), default=-1)

    @property
    def gathered(self) -> Tensor:
        """The image that the convolution reads: ``x``, or what it is gathered to."""
        if self.gather is None:
            return self.x
        _, _, rows, columns = self.w.shape
        return self.gather.gathered(self.x, (self.y.rows, self.y.columns), (rows, columns))

    @property
    def input(self) -> TensorSpec:
        """The tensor that cuDNN reads: the gathered image, or the result of the prologue."""
        return spec_of(self.prepared if self.before else self.gathered, self.batch)

    @property
    def prepared(self) -> Tensor:
        """The dense image that the prologue writes where a kernel of its own computes it."""
        return packed(self.x, self.planar)

    @property
    def output(self) -> TensorSpec:
        return spec_of(self.y, self.batch)

    @property
    def packed(self) -> Tensor:
        """The result in a dense layout."""
        return packed(self.y, self.planar)

    @property
    def is_dense(self) -> bool:
        """Whether the result is not a slice of something wider."""
        return self.y == self.packed

    @property
    def is_exact(self) -> bool:
        """Whether products must be float32 products."""
        return self.x.dtype == "float32" and not self.tf32

    @property
    def is_pointwise(self) -> bool:
        """Whether it is a matrix product: each pixel depends on one pixel of the image."""
        plain = self.w.shape[2:] == (1, 1) and self.stride == (1, 1) and self.groups == 1
        return plain and self.padding == ((0, 0), (0, 0))

    @property
    def is_unfused(self) -> bool:
        """Whether nothing is fused with the contraction, and its result is dense."""
        fused = (self.stages, self.before, self.gather, self.producer, self.reduction)
        return not any(fused) and self.is_dense and not self.is_integer

    def describe(self) -> str:
        """One line for messages and cache entries."""
        sizes = "x".join(map(str, self.input.shape)), "x".join(map(str, self.w.shape))
        text = f"{self.x.dtype} {sizes[0]} by {sizes[1]}, stride {self.stride}"
        sums = f", with {len(self.reduction.results)} sums" if self.reduction is not None else ""
        if self.direction != "forward":
            producer = ", with what it reads" if self.producer is not None else ""
            return f"{self.direction} of {text}{producer}{sums}"
        stages = " + ".join(stage.mode or "code" for stage in self.stages) or "nothing"
        return f"{text}, then {stages}{sums}"


def packed(t: Tensor, planar: bool) -> Tensor:
    """Returns a tensor of the same size in a dense layout, planar (NCHW) or channels last."""
    if not planar:
        return dense(t)
    plane = t.rows * t.columns
    return replace(t, image=t.channels * plane, channel=plane, row=t.columns, pixel=1, offset=0)


def dense(t: Tensor) -> Tensor:
    """Returns a tensor of the same size in a dense layout, channels last."""
    row = t.columns * t.channels
    return replace(t, image=t.rows * row, channel=1, row=row, pixel=t.channels, offset=0)


@dataclass(frozen=True)
class Address:
    """A tensor's address: that many bytes after the beginning of a value's storage."""

    value: Value
    bytes: int


@dataclass(frozen=True)
class BytesOnly:
    """Constants of an int8 contraction that are stored before its weights: the bias in int32, the
    zero point of the image, and the scalars that stages read.  They are not part of the problem,
    so layers that differ in these alone share one."""

    bias: Constant | None
    zero: int
    numbers: tuple[float, ...]


@dataclass(frozen=True)
class BoundContraction:
    """A problem, and the values of the graph that are its operands and results."""

    problem: ContractionProblem
    source: Address
    weight: Value
    result: Address
    others: tuple[Address, ...]
    vectors: tuple[Value, ...]
    before_vectors: tuple[Value, ...]
    #: Values of the epilogue reduction: what it reads, what it stores, and the sums.
    reduction: tuple[Value, ...] = ()
    whole: BytesOnly | None = None


@dataclass(frozen=True)
class Addresses:
    """Addresses of a contraction's tensors, to which the problem's offsets are added."""

    x: KernelArgument
    w: KernelArgument
    y: KernelArgument
    others: tuple[KernelArgument, ...] = ()
    vectors: tuple[KernelArgument, ...] = ()
    before: tuple[KernelArgument, ...] = ()
    workspace: KernelArgument = 0
    #: Whether the filter and vectors are constants, which no work in flight writes.
    are_settled: bool = True
    #: Of the epilogue reduction: what it reads, what it stores, and the sums.
    reduction: tuple[KernelArgument, ...] = ()
    #: The operands of a gradient's producer, tensors first.
    producer: tuple[KernelArgument, ...] = ()


def spec_of(t: Tensor, batch: int) -> TensorSpec:
    """Describes a tensor to cuDNN, which is given its address: the pointer plus the offset."""
    align = (t.offset * t.itemsize) & -(t.offset * t.itemsize) or ALIGNMENT
    shape, strides = (batch, t.channels, t.rows, t.columns), (t.image, t.channel, t.row, t.pixel)
    return TensorSpec(shape, strides, t.dtype, min(ALIGNMENT, align))


def contraction_of(
    node: Node,
    tensor: Callable[[Value], Tensor],
    is_planar: Callable[[Value], bool],
    tf32: bool,
    accuracy: str,
    deterministic: bool,
) -> BoundContraction:
    """The contraction that a node of an optimized graph computes.

    ``tensor`` gives the layout of a value of the graph, ``is_planar`` whether it is NCHW.
    """
    parts = parts_of(node)
    outer: dict[Value, Value] = {parts.result: node.outputs[0]}
    if isinstance(node.op, FusedContraction):
        outer |= dict(zip(node.op.body.inputs, node.inputs, strict=True))
        outer |= dict(zip(node.op.body.outputs, node.outputs, strict=True))
    result = outer[parts.result]
    inner = parts.node
    source = outer.get(parts.source, parts.source)
    others = tuple(outer.get(value, value) for value in parts.others)
    stages, vectors = _stages(node, parts)
    before, before_vectors = _before(parts)
    op = inner.op
    weight = outer.get(inner.inputs[1], inner.inputs[1])
    if isinstance(op, Linear):
        batch = source.type.size // source.shape[-1]
        x, y = _rows(source), _rows(result)
        other_tensors = [_rows(value) for value in others]
        geometry, planar = Conv2d(), False
    else:
        assert isinstance(op, Conv2d)
        batch, geometry, planar = source.shape[0], op, is_planar(source)
        x, y = tensor(source), tensor(result)
        other_tensors = [tensor(value) for value in others]
    laid_out = (source, x), (result, y), *zip(others, other_tensors, strict=True)
    (x_at, x), (y_at, y), *extra = (_from_nearest(value, layout) for value, layout in laid_out)
    shape = (weight.shape[0], weight.shape[1], *(weight.shape[2:] or (1, 1)))
    padding, stride = geometry.padding, geometry.stride
    gather = None
    gathers = wants_gather(geometry, shape, gather_precision(x.dtype, tf32))
    if gathers and isinstance(op, Conv2d):
        first_padding, kernel = (padding[0][0], padding[1][0]), (shape[2], shape[3])
        gather = gather_of(stride, first_padding, kernel, shape[1], x.dtype, op.zero)
        taps = gather.taps(kernel)
        shape = (shape[0], gather.channels(shape[1], x.dtype), *taps)
        padding, stride, planar = ((0, 0), (0, 0)), (1, 1), False
    problem = ContractionProblem(
        x=x,
        w=TensorSpec(shape, weight_strides(shape, planar), weight.dtype),
        y=y,
        batch=batch,
        padding=padding,
        stride=stride,
        dilation=geometry.dilation,
        groups=geometry.groups,
        stages=stages,
        others=tuple(layout for _, layout in extra),
        vectors=tuple(value.dtype for value in vectors),
        planar=planar,
        tf32=tf32,
        accuracy=accuracy,
        before=before,
        before_vectors=tuple(value.dtype for value in before_vectors),
        gather=gather,
        deterministic=deterministic,
    )
    if parts.statistics:
        problem = replace(problem, reduction=moments_of(problem))
    inner_values = (vectors, before_vectors, parts.statistics)
    first, second, third = (tuple(outer.get(v, v) for v in values) for values in inner_values)
    others_at = tuple(address for address, _ in extra)
    bound = BoundContraction(problem, x_at, weight, y_at, others_at, first, second, third)
    if not problem.is_integer:
        return bound
    stages, numbers = _without_numbers(stages)
    bias = inner.inputs[2] if len(inner.inputs) > 2 else None
    assert bias is None or isinstance(bias, Constant), node
    shifted = op.zero != 0 or bias is not None
    problem = replace(problem, stages=stages, shifted=shifted)
    return replace(bound, problem=problem, whole=BytesOnly(bias, op.zero, numbers))


def gradient_of(
    node: Node,
    tensor: Callable[[Value], Tensor],
    is_planar: Callable[[Value], bool],
    tf32: bool,
    accuracy: str,
    deterministic: bool,
) -> BoundContraction:
    """A gradient of a convolution as the contraction that computes it; arguments are those of
    :func:`contraction_of`."""
    op = node.op
    if isinstance(op, Conv2dInputGradient):
        result, weight = node.inputs
        source, direction = node.output, IMAGE_GRADIENT
    else:
        assert isinstance(op, Conv2dWeightGradient)
        source, result = node.inputs
        weight, direction = node.output, FILTER_GRADIENT
    (x_at, x), (y_at, y) = (_from_nearest(value, tensor(value)) for value in (source, result))
    geometry, planar = op.convolution, is_planar(node.output)
    out, channels, rows, columns = weight.shape
    shape = (out, channels, rows, columns)
    problem = ContractionProblem(
        x=x,
        w=TensorSpec(shape, weight_strides(shape, planar), weight.dtype),
        y=y,
        batch=source.shape[0],
        padding=geometry.padding,
        stride=geometry.stride,
        dilation=geometry.dilation,
        groups=geometry.groups,
        stages=(),
        others=(),
        vectors=(),
        planar=planar,
        tf32=tf32,
        accuracy=accuracy,
        direction=direction,
        deterministic=deterministic,
    )
    return BoundContraction(problem, x_at, weight, y_at, (), (), ())


def has_one_layout(weight: Value) -> bool:
    """Whether a filter's elements have the same order in KCRS and KRSC layout."""
    _, channels, rows, columns = weight.type.plane
    return channels == 1 or rows * columns == 1


def _from_nearest(value: Value, layout: Tensor) -> tuple[Address, Tensor]:
    """The last aligned address before a value's first element, and the layout from there on: so
    equal problems at other offsets in a buffer are one."""
    offset = layout.offset % (ALIGNMENT // layout.itemsize)
    address = Address(value, (layout.offset - offset) * layout.itemsize)
    return address, replace(layout, offset=offset)


def weight_strides(shape: Sequence[int], planar: bool) -> tuple[int, ...]:
    """The strides of a dense filter in KCRS (planar) or KRSC order."""
    _, channels, rows, columns = shape
    size = channels * rows * columns
    if planar:
        return (size, rows * columns, columns, 1)
    return (size, 1, columns * channels, channels)


def _rows(value: Value) -> Tensor:
    """Views a value as rows of features, each an image of one pixel."""
    features = value.shape[-1]
    return Tensor(value.dtype, features, 1, 1, features, 1, features, features)


def moments_of(problem: ContractionProblem) -> EpilogueReduction:
    """The epilogue reduction to mean and variance of a problem's result."""
    y = problem.y
    shape = (problem.batch, y.channels, y.rows, y.columns)
    operators: tuple[tuple[Operator, tuple[int, ...]], ...] = (
        (ops.Reduce("mean", (0, 2, 3), dtype="float32"), (0,)),
        (ops.Variance("float32"), (0, 1)),
    )
    return EpilogueReduction((TensorType(shape, y.dtype),), operators, (1, 2))


_BIAS = PointStep(linearize(argument(0) + argument(1)), (CHAIN, Argument("vector", 0)))


def _stages(node: Node, parts: Parts) -> tuple[tuple[EpilogueStep, ...], tuple[Value, ...]]:
    """The epilogue, the bias first, and the vectors that it reads."""
    stages: list[EpilogueStep] = []
    vectors: dict[Value, None] = {}
    if len(parts.node.inputs) > 2 and parts.node.inputs[0].dtype not in INT8_DTYPES:
        vectors[parts.node.inputs[2]] = None
        stages.append(EpilogueStep("bias", _BIAS))
    chain = parts.node.output
    others = parts.others
    inner_nodes = node.op.body.nodes if isinstance(node.op, FusedContraction) else ()
    nodes = {inner.output: inner for inner in inner_nodes}
    for operation in parts.epilogue:
        arguments = []
        for value in operation.operands:
            operand = CHAIN if value is chain else Argument("tensor", 1 + others.index(value))
            arguments.append(operand)
        for vector in operation.vectors:
            index = list(vectors).index(vector.value) if vector.value in vectors else len(vectors)
            vectors[vector.value] = None
            arguments.append(Argument("vector", index))
        op = nodes[operation.output].op
        step = PointStep(operation.code, tuple(arguments))
        stages.append(_stage(op, step))
        chain = operation.output
    return tuple(stages), tuple(vectors)


def _without_numbers(
    stages: Sequence[EpilogueStep],
) -> tuple[tuple[EpilogueStep, ...], tuple[float, ...]]:
    """Stages that read their constants other than 0 as scalar arguments, and those constants."""
    numbers: list[float] = []
    rewritten = []
    for stage in stages:
        code, arguments = [], list(stage.step.arguments)
        for line in stage.step.code:
            if line.op == "constant" and repr(line.value) != "0.0":
                code.append(Instruction("argument", (), len(arguments)))
                arguments.append(Argument("number", len(numbers)))
                numbers.append(float(line.value or 0))
            else:
                code.append(line)
        rewritten.append(replace(stage, step=PointStep(tuple(code), tuple(arguments))))
    return tuple(rewritten), tuple(numbers)


def _before(parts: Parts) -> tuple[tuple[PointStep, ...], tuple[Value, ...]]:
    """The prologue on the image, and the vectors that it reads."""
    steps = []
    vectors: dict[Value, int] = {}
    for operation in parts.prologue:
        arguments = [CHAIN]
        for vector in operation.vectors:
            index = vectors.setdefault(vector.value, len(vectors))
            arguments.append(Argument("vector", index))
        steps.append(PointStep(operation.code, tuple(arguments)))
    return tuple(steps), tuple(vectors)


def _stage(op: Operator, step: PointStep) -> EpilogueStep:
    tensors = [a.index - 1 for a in step.arguments if a.kind == "tensor"]
    if isinstance(op, ops.Add) and len(tensors) == 1:
        return EpilogueStep("add", step, index=tensors[0])
    # cuDNN takes the larger of x and slope * x, which is the same for these slopes alone.
    if isinstance(op, ops.LeakyReLU) and 0.0 <= op.negative_slope <= 1.0:
        slope = (("relu_lower_clip_slope", float(op.negative_slope)),)
        return EpilogueStep("relu", step, slope)
    if isinstance(op, ops.ReLU6):
        return EpilogueStep("relu", step, (("relu_upper_clip", 6.0),))
    if isinstance(op, ops.ELU):
        return EpilogueStep("elu", step, (("elu_alpha", float(op.alpha)),))
    if isinstance(op, ops.GELU):
        return EpilogueStep("gelu" if op.approximate == "none" else "gelu_approx_tanh", step)
    names: dict[type[Operator], str] = {
        ops.ReLU: "relu",
        ops.Sigmoid: "sigmoid",
        ops.Tanh: "tanh",
        ops.SiLU: "swish",
    }
    return EpilogueStep(names.get(type(op), ""), step)
