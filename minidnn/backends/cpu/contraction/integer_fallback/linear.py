"""Linear layers of whole numbers; lanes are features."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from minidnn.fusion.contraction import Parts
from minidnn.graph.ir import Value

from ....codegen.code import Code
from ....codegen.kernel import KernelSource
from ...execution.packing import first_terms
from ...isa import Isa
from ...stage import PrintedContraction, Stage, Workspace
from ...tensor import STORED
from .kernel import PACKED_WORDS, IntegerKernel, word_weights

_FEATURE_VECTORS = 4
_ROWS = 4


class IntegerLinear(IntegerKernel):
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
                # Features beyond the last one have no weight: the last will do for them.
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
                # A row beyond the last is the last once more, and not stored.
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
    """[tile][step][output of the tile]"""
    words = word_weights(weight, inputs, unit)[:, :, 0]
    words = np.pad(words, ((0, -len(words) % width), (0, 0)))
    words = words.reshape(-1, width, words.shape[1])
    return np.ascontiguousarray(words.transpose(0, 2, 1)).reshape(-1)


def _starts(values: Sequence[Value], zero: int, width: int) -> np.ndarray:
    start = first_terms(values, zero)
    return np.pad(start, (0, -len(start) % width))
