"""The gradients of convolutions: which kernels compute them, and why none does.

Those of depthwise convolutions, in float32 or bfloat16, are printed here.  Their lanes are
channels.  For the weight gradient, a task computes some rows of a block of channels: for each row
of pixels and of the kernel, the sums of all taps stay in registers, and are then added to those of
the rows before.  Where there are few blocks, the rows are split into parts (split-K), whose partial
sums a second kernel adds in order.  All this follows from shapes, so the bits are the same for
every number of threads.
"""

from __future__ import annotations

from collections.abc import Callable

from ....graph.ir import Node, Value
from ....graph.operators import Conv2dInputGradient, Conv2dWeightGradient
from ....graph.transposed import Pair
from ...codegen.code import Code
from ...codegen.kernel import KernelSource
from ..isa import Isa
from ..stage import Staged, Workspace, stage
from ..tensor import ELEMENTS, Element, Tensor
from .dot_product.weight_gradient import print_pixel_products
from .problem import FEW_CHANNELS
from .weight_gradient import print_weight_gradient

_DTYPES = ({"float32"}, {"bfloat16"})


def why_not(node: Node, lanes: int) -> str | None:
    """Why there is no kernel for a gradient; None if there is one.

    The gradient for the input is composed of convolutions elsewhere.  For a depthwise convolution
    with a stride these would be many, each of few pixels, so there is a kernel for it.
    """
    op, dtypes = node.op, {value.dtype for value in (*node.inputs, *node.outputs)}
    assert isinstance(op, (Conv2dInputGradient, Conv2dWeightGradient))
    groups = op.convolution.groups
    if dtypes not in _DTYPES:
        return f"it is {', '.join(sorted(dtypes))}"
    if isinstance(op, Conv2dInputGradient):
        if not _is_depthwise(node):
            return "it is no depthwise convolution's"
        return "its stride is 1" if op.convolution.stride == (1, 1) else None
    if _is_depthwise(node):
        # Tensors of few channels are NCHW, as pictures are.
        return f"it has {groups} channels" if groups <= FEW_CHANNELS else None
    if groups > 1 and any(v.shape[1] // groups % lanes for v in node.inputs):
        return f"the channels of its {groups} groups are no multiples of {lanes} lanes"
    return None


def _is_depthwise(node: Node) -> bool:
    """Whether each input channel has a kernel of its own, and gives one output channel."""
    op = node.op
    assert isinstance(op, (Conv2dInputGradient, Conv2dWeightGradient))
    x = node.output if isinstance(op, Conv2dInputGradient) else node.inputs[0]
    gradient = node.inputs[0 if isinstance(op, Conv2dInputGradient) else 1]
    return op.convolution.groups == x.shape[1] == gradient.shape[1]


def print_gradient(node: Node, tensor: Callable[[Value], Tensor], isa: Isa) -> Staged:
    """Prints the kernels of a gradient for which :func:`why_not` returns None; the pointers are
    the operands and the result.

    Args:
        tensor: returns the layout of a value.
    """
    op, first, batch = node.op, node.inputs[0], node.inputs[0].shape[0]
    if isinstance(op, Conv2dInputGradient):
        rows, columns = node.inputs[1].shape[2:]
        tensors = tensor(first), tensor(node.output)
        return print_depthwise_input_gradient(op, batch, *tensors, (rows, columns), isa)
    assert isinstance(op, Conv2dWeightGradient)
    operands = tensor(first), tensor(node.inputs[1])
    if _is_depthwise(node):
        return print_depthwise_gradient(op, batch, *operands, isa)
    if first.dtype == "bfloat16":
        return print_pixel_products(op, batch, *operands, isa)
    return print_weight_gradient(op, batch, *operands, isa)


_ENOUGH_TASKS = 32
"""So many tasks keep all threads busy."""
_CHAINS = 8
"""Independent sums that hide the latency of multiply-adds."""

_SIZES = (
    *("channels", "parts", "rows", "out_rows", "out_columns", "x_rows", "x_columns"),
    *("x_image", "x_plane", "g_image", "g_plane", "down", "over", "down_apart", "over_apart"),
    *("before_y", "before_x", "first", "last"),
)
"""The numbers that the kernels read: ``rows`` is those of the gradient in all images; from column
``first`` up to ``last`` all taps of a row are inside the input."""


def print_depthwise_gradient(
    op: Conv2dWeightGradient, batch: int, x: Tensor, gradient: Tensor, isa: Isa
) -> Staged:
    """Prints the kernels of a depthwise convolution's weight gradient; the pointers are the input,
    the gradient and the result.

    Args:
        batch: images.
        x, gradient: the layouts of the operands, both with blocks of lanes.
    """
    blocks = -(-x.channels // isa.lanes)
    rows = batch * gradient.rows
    parts = min(rows, -(-_ENOUGH_TASKS // blocks))
    taps = op.kernel[0] * op.kernel[1]
    sizes = _sizes(op, x, gradient, parts, rows)
    work = isa.lanes * -(-rows // parts) * gradient.columns * taps
    element, lanes = ELEMENTS[x.dtype], isa.lanes
    kernel = _sums(op.kernel, element, lanes, whole=parts == 1)
    if parts == 1:
        return Staged((stage(kernel, (0, 1, 2), sizes, blocks, work),))
    stages = (
        stage(kernel, (0, 1, Workspace(0)), sizes, blocks * parts, work),
        stage(
            _split_k_reduction(taps, element, lanes),
            (Workspace(0), 2),
            sizes,
            blocks,
            parts * lanes,
        ),
    )
    return Staged(stages, 4 * blocks * parts * taps * lanes)


def _sizes(
    op: Conv2dWeightGradient, x: Tensor, gradient: Tensor, parts: int, rows: int
) -> list[int]:
    convolution = op.convolution
    (down, over), (down_apart, over_apart) = convolution.stride, convolution.dilation
    before_y, before_x = (begin for begin, _ in convolution.padding)
    first = min(gradient.columns, -(-before_x // over))
    reach = (op.kernel[1] - 1) * over_apart
    last = max(first, min(gradient.columns, (x.columns - 1 - reach + before_x) // over + 1))
    return [
        *(x.channels, parts, rows, gradient.rows, gradient.columns, x.rows, x.columns),
        *(x.image, x.plane, gradient.image, gradient.plane, down, over, down_apart, over_apart),
        *(before_y, before_x, first, last),
    ]


def _read_sizes(code: Code, pointer: int) -> None:
    code.line(f"const uniform int64 * uniform n = MD_IN(int64, {pointer});")
    code.lines(f"const uniform int64 {name} = n[{i}];" for i, name in enumerate(_SIZES))


def _sums(kernel: Pair, element: Element, lanes: int, whole: bool) -> KernelSource:
    """Prints the kernel that sums over rows; with ``whole`` it stores the weight gradient, else the
    partial sums of a part."""
    high, wide = kernel
    code = Code()
    with code.block("MD_KERNEL(@)"):
        _read_sizes(code, 3)
        with code.block("for (uniform int64 t = md_begin; t < md_end; t++)"):
            code.line("const uniform int64 block = t / parts, part = t % parts;")
            code.line(f"float totals[{high * wide}];")
            code.line(f"for (uniform int k = 0; k < {high * wide}; k++) totals[k] = 0.0f;")
            code.line("const uniform int64 begin = rows * part / parts;")
            code.line("const uniform int64 end = rows * (part + 1) / parts;")
            with (
                code.block("for (uniform int64 r = begin; r < end; r++)"),
                code.block(f"for (uniform int ky = 0; ky < {high}; ky++)"),
            ):
                _row(code, wide, element, lanes)
            if whole:
                _store(code, high * wide, element, lanes, "totals[k]", 2)
            else:
                address = f"(t * {high * wide} + k) * {lanes} + programIndex"
                code.line(
                    f"for (uniform int k = 0; k < {high * wide}; k++) "
                    f"MD_OUT(float, 2)[{address}] = totals[k];"
                )
    return KernelSource.named("depthwise_gradient", str(code))


def _row(code: Code, wide: int, element: Element, lanes: int) -> None:
    """Prints the sums over row ``r`` of the gradient for the taps of one row of the kernel."""
    pixels_at_once = max(1, -(-_CHAINS // wide))
    names = [[f"a{k}_{p}" for k in range(wide)] for p in range(pixels_at_once)]
    code.line("const uniform int64 image = r / out_rows, y = r % out_rows;")
    code.line("const uniform int64 row = y * down + ky * down_apart - before_y;")
    code.line("const uniform bool inside = row >= 0 && row < x_rows;")
    pointer = element.constant_pointer
    base = f"MD_IN({element.type}, 1) + image * g_image + block * g_plane"
    code.line(f"{pointer} g = {base} + y * out_columns * {lanes};")
    base = f"MD_IN({element.type}, 0) + image * x_image + block * x_plane"
    code.line(f"{pointer} x = {base} + (inside ? row : 0) * x_columns * {lanes};")
    code.lines(f"float {name} = 0.0f;" for sums in names for name in sums)

    def load(what: str, at: str) -> str:
        return element.load(f"{what}[({at}) * {lanes} + programIndex]")

    # Products with padding are computed, too: they are zero, or NaN.
    with code.block("for (uniform int c = 0; c < out_columns; c++)"):
        with code.block("if (inside && c == first)"):
            code.line(f"for (; c + {pixels_at_once} <= last; c += {pixels_at_once})")
            with code.block(""):
                for p, sums in enumerate(names):
                    code.line(f"const float g{p} = {load('g', f'c + {p}')};")
                    for k, name in enumerate(sums):
                        at = f"(c + {p}) * over + {k} * over_apart - before_x"
                        code.line(f"{name} = md_fma({load('x', at)}, g{p}, {name});")
            code.line("if (c >= out_columns) break;")
        code.line(f"const float g0 = {load('g', 'c')};")
        for k, name in enumerate(names[0]):
            code.line(f"const uniform int64 at{k} = c * over + {k} * over_apart - before_x;")
            code.line(f"float x{k} = 0.0f;")
            code.line(
                f"if (inside && at{k} >= 0 && at{k} < x_columns) x{k} = {load('x', f'at{k}')};"
            )
            code.line(f"{name} = md_fma(x{k}, g0, {name});")
    for k in range(wide):
        total = " + ".join(sums[k] for sums in names)
        code.line(f"totals[ky * {wide} + {k}] += {total};")


def _split_k_reduction(taps: int, element: Element, lanes: int) -> KernelSource:
    """Prints the kernel that adds the partial sums of split-K."""
    code = Code()
    with code.block("MD_KERNEL(@)"):
        _read_sizes(code, 2)
        with code.block("for (uniform int64 block = md_begin; block < md_end; block++)"):
            code.line(f"float totals[{taps}];")
            with code.block(f"for (uniform int k = 0; k < {taps}; k++)"):
                address = f"((block * parts + p) * {taps} + k) * {lanes} + programIndex"
                code.line("float all = 0.0f;")
                code.line(
                    f"for (uniform int64 p = 0; p < parts; p++) all += MD_IN(float, 0)[{address}];"
                )
                code.line("totals[k] = all;")
            _store(code, taps, element, lanes, "totals[k]", 1)
    return KernelSource.named("reduce_depthwise_gradient", str(code))


def _store(code: Code, taps: int, element: Element, lanes: int, value: str, pointer: int) -> None:
    code.line(f"const int64 c = block * {lanes} + programIndex;")
    with code.block("if (c < channels)"):
        address = f"MD_OUT({element.type}, {pointer})[c * {taps} + k]"
        code.line(f"for (uniform int k = 0; k < {taps}; k++) {element.store(address, value)}")


_INPUT_SIZES = (
    *("channels", "x_rows", "x_columns", "g_rows", "g_columns", "x_image", "x_plane", "g_image"),
    *("g_plane", "down", "over", "down_apart", "over_apart", "before_y", "before_x", "blocks"),
)


def print_depthwise_input_gradient(
    op: Conv2dInputGradient, batch: int, gradient: Tensor, x: Tensor, kernel: Pair, isa: Isa
) -> Staged:
    """Prints the kernel of a depthwise convolution's gradient for the input; its pointers are the
    gradient, the weight and the result.  A task computes a block of channels of an image.

    Args:
        batch: images.
        gradient, x: the layouts of the gradient and the result, both with blocks of lanes.
        kernel: rows and columns of the weight.
    """
    lanes, element = isa.lanes, ELEMENTS[x.dtype]
    convolution, blocks = op.convolution, -(-x.channels // lanes)
    sizes = [
        *(x.channels, x.rows, x.columns, gradient.rows, gradient.columns, x.image, x.plane),
        *(gradient.image, gradient.plane, *convolution.stride, *convolution.dilation),
        *(convolution.padding[0][0], convolution.padding[1][0], blocks),
    ]
    source = _scattered(kernel, element, lanes)
    tasks = batch * blocks
    return Staged((stage(source, (0, 1, 2), sizes, tasks, x.rows * x.columns * lanes),))


def _scattered(kernel: Pair, element: Element, lanes: int) -> KernelSource:
    """Prints the kernel that sums, for each element of the input, over the outputs that read it."""
    high, wide = kernel
    code = Code()
    with code.block("MD_KERNEL(@)"):
        code.line("const uniform int64 * uniform n = MD_IN(int64, 3);")
        for i, name in enumerate(_INPUT_SIZES):
            is_long = name in ("channels", "x_image", "g_image", "blocks")
            type = "int64" if is_long else "int"
            code.line(f"const uniform {type} {name} = (uniform {type})n[{i}];")
        with code.block("for (uniform int64 t = md_begin; t < md_end; t++)"):
            code.line("const uniform int64 image = t / blocks, block = t % blocks;")
            code.line(f"const bool there = block * {lanes} + programIndex < channels;")
            code.line(f"const int64 c = min(block * {lanes} + programIndex, channels - 1);")
            code.line(f"float w[{high * wide}];")
            weight = f"MD_IN({element.type}, 1)[c * {high * wide} + k]"
            code.line(
                f"for (uniform int k = 0; k < {high * wide}; k++) w[k] = {element.load(weight)};"
            )
            base = f"MD_IN({element.type}, 0) + image * g_image + block * g_plane"
            code.line(f"{element.constant_pointer} g = {base};")
            base = f"MD_OUT({element.type}, 2) + image * x_image + block * x_plane"
            code.line(f"{element.pointer} x = {base};")
            with code.block("for (uniform int y = 0; y < x_rows; y++)"):
                code.line(f"uniform int taps[{high}], rows[{high}], count = 0;")
                with code.block(f"for (uniform int ky = 0; ky < {high}; ky++)"):
                    code.line("const uniform int at = y + before_y - ky * down_apart;")
                    code.line("if (at < 0 || at % down != 0 || at / down >= g_rows) continue;")
                    code.line(f"taps[count] = ky * {wide};")
                    code.line("rows[count++] = at / down;")
                with code.block("for (uniform int phase = 0; phase < over; phase++)"):
                    for k in range(wide):
                        code.line(f"const uniform int at{k} = phase + before_x - {k} * over_apart;")
                        code.line(f"const uniform int begin{k} = at{k} / over;")
                        code.line(f"const uniform bool meets{k} = begin{k} * over == at{k};")
                    _phase(code, wide, element, lanes)
    return KernelSource.named("depthwise_input_gradient", str(code))


def _phase(code: Code, wide: int, element: Element, lanes: int) -> None:
    """Prints the loop over the columns of a row that the same taps read: those of one phase."""
    code.line("uniform int j = 0;")
    with code.block("for (uniform int z = phase; z < x_columns; z += over, j++)"):
        code.line("float sum = 0.0f;")
        with code.block("for (uniform int i = 0; i < count; i++)"):
            row = f"g + rows[i] * g_columns * {lanes}"
            code.line(f"{element.constant_pointer} from = {row};")
            for k in range(wide):
                element_of_gradient = element.load(f"from[(begin{k} + j) * {lanes} + programIndex]")
                code.line(f"if (meets{k} && begin{k} + j >= 0 && begin{k} + j < g_columns)")
                code.line(f"  sum = md_fma({element_of_gradient}, w[taps[i] + {k}], sum);")
        address = f"x[(y * x_columns + z) * {lanes} + programIndex]"
        # Lanes past the channels are zero, whatever the gradient has there.
        code.line(element.store(address, "(there ? sum : 0.0f)"))
