"""Kernels for planes of any size: rows, columns and strides are arguments.

What is printed depends on dtypes, on windows, and on whether channels or pixels lie side by side. A
thread computes one position of one channel; each result has the bits that :mod:`.sequence` and
:mod:`.pointwise` give it, a zero's sign aside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ...fusion.operations import Operation, operation_of
from ...fusion.stacks import is_tensor_operand
from ...graph.ir import Node, Value
from ...graph.window import Window
from ..codegen.any_size import print_window, why_of_one_size
from ..codegen.code import Code
from ..codegen.dialect import CUDA
from ..codegen.kernel import KernelSource
from .contraction.gather import Gathering
from .kernels import Launch
from .narrow import print_as
from .pointwise import PointStep, print_chain
from .prelude import TYPES
from .reduction import SUM
from .tensor import Tensor

_THREADS = 256
_MOST_RANK = 4


@dataclass(frozen=True)
class AnySizeLaunch:
    """A printed region; its pointers are those of ``operands``, ``vectors``, then the outputs."""

    launch: Launch
    operands: tuple[Value, ...]
    vectors: tuple[Value, ...]


def has_any_size(nodes: Sequence[Node]) -> bool:
    """Whether :func:`print_for_any_size` prints nodes."""
    given = [v for node in nodes for i, v in enumerate(node.inputs) if is_tensor_operand(node, i)]
    made = [value for node in nodes for value in node.outputs]
    # Axes of values of several ranks are others than those of planes.
    ranks = {value.type.rank for value in (*given, *made) if value.type.size > 1}
    fits = len(ranks) <= 1 and max(ranks, default=0) <= _MOST_RANK
    return fits and why_of_one_size(nodes, TYPES) is None


def print_for_any_size(
    nodes: Sequence[Node], outputs: Sequence[Value], tensors: Callable[[Value], Tensor]
) -> AnySizeLaunch:
    """The kernel of nodes of which :func:`has_any_size` is true.

    Args:
        tensors: how the values that they read and the outputs lie.
    """
    return _Region(nodes, outputs, tensors).print()


def print_chain_for_any_size(
    batch: int,
    inputs: Sequence[Tensor],
    output: Tensor,
    vectors: Sequence[str] = (),
    steps: Sequence[PointStep] = (),
    round_steps: bool = False,
) -> Launch:
    """The kernel of a chain of steps, see :func:`.pointwise.print_pointwise`."""
    grid = _Grid(batch, output)
    pointers = [f"const {TYPES[t.dtype]} *x{i}" for i, t in enumerate(inputs)]
    pointers += [f"const {TYPES[dtype]} *v{i}" for i, dtype in enumerate(vectors)]
    code = grid.code
    for i, tensor in enumerate(inputs):
        code.line(f"const float a{i}[1] = {{md_value(x{i}[{grid.place(f'x{i}', tensor)}])}};")
    code.line("const int j = 0;")
    rounded = TYPES[output.dtype] if round_steps else None
    value = print_chain(code, steps, lambda i: f"md_value(v{i}[c])", output.dtype, rounded)
    place = grid.place("y", output)
    code.line(f"y[{place}] = md_as<{TYPES[output.dtype]}>({value});")
    return grid.launch([*pointers, f"{TYPES[output.dtype]} *y"])


def print_adaptive_for_any_size(batch: int, x: Tensor, y: Tensor) -> Launch:
    """The kernel of an adaptive average, see :func:`.reduction.print_adaptive`."""
    grid = _Grid(batch, y)
    code = grid.code
    for low, high, index, given, made in (
        ("top", "bottom", "y_at", grid.size("given_rows", x.rows), grid.size("rows", y.rows)),
        ("left", "right", "x_at", grid.size("given_columns", x.columns), grid.columns),
    ):
        code.line(f"const int {low} = (int)({index} * {given} / {made});")
        code.line(f"const int {high} = (int)((({index} + 1) * {given} + {made} - 1) / {made});")
    row, pixel = grid.size("given_row", x.row), grid.size("given_pixel", x.pixel)
    image, channel = grid.size("given_image", x.image), grid.size("given_channel", x.channel)
    offset = grid.size("given_offset", x.offset)
    code.line(f"given += n * {image} + c * {channel} + {offset};")
    one = f"md_value(given[(top + h) * {row} + (left + w) * {pixel}])"
    code.line(f"const auto pixel = [&](int h, int w) {{ return {one}; }};")
    code.line("const int high = bottom - top, wide = right - left;")
    line = "[&](int h) { return @_sum(wide, [&](int w) { return pixel(h, w); }); }"
    code.line(f"const float total = @_sum(high, {line}) / (float)(high * wide);")
    code.line(f"made[{grid.place('made', y)}] = md_as<{TYPES[y.dtype]}>(total);")
    pointers = [f"const {TYPES[x.dtype]} *given", f"{TYPES[y.dtype]} *made"]
    return grid.launch(pointers, SUM)


def print_gather_for_any_size(batch: int, x: Tensor, made: Tensor, how: Gathering) -> Launch:
    """The kernel that gathers an image, see :func:`.contraction.gather.print_gather`; a thread
    makes one number."""
    grid = _Grid(batch, made)
    code, (down, across) = grid.code, how.stride
    wide = x.channels * how.columns
    code.line(f"const int below = (int)c / {wide}, rest = (int)c % {wide};")
    code.line(f"const long long row = y_at * {down} - {how.padding[0]} + below;")
    code.line(f"const long long column = x_at * {across} - {how.padding[1]} + rest / {x.channels};")
    rows, columns = grid.size("rows", x.rows), grid.size("given_columns", x.columns)
    inside = f"row >= 0 && row < {rows} && column >= 0 && column < {columns}"
    code.line(f"const bool inside = below < {down} && {inside};")
    place = f"n * {grid.size('given_image', x.image)} + {grid.size('given_offset', x.offset)}"
    place += f" + rest % {x.channels} * {grid.size('given_channel', x.channel)}"
    place += f" + row * {grid.size('given_row', x.row)}"
    place += f" + column * {grid.size('given_pixel', x.pixel)}"
    code.line(f"const float one = inside ? md_value(given[{place}]) : {how.fill}.0f;")
    code.line(f"made[{grid.place('made', made)}] = md_as<{TYPES[made.dtype]}>(one);")
    return grid.launch([f"const {TYPES[x.dtype]} *given", f"{TYPES[made.dtype]} *made"])


class _Grid:
    """A thread for each element of a tensor, at image ``n``, channel ``c``, ``y`` and ``x``."""

    def __init__(self, batch: int, made: Tensor) -> None:
        self.code = Code()
        self.numbers: dict[str, int] = {}
        self.batch, self.made = batch, made
        self.count = batch * made.channels * made.rows * made.columns
        count, plane = self.size("count", self.count), self.size("plane", made.rows * made.columns)
        channels, self.columns = (
            self.size("channels", made.channels),
            self.size("columns", made.columns),
        )
        code = self.code
        code.line(f"const long long t = blockIdx.x * {_THREADS}ll + threadIdx.x;")
        code.line(f"if (t >= {count}) return;")
        if made.is_planar:
            code.line(f"const long long q = t % {plane}, c = t / {plane} % {channels};")
        else:
            code.line(f"const long long q = t / {channels} % {plane}, c = t % {channels};")
        code.line(f"const long long n = t / {plane} / {channels};")
        code.line(f"const long long y_at = q / {self.columns}, x_at = q % {self.columns};")

    def size(self, name: str, value: int) -> str:
        """How a number that depends on sizes is read."""
        self.numbers[name] = value
        return f"n_{name}"

    def place(self, name: str, t: Tensor, y: str = "y_at", x: str = "x_at") -> str:
        """Where an element of a tensor lies, which is repeated along axes of size 1."""
        made, rows, columns = self.made, self.made.rows, self.made.columns
        ends = (
            ("n", "image", t.image),
            ("c", "channel", 0 if t.channels == 1 < made.channels else t.channel),
            (f"({y})", "row", 0 if t.rows == 1 < rows else t.row),
            (f"({x})", "pixel", 0 if t.columns == 1 < columns else t.pixel),
        )
        steps = [f"{at} * {self.size(f'{name}_{axis}', step)}" for at, axis, step in ends]
        return " + ".join([*steps, self.size(f"{name}_offset", t.offset)])

    def launch(self, pointers: Sequence[str], before: str = "") -> Launch:
        """Of the code until now, whose arguments are these and the numbers."""
        head = ", ".join([*pointers, *(f"const long long n_{name}" for name in self.numbers)])
        whole = Code()
        with whole.block(f'extern "C" __global__ void @({head})'):
            whole.lines(str(self.code).splitlines())
        source = KernelSource.named("any_size", before + str(whole))
        blocks = -(-self.count // _THREADS)
        return Launch(source, (blocks, 1, 1), (_THREADS, 1, 1), 0, tuple(self.numbers.values()))


class _Region:
    def __init__(
        self,
        nodes: Sequence[Node],
        outputs: Sequence[Value],
        tensors: Callable[[Value], Tensor],
    ) -> None:
        self.operations = [operation_of(node, 0) for node in nodes]
        self.outputs = tuple(outputs)
        made = [operation.output for operation in self.operations]
        read = dict.fromkeys(v for o in self.operations for v in o.operands if v not in made)
        self.operands = tuple(read)
        self.vectors = tuple(dict.fromkeys(v.value for o in self.operations for v in o.vectors))
        #: The names of pointers.
        self.outside = {value: f"x{i}" for i, value in enumerate(self.operands)}
        self.outside |= {value: f"y{i}" for i, value in enumerate(self.outputs)}
        self.tensors = {value: tensors(value) for value in self.outside}
        self.grid = _Grid(nodes[0].output.type.plane[0], self.tensors[self.outputs[0]])

    def print(self) -> AnySizeLaunch:
        names: dict[Value, str] = {}
        code = self.grid.code
        for operation in self.operations:
            if operation.window is not None:
                result = self._windowed(operation, operation.window, names)
            else:
                given = [self._operand(value, names) for value in operation.operands]
                given += [f"md_value(v{self.vectors.index(v.value)}[c])" for v in operation.vectors]
                dtype = operation.output.dtype
                lines, result = print_as(dtype, operation.code, given, code.fresh)
                code.lines(lines)
            value, type = operation.output, TYPES[operation.output.dtype]
            if value in self.outputs:
                place = self._place(value)
                code.line(f"{self.outside[value]}[{place}] = md_as<{type}>({result});")
            names[value] = code.fresh()
            code.line(f"const float {names[value]} = md_round<{type}>({result});")
        pointers = [f"const {TYPES[v.dtype]} *{self.outside[v]}" for v in self.operands]
        pointers += [f"const {TYPES[v.dtype]} *v{i}" for i, v in enumerate(self.vectors)]
        pointers += [f"{TYPES[v.dtype]} *{self.outside[v]}" for v in self.outputs]
        return AnySizeLaunch(self.grid.launch(pointers), self.operands, self.vectors)

    def _place(self, value: Value, y: str = "y_at", x: str = "x_at") -> str:
        tensor = self.tensors[value]
        if value.type.plane[0] == 1:
            tensor = replace(tensor, image=0)
        return self.grid.place(self.outside[value], tensor, y, x)

    def _operand(self, value: Value, names: dict[Value, str]) -> str:
        if value not in names:
            names[value] = name = self.grid.code.fresh()
            self.grid.code.line(f"const float {name} = {self._read(value)};")
        return names[value]

    def _read(self, value: Value, y: str = "y_at", x: str = "x_at") -> str:
        return f"md_value({self.outside[value]}[{self._place(value, y, x)}])"

    def _windowed(self, operation: Operation, window: Window, names: dict[Value, str]) -> str:
        """Joins the taps of one output, each by itself, and finishes it; the result's name."""
        code = self.grid.code
        under, here = operation.operands[: window.under], operation.operands[window.under :]
        own = [self._operand(value, names) for value in here]
        name, (height, width) = self.outside[under[0]], under[0].type.plane[2:]
        high, wide = self.grid.size(f"{name}_rows", height), self.grid.size(f"{name}_wide", width)
        code.line(f"const int {name}_rows = (int){high}, {name}_wide = (int){wide};")
        code.line("const int row_at = (int)y_at, column_at = (int)x_at;")
        extent = f"{name}_rows", f"{name}_wide"
        place = "row_at", "column_at"

        def read() -> list[str]:
            return [self._read(each, "sy", "sx") for each in under]

        return print_window(code, CUDA, "", window, extent, place, read, own)
