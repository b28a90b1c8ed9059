"""A plugin that lets a processor with AVX2 run contractions as they are printed for AVX-512.

    python -m pytest -p tests.cpu.sixteen_lanes tests/cpu/contraction

ISPC compiles the same text, of 16 program instances, for pairs of AVX2's registers: results are
those that it has with AVX-512, times are not.  Kernels that transpose (sequences of tensors in
NCHW) name instructions of AVX-512 and do not compile so.
"""

from __future__ import annotations

import pytest

from minidnn.backends.cpu.isa import AVX2, AVX512


def pytest_configure(config: pytest.Config) -> None:
    object.__setattr__(AVX512, "target", "avx2-i32x16")
    object.__setattr__(AVX512, "flags", AVX2.flags)
