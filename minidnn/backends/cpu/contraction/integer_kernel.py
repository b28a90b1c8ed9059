"""What integer kernels share (packed words, weights, epilogue), and the kernels of linear layers.

Those of convolutions are in :mod:`.integer_fallback`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from ....fusion.region import Parts
from ....graph.ir import Constant, Value
from ....graph.operators import Conv2d, Linear
from ....graph.types import INT8_DTYPES
from ...codegen.code import Code
from ...codegen.dialect import ISPC
from ...codegen.kernel import KernelSource
from ..execution.packing import data_of, first_terms
from ..isa import Isa
from ..stage import Pointer, PrintedContraction, Stage, Workspace
from ..tensor import STORED

MOST_EXACT = ((1 << 24) - 1) // (255 * 128)
"""How many products of int8 and uint8 may be summed so that float32 holds every sum exactly."""
#: Channels of a packed word of 32 bits.
WORD = 4
PACKED_WORDS = 1 << 13
"""Words that are worth a call of the packing kernel."""


class IntegerKernel:
    """Base of the printers of integer kernels: packed words, weights, and the epilogue.

    ``words`` says whether int8 or uint8 is multiplied with int8: then a packed word holds ``unit``
    = 4 channels, else one number.
    """

    def __init__(self, parts: Parts, isa: Isa) -> None:
        self.parts = parts
        self.lanes = isa.lanes
        node = parts.node
        self.x, weight = node.inputs[0].type, node.inputs[1]
        assert isinstance(weight, Constant) and isinstance(node.op, (Conv2d, Linear))
        self.weight = weight
        self.op = node.op
        self.words = self.x.dtype in INT8_DTYPES and weight.dtype == "int8"
        self.unit = WORD if self.words else 1
        self.others = parts.others
        vectors = [v.value for operation in parts.epilogue for v in operation.vectors]
        self.vectors: tuple[Value, ...] = tuple(dict.fromkeys(vectors))

    @property
    def zero(self) -> int:
        """The zero point of the numbers in a packed word."""
        if not self.words:
            return 0
        return self.op.zero + (128 if self.x.dtype == "int8" else 0)

    def packed_number(self, at: str) -> str:
        """The expression of an element as it is packed: as uint8, or minus its zero point where
        words hold one number."""
        if not self.words:
            return f"((unsigned int32)((int32){at} - ({self.op.zero})))"
        byte = f"(unsigned int32)(unsigned int8){at}"
        return f"({byte} ^ 0x80)" if self.x.dtype == "int8" else f"({byte})"

    def packed_word(self, rows: Sequence[str], at: str) -> str:
        """The word of the elements at an offset of several rows, one for each channel."""
        elements = [self.packed_number(f"{row}[{at}]") for row in rows]
        return " | ".join(f"({n} << {8 * i})" if i else n for i, n in enumerate(elements))

    def zero_word(self) -> int:
        return sum(self.zero << 8 * i for i in range(self.unit))

    def product(self, sum: str, x: str, w: str) -> str:
        if self.words:
            return f"{sum} = dot4add_u8i8packed({x}, {w}, {sum});"
        return f"{sum} += (int32)({x} * {w});"

    def pointers(self, code: Code) -> None:
        """Declares the pointers after those to packed input, weights, first terms and numbers: to
        further tensors, vectors, and the result."""
        for i, value in enumerate(self.others):
            kind = STORED[value.dtype]
            code.line(f"const uniform {kind} * uniform z{i} = MD_IN({kind}, {4 + i});")
        at = 4 + len(self.others)
        for i in range(len(self.vectors)):
            code.line(f"const uniform float * uniform e{i} = MD_IN(float, {at + i});")
        kind = STORED[self.parts.result.dtype]
        code.line(f"uniform {kind} * uniform y = MD_OUT({kind}, {at + len(self.vectors)});")

    def places(self, code: Code, first: str) -> None:
        """Declares pointers to a row of the tensors that :meth:`finish` reads and writes."""
        for i, value in enumerate(self.others):
            kind = STORED[value.dtype]
            code.line(f"const uniform {kind} * uniform zs{i} = z{i} + {first};")
        kind = STORED[self.parts.result.dtype]
        code.line(f"uniform {kind} * uniform ys = y + {first};")

    def operands(
        self, weights: partial[np.ndarray], starts: partial[np.ndarray], numbers: np.ndarray
    ) -> list[Pointer]:
        """The pointers of the kernel; ``weights`` and ``starts``, which are the first terms of
        sums, are equal for all sizes."""
        pointers: list[Pointer] = [Workspace(0), weights, starts, lambda: numbers]
        pointers += [1 + i for i in range(len(self.others))]
        pointers += [partial(_vector, value) for value in self.vectors]
        return [*pointers, 1 + len(self.others)]

    def finish(self, code: Code, sum: str, at: str, channel: str) -> None:
        """Prints the epilogue of a sum and the store at offset ``at`` of a row; vectors are read at
        ``channel``."""
        if not self.parts.epilogue:
            code.line(f"ys[{at}] = {sum};")
            return
        code.line(f"const float whole = (float){sum};")
        names: dict[Value, str] = {self.parts.node.output: "whole"}
        for operation in self.parts.epilogue:
            arguments = []
            for value in operation.operands:
                if value not in names:
                    names[value] = code.fresh()
                    read = f"(float)zs{self.others.index(value)}[{at}]"
                    code.line(f"const float {names[value]} = {read};")
                arguments.append(names[value])
            arguments += [f"e{self.vectors.index(v.value)}[{channel}]" for v in operation.vectors]
            lines, names[operation.output] = ISPC.print_code(operation.code, arguments, code.fresh)
            code.lines(lines)
        result = self.parts.result
        code.line(f"ys[{at}] = {_converted(names[result], result.dtype)};")


def _converted(value: str, dtype: str) -> str:
    """The expression that converts a float or an int64 to a stored element; see
    :class:`.graph.operators.Formula`."""
    if dtype == "bool":
        value = f"({value} != 0) ? 1 : 0"
    if dtype in INT8_DTYPES:
        bounds = np.iinfo(dtype)
        # The comparison is false for NaN, which becomes the least value.
        low = f"({value} > {bounds.min} ? {value} : {bounds.min})"
        value = f"(int)({low} < {bounds.max} ? {low} : {bounds.max})"
    return f"({STORED[dtype]})({value})"


def word_weights(weight: Value, inputs: int, unit: int) -> np.ndarray:
    """The weight as words of ``unit`` channels, an array (outputs, words of inputs, taps)."""
    values = data_of(weight).astype(np.int32).reshape(weight.shape[0], inputs, -1)
    padded = np.pad(values, ((0, 0), (0, -inputs % unit), (0, 0)))
    data = padded.reshape(len(padded), -1, unit, padded.shape[2])
    if unit == 1:
        return data[:, :, 0]
    bytes_ = np.ascontiguousarray(data.astype(np.int8).transpose(0, 1, 3, 2))
    return bytes_.view(np.int32)[..., 0]


def _vector(value: Value) -> np.ndarray:
    return data_of(value).astype(np.float32)


_FEATURE_VECTORS = 4
_ROWS = 4


class IntegerLinear(IntegerKernel):
    """Prints the kernels of an integer linear layer: one packs rows of features as words, one
    multiplies; lanes are output features.

    A register tile has ``high`` rows and ``wide`` vectors of output features.
    """

    def __init__(self, parts: Parts, isa: Isa, any_size: bool) -> None:
        super().__init__(parts, isa)
        self.outputs, self.inputs = self.weight.shape
        self.rows = self.x.size // max(1, self.inputs)
        self.steps = -(-self.inputs // self.unit)
        vectors = -(-self.outputs // self.lanes)
        self.wide = min(_FEATURE_VECTORS, vectors)
        self.tiles = -(-vectors // self.wide)
        self.high = _ROWS if any_size else min(_ROWS, self.rows)
        self.width = self.wide * self.lanes

    def print(self) -> PrintedContraction:
        numbers = np.array([self.rows, self.inputs, self.outputs, self.steps], np.int32)
        tasks = self.tiles * -(-self.rows // self.high)
        weights = partial(_weights, self.weight, self.inputs, self.unit, self.width)
        starts = partial(_starts, self.parts.node.inputs[1:], self.zero, self.width)
        compute = Stage(
            KernelSource.named("whole_linear", self.compute_text()),
            tuple(self.operands(weights, starts, numbers)),
            tasks,
        )
        pack = Stage(
            KernelSource.named("whole_rows", self.pack_text()),
            (0, Workspace(0), lambda: numbers),
            self.rows,
            max(1, min(self.rows // 8, PACKED_WORDS // max(1, self.steps))),
        )
        return PrintedContraction("whole", (pack, compute), 4 * self.rows * self.steps)

    def pack_text(self) -> str:
        code, kind = Code(), STORED[self.x.dtype]
        with (
            code.block("MD_KERNEL(@)"),
            code.block("for (uniform int64 t = md_begin; t < md_end; t++)"),
        ):
            code.line("const uniform int32 * uniform n = MD_IN(int32, 2);")
            code.line(f"const uniform {kind} * uniform x = MD_IN({kind}, 0) + t * n[1];")
            code.line("uniform unsigned int32 * uniform to = MD_OUT(unsigned int32, 1) + t * n[3];")
            with code.block("foreach (i = 0 ... n[3])"):
                # Weights of features past the last one are zero: they read the last one.
                for k in range(self.unit):
                    code.line(f"const int i{k} = min(i * {self.unit} + {k}, n[1] - 1);")
                numbers = [self.packed_number(f"x[i{k}]") for k in range(self.unit)]
                word = " | ".join(f"({n} << {8 * k})" if k else n for k, n in enumerate(numbers))
                code.line(f"to[i] = {word};")
        return str(code)

    def compute_text(self) -> str:
        code, lanes = Code(), self.lanes
        names = [(r, v) for r in range(self.high) for v in range(self.wide)]
        with code.block("MD_KERNEL(@)"):
            code.line("const uniform unsigned int32 * uniform packed = MD_IN(unsigned int32, 0);")
            code.line("const uniform int32 * uniform starts = MD_IN(int32, 2);")
            code.line("const uniform int32 * uniform n = MD_IN(int32, 3);")
            code.line("const uniform int rows = n[0], outputs = n[2], steps = n[3];")
            self.pointers(code)
            with code.block("for (uniform int t = md_begin; t < md_end; t++)"):
                code.line(f"const uniform int tile = t % {self.tiles};")
                code.line(f"const uniform int top = t / {self.tiles} * {self.high};")
                code.line(
                    "const uniform int32 * uniform w = MD_IN(int32, 1) + "
                    f"(uniform int64)tile * steps * {self.width};"
                )
                # Rows past the last read the last row; their results are not stored.
                for r in range(self.high):
                    row = f"(uniform int64)min(top + {r}, rows - 1) * steps"
                    code.line(f"const uniform unsigned int32 * uniform x{r} = packed + {row};")
                for r, v in names:
                    at = f"starts[tile * {self.width} + {v * lanes} + programIndex]"
                    code.line(f"int32 a{r}_{v} = {at};")
                with code.block("for (uniform int step = 0; step < steps; step++)"):
                    for v in range(self.wide):
                        at = f"w[step * {self.width} + {v * lanes} + programIndex]"
                        code.line(f"const unsigned int32 w{v} = (unsigned int32){at};")
                    for r in range(self.high):
                        code.line(f"const unsigned int32 f{r} = x{r}[step];")
                        for v in range(self.wide):
                            code.line(self.product(f"a{r}_{v}", f"f{r}", f"w{v}"))
                for r in range(self.high):
                    with code.block(f"if (top + {r} < rows)"):
                        self.places(code, f"(uniform int64)(top + {r}) * outputs")
                        for v in range(self.wide):
                            channel = f"(tile * {self.width} + {v * lanes} + programIndex)"
                            with code.block(f"if ({channel} < outputs)"):
                                self.finish(code, f"a{r}_{v}", channel, channel)
        return str(code)


def _weights(weight: Value, inputs: int, unit: int, width: int) -> np.ndarray:
    """The weights in the order in which the kernel reads them, [tile][step][output of the tile]."""
    words = word_weights(weight, inputs, unit)[:, :, 0]
    words = np.pad(words, ((0, -len(words) % width), (0, 0)))
    words = words.reshape(-1, width, words.shape[1])
    return np.ascontiguousarray(words.transpose(0, 2, 1)).reshape(-1)


def _starts(values: Sequence[Value], zero: int, width: int) -> np.ndarray:
    start = first_terms(values, zero)
    return np.pad(start, (0, -len(start) % width))
