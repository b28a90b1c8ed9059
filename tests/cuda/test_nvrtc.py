"""Compiling without a GPU: machine code, what kernels take, the cache, errors."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from minidnn import cache
from minidnn.backends.codegen.kernel import KernelSource
from minidnn.backends.cuda import nvrtc
from minidnn.backends.cuda.functions import compile_kernels, group
from minidnn.backends.cuda.prelude import prelude
from minidnn.errors import CompileError, DeviceError

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINIDNN_CACHE", str(tmp_path))


def kernel(name: str, statement: str) -> KernelSource:
    head = f'extern "C" __global__ void __launch_bounds__(64) {name}(float *y, const float *x) '
    return KernelSource(name, f"{head}{{ {statement} }}\n")


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_the_whole_prelude_compiles(arch: str) -> None:
    names = ("exp", "expm1", "log", "log1p", "tanh", "erf", "sin", "cos", "atan")
    lines = [f"y[{i}] = md_{name}(x[{i}]);" for i, name in enumerate(names)]
    lines += ["y[9] = md_pow(x[0], x[1]);", "y[10] = md_round<md_half>(x[3]);"]
    lines += ["float p[8]; md_load(p, (const md_bf16 *)x); md_store((md_half *)y, p);"]
    (compiled,) = compile_kernels([kernel("all", " ".join(lines))], arch)
    assert compiled.cubin.startswith(b"\x7fELF")
    assert compiled.resources.spill_bytes == compiled.resources.stack_bytes == 0
    assert 16 <= compiled.resources.registers <= 64


def test_what_a_kernel_takes_is_read_from_the_log() -> None:
    text = kernel("k", "__shared__ float s[64]; s[threadIdx.x] = *x; __syncthreads(); *y = s[3];")
    (compiled,) = compile_kernels([text], "sm_90")
    assert compiled.resources.shared_bytes == 256
    many = " ".join(f"float a{i} = x[{i}];" for i in range(300))
    sums = " ".join(f"y[{i}] = a{i} / a{299 - i};" for i in range(300))
    head = 'extern "C" __global__ void __maxnreg__(32) k2(float *__restrict__ y, '
    source = KernelSource("k2", f"{head}const volatile float *x) {{ {many} {sums} }}")
    (compiled,) = compile_kernels([source], "sm_90")
    assert compiled.resources.spill_bytes > 0 and compiled.resources.registers == 32


def test_kernels_are_found_again_in_whatever_unit_they_are() -> None:
    sources = [kernel(f"k{i}", f"y[0] = x[{i}];") for i in range(5)]
    first = compile_kernels(sources, "sm_90", jobs=2)
    with cache.forbid_builds():
        again = compile_kernels([sources[3], sources[1]], "sm_90")
        assert again == [first[3], first[1]]
        with pytest.raises(CompileError, match=r"lacks 1 CUDA kernel \(k0\), and"):
            compile_kernels(sources[:1], "sm_80")
    assert [k.name for k in first] == ["k0", "k1", "k2", "k3", "k4"]


def test_what_was_found_stays_while_others_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = kernel("k1", "y[0] = x[1];"), kernel("k2", "y[0] = x[2];")
    (known,) = compile_kernels([first], "sm_90")
    compiled = nvrtc.Nvrtc.compile

    def while_others_clear_the_cache(*arguments: Any) -> nvrtc.Compiled:
        assert cache.clear()
        return compiled(*arguments)

    monkeypatch.setattr(nvrtc.Nvrtc, "compile", while_others_clear_the_cache)
    assert compile_kernels([first, second], "sm_90")[0] == known


def test_two_kernels_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="two kernels named k differ"):
        compile_kernels([kernel("k", "*y = 1.0f;"), kernel("k", "*y = 2.0f;")], "sm_90")


def test_an_error_shows_the_compilers_messages() -> None:
    with pytest.raises(CompileError, match=r'(?s)target sm_90.*identifier "nothing" is undefined'):
        compile_kernels([kernel("k", "*y = nothing;")], "sm_90")
    with pytest.raises(CompileError, match=r"sm_11"):
        compile_kernels([kernel("k", "*y = 1.0f;")], "sm_11")


def test_units_are_of_about_equal_length_and_the_same_every_time() -> None:
    sources = [kernel(f"k{i}", "*y = 1.0f;" * (i + 1)) for i in range(9)]
    units = group(sources, 3)
    assert units == group(list(reversed(sources)), 3)
    assert sorted(s.name for unit in units for s in unit) == [f"k{i}" for i in range(9)]
    lengths = [sum(len(s.text) for s in unit) for unit in units]
    assert len(units) == 3 and max(lengths) < 1.3 * min(lengths)


def test_a_wrong_path_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINIDNN_NVRTC", "/nowhere/libnvrtc.so.13")
    nvrtc.load.cache_clear()
    try:
        with pytest.raises(DeviceError, match=r"pip install nvidia-cuda-nvrtc.*\n.*does not exist"):
            nvrtc.load()
        assert "MINIDNN_NVRTC" in str(nvrtc.why_unusable())
    finally:
        nvrtc.load.cache_clear()


def test_built_in_functions_are_found_beside_it(tmp_path: Path) -> None:
    """NVRTC 13.0, which PyTorch installs, opens them by name and does not look beside itself."""
    place = Path(nvrtc.load().path)
    if not place.exists():
        pytest.skip("NVRTC is not that of a wheel, and the loader finds what belongs to it")
    blind = tmp_path / place.name
    blind.write_bytes(place.read_bytes().replace(b"\0$ORIGIN\0", b"\0/no/lib\0"))
    for builtins in place.parent.glob("libnvrtc-builtins.so.*"):
        (tmp_path / builtins.name).symlink_to(builtins)
    program = (
        "from minidnn.backends.cuda import nvrtc\n"
        "print(len(nvrtc.load().compile('__global__ void f(float *y) { *y = 1; }', 'sm_90').cubin))"
    )
    environment = {**os.environ, "MINIDNN_NVRTC": str(blind)}
    environment.pop("LD_LIBRARY_PATH", None)
    run = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, cwd=ROOT
    )
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) > 500


def test_the_prelude_is_the_same_in_every_process() -> None:
    assert prelude() == prelude()
    assert "static inline" not in prelude()
