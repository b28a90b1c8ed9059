"""Kernels that compute every element independently: the steps after a bare contraction, and copies.

Neighbouring threads take neighbouring channels where all tensors are channels-last, neighbouring
pixels where all are planar, with accesses as wide as alignment allows; else single elements.

Kernels for planes of any size, which may also compute windows, take rows, columns and strides as
arguments.  A thread computes one position of one channel; each result has the bits that
:mod:`.sequence` and :func:`print_pointwise` give it, except for the sign of a zero.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ...fusion.operations import Operation, copy_operation, operation_of
from ...fusion.stacks import is_tensor_operand
from ...graph.expression import Instruction
from ...graph.ir import Node, Value
from ...graph.types import HALF_DTYPES, TensorType
from ...kernels.ops import region
from ...kernels.ops.planes import PlaneStrides
from ..codegen.code import Code
from .expressions import narrowed, print_as
from .kernels import ANY_SIZE, Launch
from .prelude import TYPES
from .tensor import Tensor, is_regular, step_of

THREADS = 256
_WIDEST = 16  # bytes of one access


@dataclass(frozen=True)
class Argument:
    """What a step reads: the "chain" (the result of the step before), the "tensor" or "vector" of
    that index, or a "number" that is an argument of the kernel."""

    kind: str
    index: int = 0


CHAIN = Argument("chain")


@dataclass(frozen=True)
class PointStep:
    """Straight-line code over arguments; its result is the chain of the next step."""

    code: tuple[Instruction, ...]
    arguments: tuple[Argument, ...]


def print_pointwise(
    batch: int,
    inputs: Sequence[Tensor],
    output: Tensor,
    vectors: Sequence[str] = (),
    steps: Sequence[PointStep] = (),
    round_steps: bool = False,
) -> Launch:
    """The kernel of a chain of steps that begins with ``inputs[0]``; without steps, a copy.

    With ``round_steps`` each step's result is rounded to the output's dtype.

    Pointers are the inputs, one vector with a number per channel for each dtype in ``vectors``,
    and the output, which may be one of the inputs.
    """
    grid = _Grid(batch, (*inputs, output))
    code = Code()
    pointers = [f"const {TYPES[t.dtype]} *x{i}" for i, t in enumerate(inputs)]
    pointers += [f"const {TYPES[dtype]} *v{i}" for i, dtype in enumerate(vectors)]
    pointers.append(f"{TYPES[output.dtype]} *y")
    with code.block(f'extern "C" __global__ void @({", ".join(pointers)})'):
        code.line("const unsigned int t = blockIdx.x * blockDim.x + threadIdx.x;")
        code.line(f"if (t >= {grid.count}u) return;")
        grid.print_position(code)
        lanes = grid.lanes
        for i, tensor in enumerate(inputs):
            code.line(f"float a{i}[{lanes}];")
            code.line(f"md_load<{lanes}>(a{i}, x{i} + {grid.address(tensor)});")
        code.line(f"float r[{lanes}];")
        with code.unrolled(f"for (int j = 0; j < {lanes}; j++)"):
            rounded = TYPES[output.dtype] if round_steps else None
            vector = f"md_value(v{{}}[{grid.channel}])".format
            value = print_chain(code, steps, vector, output.dtype, rounded)
            code.line(f"r[j] = {value};")
        code.line(f"md_store<{lanes}>(y + {grid.address(output)}, r);")
    return Launch.named("pointwise", code, -(-grid.count // THREADS), THREADS)


def print_chain(
    code: Code,
    steps: Sequence[PointStep],
    vector: Callable[[int], str],
    dtype: str,
    round_to: str | None = None,
) -> str:
    """Prints the steps for lane ``j``, from ``a0[j]`` on, for a final result that is stored as
    ``dtype``; returns the name of the result.

    Tensor i is ``a<i>[j]``, number i is ``k<i>``, and ``vector`` gives the expression of an element
    of a vector; with ``round_to`` each step's result is rounded to that type.
    """
    value = "a0[j]"
    for step in steps:
        names = []
        for argument in step.arguments:
            if argument.kind == "chain":
                names.append(value)
            elif argument.kind == "tensor":
                names.append(f"a{argument.index}[j]")
            elif argument.kind == "number":
                names.append(f"k{argument.index}")
            else:
                names.append(code.fresh())
                code.line(f"const float {names[-1]} = {vector(argument.index)};")
        value = print_as(code, dtype, step.code, names)
        if round_to is not None:
            rounded = code.fresh()
            code.line(f"const float {rounded} = md_round<{round_to}>({value});")
            value = rounded
    return value


class _Grid:
    """Which thread takes which elements: ``lanes`` of them, in the ``order`` of channels-last
    tensors ("last"), of planar ones ("planar"), or of "any"."""

    def __init__(self, batch: int, tensors: Sequence[Tensor]) -> None:
        self.batch = batch
        self.shape = tensors[0]
        sizes = {(t.channels, t.rows, t.columns) for t in tensors}
        assert len(sizes) == 1, f"tensors of different sizes: {tensors}"
        self.plane = self.shape.rows * self.shape.columns
        self.wide = any(_span(t, batch) >= 1 << 31 for t in tensors)
        self.lanes = 1
        if all(_is_last(t) for t in tensors):
            self.order = "last"
            self.lanes = self._widest(tensors, self.shape.channels)
        elif all(_is_dense_plane(t) for t in tensors):
            self.order = "planar"
            self.lanes = self._widest(tensors, self.plane)
        else:
            self.order = "any"
        self.count = batch * self.shape.channels * self.plane // self.lanes

    def _widest(self, tensors: Sequence[Tensor], run: int) -> int:
        """The elements of one access, if ``run`` of them are contiguous in each tensor."""
        for lanes in (8, 4, 2):
            if run % lanes == 0 and all(
                t.itemsize * lanes <= _WIDEST and all(step % lanes == 0 for step in self._steps(t))
                for t in tensors
            ):
                return lanes
        return 1

    def _steps(self, t: Tensor) -> list[int]:
        """The strides between runs of contiguous elements, and the offset of the first."""
        if self.order == "last":
            return [t.offset, *([step_of(t)] if self.batch * self.plane > 1 else [])]
        steps = ((t.image, self.batch), (t.channel, t.channels))
        return [t.offset, *(step for step, size in steps if size > 1)]

    def print_position(self, code: Code) -> None:
        """Declares the position of thread ``t``: channel ``c``, and pixel ``p`` of all images, or
        image ``n`` and pixel ``q``."""
        kind = "long long" if self.wide else "unsigned int"
        shape = self.shape
        if self.order == "last":
            groups = shape.channels // self.lanes
            code.line(f"const {kind} p = t / {groups}u;")
            code.line(f"const unsigned int c = t % {groups}u * {self.lanes}u;")
            return
        runs = self.plane // self.lanes
        code.line(f"const unsigned int q = t % {runs}u * {self.lanes}u;")
        code.line(f"const unsigned int c = t / {runs}u % {shape.channels}u;")
        code.line(f"const {kind} n = t / {runs * shape.channels}u;")

    def address(self, t: Tensor) -> str:
        """The offset of the thread's first element in a tensor."""
        offset = f" + {t.offset}" if t.offset else ""
        if self.order == "last":
            return f"p * {step_of(t)} + c{offset}"
        if self.order == "planar":
            return f"n * {t.image} + c * {t.channel} + q{offset}"
        columns = self.shape.columns
        where = f"q / {columns}u * {t.row} + q % {columns}u * {t.pixel}"
        return f"n * {t.image} + c * {t.channel} + {where}{offset}"

    @property
    def channel(self) -> str:
        """The channel of lane ``j``."""
        return "c + j" if self.order == "last" else "c"


def _is_last(t: Tensor) -> bool:
    """Whether channels are contiguous, and there is a single stride from pixel to pixel."""
    return (t.channel == 1 or t.channels == 1) and is_regular(t)


def _is_dense_plane(t: Tensor) -> bool:
    """Whether the pixels of each plane are contiguous."""
    return (t.pixel == 1 or t.columns == 1) and (t.row == t.columns or t.rows == 1)


def _span(t: Tensor, batch: int) -> int:
    """Elements from the pointer to the end of a tensor."""
    return (
        t.offset
        + (batch - 1) * t.image
        + (t.channels - 1) * t.channel
        + (t.rows - 1) * t.row
        + t.columns * t.pixel
    )


_MOST_RANK = 4


def has_any_size(nodes: Sequence[Node]) -> bool:
    """Whether :func:`print_for_any_size` supports nodes."""
    operands = [
        v for node in nodes for i, v in enumerate(node.inputs) if is_tensor_operand(node, i)
    ]
    results = [value for node in nodes for value in node.outputs]
    # Axes of values of several ranks are others than those of planes.
    ranks = {value.type.rank for value in (*operands, *results) if value.type.size > 1}
    fits = len(ranks) <= 1 and max(ranks, default=0) <= _MOST_RANK
    return fits and region.why_not(nodes, TYPES) is None


def print_for_any_size(
    nodes: Sequence[Node], outputs: Sequence[Value], tensors: Callable[[Value], Tensor]
) -> tuple[Launch, tuple[Value, ...]]:
    """The kernel of nodes of which :func:`has_any_size` is true, and the values that its pointers
    point to.

    Args:
        tensors: the layout of a value that they read, or of an output.
    """
    operations = [_narrowed(operation_of(node, 0)) for node in nodes]
    kernel, values = region.lower(operations, outputs, tensors, ANY_SIZE)
    return Launch.of(kernel), values


def print_chain_for_any_size(
    batch: int,
    inputs: Sequence[Tensor],
    output: Tensor,
    vectors: Sequence[str] = (),
    steps: Sequence[PointStep] = (),
    round_steps: bool = False,
) -> Launch:
    """The kernel of a chain of steps for planes of any size; else as :func:`print_pointwise`."""

    def value(tensor: Tensor, dtype: str) -> Value:
        return Value(TensorType((batch, tensor.channels, tensor.rows, tensor.columns), dtype), "")

    tensors = [value(tensor, tensor.dtype) for tensor in inputs]
    weights = [Value(TensorType((output.channels,), dtype), "") for dtype in vectors]
    chain, result = tensors[0], value(output, output.dtype)
    operations: list[Operation] = [] if steps else [copy_operation(chain, result)]
    for i, step in enumerate(steps, 1):
        by_kind = {"chain": [chain], "tensor": tensors, "vector": weights}
        operands = tuple(by_kind[each.kind][each.index] for each in step.arguments)
        passed = value(output, output.dtype if round_steps else "float32")
        chain = result if i == len(steps) else passed
        code = narrowed(step.code) if output.dtype in HALF_DTYPES else step.code
        operations.append(Operation(chain, operands, code=code))
    layouts: dict[Value, PlaneStrides] = dict(
        zip((*tensors, result), (*inputs, output), strict=True)
    )
    layouts |= {each: PlaneStrides.over_channels(each.dtype, output.channels) for each in weights}
    operands = *tensors, *weights
    return Launch.of(
        region.lower(operations, (result,), layouts.__getitem__, ANY_SIZE, operands)[0]
    )


def _narrowed(operation: Operation) -> Operation:
    """An operation with the code that its output's dtype needs (:func:`.expressions.narrowed`)."""
    narrow = operation.output.dtype in HALF_DTYPES and operation.code
    return replace(operation, code=narrowed(operation.code)) if narrow else operation
