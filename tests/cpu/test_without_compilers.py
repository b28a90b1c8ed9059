"""A full cache needs no compiler; where compiling is forbidden none is looked for."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

import minidnn as md
from minidnn.backends.backend import default_device
from minidnn.backends.codegen.kernel import KernelSource
from minidnn.backends.cpu.compilers import toolchain
from minidnn.backends.cpu.compilers.kernels import Unit, compile_kernels, compile_units, prelude
from minidnn.backends.cpu.execution import native
from minidnn.backends.cpu.isa import AVX2
from minidnn.errors import CompileError, DeviceError

from .conftest import MakeFake, run_python

TEXT = "MD_KERNEL(%s) { uniform float * uniform y = MD_OUT(float, 0); y[md_begin] = %d; }"
NOWHERE = {"PATH": "/nowhere", "CC": "/nowhere/cc", "MINIDNN_ISPC": "/nowhere/ispc"}
RUN = """
    import numpy as np
    import minidnn as md
    from minidnn import layers as L
    net = md.Sequential(L.Conv2d(3, 8, 3), L.ReLU(), L.MaxPool2d(2))
    x = np.random.default_rng(0).standard_normal((1, 3, 17, 19), np.float32)
    executable = md.compile(net, x.shape, threads=1)
    print(executable.device, executable(x).shape)
    """


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has this process look for the runner again."""
    monkeypatch.setattr(native, "_runners", {})


def no_compilers(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in NOWHERE.items():
        monkeypatch.setenv(name, value)

    def asked(*_: object) -> None:
        raise AssertionError("a compiler was looked for")

    for name in ("run", "find_ispc", "find_cc"):
        monkeypatch.setattr(toolchain, name, asked)


def kernel(name: str, number: int) -> KernelSource:
    return KernelSource(name, TEXT % (name, number))


def test_networks_run_from_a_full_cache(cold_cache: Path, real_ispc: str) -> None:
    out, err = run_python(RUN, MINIDNN_ISPC=real_ispc).communicate(timeout=120)
    assert out == "cpu (1, 8, 7, 8)\n", err
    out, err = run_python(RUN, MINIDNN_NO_COMPILE="1", **NOWHERE).communicate(timeout=120)
    assert (out, err) == ("cpu (1, 8, 7, 8)\n", "")
    shutil.rmtree(cold_cache / "ispc_index")
    out, err = run_python(RUN, MINIDNN_NO_COMPILE="1", **NOWHERE).communicate(timeout=120)
    assert "CompileError" in err and f"the cache {cold_cache} lacks" in err


def test_what_is_missing_is_named(cold_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compile_kernels([kernel("there", 1)], AVX2)
    native.runner(("-DMD_OTHER",))
    monkeypatch.setenv("MINIDNN_NO_COMPILE", "1")
    forget(monkeypatch)
    no_compilers(monkeypatch)
    assert compile_kernels([kernel("there", 1)], AVX2)[0].name == "there"
    with pytest.raises(CompileError, match=r"lacks 2 kernels for avx2 \(gone, away\), and"):
        compile_kernels([kernel("gone", 1), kernel("there", 1), kernel("away", 2)], AVX2)
    with pytest.raises(CompileError, match=r"lacks 1 ISPC file \(unit\), and"):
        compile_units([Unit("unit", prelude(AVX2) + TEXT % ("f", 3), AVX2)])
    with pytest.raises(CompileError, match=r"lacks the native runner, and"):
        native.runner()


def test_numpy_does_not_take_its_place(cold_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINIDNN_NO_COMPILE", "1")
    forget(monkeypatch)
    no_compilers(monkeypatch)
    why = (
        f"cpu: the cache {cold_cache} has no native runner of this version of minidnn, and "
        "MINIDNN_NO_COMPILE=1 forbids to compile it"
    )
    with pytest.raises(DeviceError) as caught:
        default_device(("cpu", "reference"))
    assert str(caught.value).startswith("MINIDNN_NO_COMPILE=1 forbids to compile, and only NumPy")
    assert str(caught.value).endswith(why)
    assert default_device(("reference",)) == ("reference", [])
    net = md.Sequential(md.layers.ReLU())
    exe = md.compile(net, (1, 2), device="reference")  # whoever names it has it
    np.testing.assert_array_equal(exe(np.array([[-1, 2]], "f4")), [[0, 2]])


def test_what_several_compilers_made_is_found(
    make_fake: MakeFake, cold_cache: Path, real_ispc: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an update of ISPC the cache has kernels of both."""
    for number, version in enumerate(("1.26.0", "1.27.1", "1.28.0")):
        make_fake(f'exec {real_ispc} "$@"\n', version, name=f"ispc{number}")
        compile_kernels([kernel(f"k{number}", number)], AVX2)
    monkeypatch.setenv("MINIDNN_NO_COMPILE", "1")
    no_compilers(monkeypatch)
    found = compile_kernels([kernel(f"k{number}", number) for number in (2, 0, 1)], AVX2)
    assert [each.name for each in found] == ["k2", "k0", "k1"]
