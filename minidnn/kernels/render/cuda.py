"""Kernels as CUDA C++: a thread computes a point."""

from __future__ import annotations

from typing import ClassVar

from ...backends.codegen.dialect import CUDA
from ...backends.codegen.kernel import KernelSource
from ...graph.types import BYTES, HALVES
from ..ir import TASK, Expr, Kernel, Param
from .text import Printer

THREADS = 256
_NARROW = (*HALVES, *BYTES)


class _Cuda(Printer):
    TYPES: ClassVar = {
        **{"bits8": "unsigned char", "bits16": "unsigned short", "bits32": "unsigned int"},
        **{"bits64": "md_word<8>::type", "bits128": "md_word<16>::type"},
        **{"int32": "int", "int64": "long long", "float32": "float"},
        **{"uint32": "unsigned int", "uint64": "unsigned long long"},
        **{"float16": "md_half", "bfloat16": "md_bf16"},
        **{"uint8": "md_u8", "int8": "md_s8", "bool": "unsigned char"},
    }
    DIALECT = CUDA

    def element(self, param: Param, index: Expr) -> str:
        return f"{param.name}[{self.text(index)}]"

    def converted(self, value: Expr, dtype: str) -> str:
        if dtype in _NARROW:
            return f"md_as<{self.TYPES[dtype]}>((float){self.operand(value)})"
        if dtype == "bool":
            return f"{self.operand(value)} != 0"
        text = f"md_value({self.text(value)})" if value.dtype in _NARROW else self.operand(value)
        return f"({self.TYPES[dtype]}){text}"

    def print(self) -> str:
        assert self.kernel.lanes is None and not self.kernel.sizes, self.kernel.kind
        pointers = [
            f"{'' if param.is_written else 'const '}{self.TYPES[param.dtype]} *{param.name}"
            for param in self.kernel.params
        ]
        with self.code.block(f'extern "C" __global__ void @({", ".join(pointers)})'):
            type = "unsigned int" if self.kernel.tasks < 1 << 31 else "long long"
            count = f"{THREADS}ll" if type == "long long" else THREADS
            self.code.line(f"const {type} {TASK.value} = blockIdx.x * {count} + threadIdx.x;")
            self.code.line(f"if ({TASK.value} >= {self.kernel.tasks}) return;")
            self.block(self.kernel.body)
        functions = self.functions()
        return f"typedef long long int64;\n{functions}{self.code}" if functions else str(self.code)


def render(kernel: Kernel) -> KernelSource:
    """The kernel, for blocks of :data:`THREADS` threads."""
    return KernelSource.named(kernel.kind, _Cuda(kernel).print())
