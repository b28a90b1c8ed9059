"""Kernels as CUDA C++: a thread computes a point."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, ClassVar

from ...backends.codegen.dialect import CUDA
from ...backends.codegen.kernel import KernelSource
from ...graph.types import HALF_DTYPES, INT8_DTYPES
from ..ir import TASK, Expr, FoldRange, Kernel, Param
from .text import KEPT, Printer

THREADS = 256
#: From so many tasks on they are counted in 64 bits.
_WIDE = 1 << 31
_NARROW = (*HALF_DTYPES, *INT8_DTYPES)

SUM = """\
// The sum of so many taps, of any number, as graph.window.sum_taps adds them.
template <class Tap> MD_FUNCTION float @_sum(int count, Tap tap) {
  float total = 0.0f;
  if (count <= 16) {
    for (int i = 0; i < count; i++) total += tap(i);
    return total;
  }
  float levels[6] = {};
  int blocks = 0;
  for (int b = 0; b < count; b += 256) {
    const int end = b + 256 < count ? b + 256 : count;
    float waiting[4], sum = 0.0f;
    #pragma unroll 1
    for (int i = 0; i < 16; i++) {
      const int first = ((i & 1) << 3) | ((i & 2) << 1) | ((i & 4) >> 1) | ((i & 8) >> 3);
      sum = 0.0f;
      for (int k = b + first; k < end; k += 16) sum += tap(k);
      int bit = 0;
      for (; i >> bit & 1; bit++) sum = waiting[bit] + sum;
      if (bit < 4) waiting[bit] = sum;
    }
    levels[0] += sum;
    blocks++;
    for (int l = 0, k = blocks; k % 16 == 0; l++, k /= 16) {
      levels[l + 1] += levels[l];
      levels[l] = 0.0f;
    }
  }
  for (int l = 0; l < 5; l++) levels[l + 1] += levels[l];
  return levels[5];
}
"""


class _Cuda(Printer):
    TYPES: ClassVar = {
        **{"bits8": "unsigned char", "bits16": "unsigned short", "bits32": "unsigned int"},
        **{"bits64": "unsigned long long", "bits128": "md_word<16>::type"},
        **{"int32": "int", "int64": "long long", "float32": "float"},
        **{"uint32": "unsigned int", "uint64": "unsigned long long"},
        **{"float16": "md_half", "bfloat16": "md_bf16"},
        **{"uint8": "md_u8", "int8": "md_s8", "bool": "unsigned char"},
    }
    DIALECT = CUDA
    INDEX = "int"
    _helpers = ""

    def element(self, param: Param, index: Expr) -> str:
        return f"{param.name}[{self.text(index)}]"

    def converted(self, value: Expr, dtype: str) -> str:
        if dtype in _NARROW:
            return f"md_as<{self.TYPES[dtype]}>((float){self.operand(value)})"
        if dtype == "bool":
            return f"{self.operand(value)} != 0"
        text = f"md_value({self.text(value)})" if value.dtype in _NARROW else self.operand(value)
        return f"({self.TYPES[dtype]}){text}"

    def fold(self, fold: FoldRange) -> None:
        """Prints a fold; one over a number of values that is not known calls ``@_sum`` with a
        lambda."""
        if fold.count.op == "const":
            super().fold(fold)
            return
        assert fold.condition is None and not fold.combiner.chooses, self.kernel.kind
        name = fold.name.value
        with self.code.block(f"const auto {name}_of = [&](int {fold.index.value}) -> float"):
            self.block(fold.body)
            self.code.line(f"return {self.text(fold.value)};")
        self.code.line(";")  # a lambda is a statement
        self.code.line(f"const float {name} = @_sum((int)({self.text(fold.count)}), {name}_of);")
        self._helpers = SUM

    def print(self) -> str:
        kernel = self.kernel
        assert kernel.lanes is None, kernel.kind
        arguments = [
            f"{'' if param.is_written else 'const '}{self.TYPES[param.dtype]} *{param.name}"
            for param in kernel.params
        ]
        if kernel.sizes:
            arguments += [f"const long long {name}" for name in (*kernel.sizes, "tasks")]
        with self.code.block(f'extern "C" __global__ void @({", ".join(arguments)})'):
            type = "unsigned int" if kernel.tasks < _WIDE else "long long"
            count = f"{THREADS}ll" if type == "long long" else THREADS
            self.code.line(f"const {type} {TASK.value} = blockIdx.x * {count} + threadIdx.x;")
            end = f"({type})tasks" if kernel.sizes else kernel.tasks
            self.code.line(f"if ({TASK.value} >= {end}) return;")
            self.block(kernel.body)
        functions = self.functions() + self._helpers
        return f"typedef long long int64;\n{functions}{self.code}" if functions else str(self.code)


def render(kernel: Kernel) -> KernelSource:
    """Returns the kernel for blocks of :data:`THREADS` threads; its params are followed by its
    sizes and the number of tasks, where it has sizes."""
    tasks = kernel.tasks // _WIDE * _WIDE if kernel.sizes else kernel.tasks
    return _rendered(kernel.kind, kernel.params, tasks, kernel.lanes, kernel.body)


@lru_cache(KEPT)
def _rendered(kind: str, *kernel: Any) -> KernelSource:
    return KernelSource.named(kind, _Cuda(Kernel(kind, *kernel)).print())
