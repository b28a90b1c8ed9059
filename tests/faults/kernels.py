"""Faults of what is printed for processors and GPUs, and of what compiles and keeps it."""

from __future__ import annotations

from .fault import Fault

FAULTS = (
    Fault(
        "a softmax of long rows ends a block early",
        "minidnn/backends/cpu/operators/softmax.py",
        "const uniform int64 end = b + 16 * programCount < count ? b + 16 * programCount : count;",
        "const uniform int64 end = b + 16 * programCount < count ? b + 16 * programCount : b;",
        ("tests/cpu/test_backend_cases.py",),
    ),
    Fault(
        "a maximum of lanes loses NaN",
        "minidnn/backends/cpu/compilers/kernels.py",
        "float m = a > b ? a : b;\n  return a != a ? floatbits(0xffffffff) : m;",
        "return a > b ? a : b;",
        ("tests/cpu/test_backend_cases.py", "tests/cpu/test_scalar.py"),
    ),
    Fault(
        "bfloat16 is cut off and not rounded",
        "minidnn/backends/cpu/compilers/kernels.py",
        "const unsigned int up = bits + 0x7fff + ((bits >> 16) & 1);",
        "const unsigned int up = bits;",
        ("tests/cpu/test_bfloat16.py::test_what_is_stored_is_rounded_to_the_nearest",),
    ),
    Fault(
        "the moments of two blocks are joined without their distance",
        "minidnn/backends/cpu/operators/layer_norm.py",
        "to.squares += from.squares + apart * apart * (to.count * weight);",
        "to.squares += from.squares;",
        ("tests/cpu/test_backend_cases.py", "tests/cpu/test_numbers.py"),
    ),
    Fault(
        "windows keep the wrong columns for the next output",
        "minidnn/backends/cpu/sequences/window.py",
        "later = self._names(column + count * across.stride)",
        "later = self._names(column + count * across.stride - 1)",
        ("tests/cpu/test_sequence.py", "tests/cpu/test_kernels.py"),
    ),
    Fault(
        "the key of a unit leaves out its options",
        "minidnn/backends/cpu/compilers/compiler.py",
        "target = (self.isa.target, options, banner)",
        "target = (self.isa.target, banner)",
        ("tests/cpu/test_compiler.py",),
    ),
    Fault(
        "kernels are found that another ISPC compiled",
        "minidnn/backends/cpu/compilers/kernels.py",
        "target = (isa.target, FLAGS, banner)",
        "target = (isa.target, FLAGS)",
        ("tests/cpu/test_kernels.py", "tests/cpu/test_kernel_sharing.py"),
    ),
    Fault(
        "a damaged entry of the cache is used",
        "minidnn/cache/_store.py",
        "if not found.startswith(entry.check):",
        "if False:",
        ("tests/cache/test_store.py",),
    ),
    Fault(
        "a block that joins elements does not wait for its warps",
        "minidnn/backends/cuda/reduce.py",
        'part[threadIdx.x >> 5] = {value};")\n    code.line("__syncthreads();")\n',
        'part[threadIdx.x >> 5] = {value};")\n',
        ("tests/cuda/test_operators.py",),
    ),
    Fault(
        "a mean is not divided",
        "minidnn/backends/cuda/reduce.py",
        'f"value / {literal(float(count))}" if op.how == "mean" else "value"',
        '"value"',
        ("tests/cuda/test_operators.py",),
    ),
    Fault(
        "of several maxima the last is found",
        "minidnn/backends/cuda/reduce.py",
        "nearer = f\"i {'>' if op.last else '<'} place\"",
        'nearer = "i > place"',
        ("tests/cuda/test_operators.py",),
    ),
    Fault(
        "buffers of a patch lie over each other while both are in use",
        "minidnn/backends/cuda/sequence/places.py",
        "near = [p for other, p in found.items() if spans[other][1] >= begin]",
        "near = [p for other, p in found.items() if spans[other][1] > begin]",
        ("tests/cuda/test_kernels.py", "tests/cuda/test_sequence_random.py"),
    ),
    Fault(
        "a Winograd tile reads a row above the image",
        "minidnn/backends/cuda/contraction/winograd.cu",
        "(unsigned int)(top + i / 4) < (unsigned int)P_height",
        "(top + i / 4) < (int)P_height",
        ("tests/cuda/test_winograd.py",),
    ),
    Fault(
        "a Winograd transform has a wrong sign",
        "minidnn/backends/cuda/contraction/winograd.cu",
        "d[8 + j] = two - one;",
        "d[8 + j] = one - two;",
        ("tests/cuda/test_winograd.py",),
    ),
    Fault(
        "the line of a halo kernel runs from image into image",
        "minidnn/backends/cuda/contraction/halo.cu",
        "const bool inside = at >= 0 && image < (int)P_batch && row < (int)P_H && column",
        "const bool inside = at >= 0 && image < (int)P_batch && row <= (int)P_H && column",
        ("tests/cuda/test_contraction_kernels.py",),
    ),
    Fault(
        "a direct convolution uses a slab that is not there yet",
        "minidnn/backends/cuda/contraction/direct.cu",
        "md_copy_wait_but<STAGES - 2>();",
        "",
        ("tests/cuda/test_direct.py",),
    ),
    Fault(
        "taps of a sum are joined backwards",
        "minidnn/backends/cuda/sequence/tap_join.py",
        "for name in names[1:]:\n            fresh = self.pack.code.fresh()",
        "for name in reversed(names[1:]):\n            fresh = self.pack.code.fresh()",
        ("tests/cuda/test_kernels.py", "tests/cuda/test_tap_join.py"),
    ),
    Fault(
        "tall strips are computed though divisors differ",
        "minidnn/backends/cuda/sequence/rolling.py",
        "if any(len(set(table.tolist())) > 1 for table in window.divisors(source.extent)):",
        "if False:",
        ("tests/cuda/test_sequence_rolling.py",),
    ),
)
