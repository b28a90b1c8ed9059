"""Units become libraries: cached, in parallel, with clear errors and nothing left behind."""

from __future__ import annotations

import errno
import os
import platform
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from minidnn.backends.cpu.compilers import kernels
from minidnn.backends.cpu.compilers.kernels import Unit, compile_units, prelude
from minidnn.backends.cpu.execution.program import BoundKernel, NativeProgram, Pool
from minidnn.backends.cpu.isa import AVX2, Isa
from minidnn.cache import clear, forbid_builds, one_at_a_time
from minidnn.errors import CompileError, DeviceError, MiniDNNWarning
from minidnn.runtime.operand import Operand
from tests.sampling import IS_FULL

from .conftest import Build, MakeFake, processes_with, run_python, wait_until

DOUBLE = """
MD_KERNEL(twice) {
  const uniform float * uniform x = MD_IN(float, 0);
  uniform float * uniform y = MD_OUT(float, 1);
  for (uniform int t = md_begin; t < md_end; t++) y[t] = x[t] * 2;
}
"""


def unit(text: str = DOUBLE, name: str = "unit", isa: Isa = AVX2) -> Unit:
    return Unit(name, prelude(isa) + text, isa)


def works(library) -> bool:
    x, y = np.arange(8, dtype="f4"), np.zeros(8, "f4")
    region = BoundKernel(library.kernel("twice"), (Operand(0), Operand(1)), 8)
    NativeProgram([region], 2, pool=Pool(1)).run([x.ctypes.data, y.ctypes.data])
    return bool((y == 2 * x).all())


def test_compiles_and_runs(isa: Isa) -> None:
    assert works(compile_units([unit(isa=isa)])[0])


def test_second_time_starts_no_compiler(cold_cache: Path) -> None:
    with forbid_builds(), pytest.raises(CompileError, match=r"lacks 1 ISPC file \(unit\), and"):
        compile_units([unit()])
    first = compile_units([unit()])[0]
    with forbid_builds():
        again = compile_units([unit(), unit(name="equal text")])
    assert [library.path for library in again] == [first.path] * 2


def test_what_was_found_stays_while_others_are_compiled(
    cold_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_units([unit()])
    # A file that this process has not loaded: of one that it has the loader needs the name alone.
    monkeypatch.setenv("MINIDNN_CACHE", str(shutil.copytree(cold_cache, tmp_path / "copied")))
    other = unit(DOUBLE + "// another\n", "other")

    def while_others_clear_the_cache(*_: object) -> None:
        clear()

    found = compile_units([unit(), other], progress=while_others_clear_the_cache)
    assert all(works(one) for one in found)


def test_key_covers_what_matters() -> None:
    from minidnn.backends.cpu.compilers.toolchain import find_ispc
    from minidnn.backends.cpu.isa import AVX512

    ispc = find_ispc().banner
    base = Unit("a", "text", AVX2)
    others = [Unit("a", "text2", AVX2), Unit("a", "text", AVX512), Unit("a", "text", AVX2, ("-g",))]
    assert len({u.key(ispc) for u in [base, *others]}) == 4
    assert Unit("b", "text", AVX2).key(ispc) == base.key(ispc) != base.key("another ISPC")


def test_error_quotes_message_and_lines() -> None:
    bad = DOUBLE.replace("x[t] * 2", "x[t] * missing_name")
    with pytest.raises(CompileError) as caught:
        compile_units([unit(), unit(bad, "my_kernels")])
    message = str(caught.value)
    assert "failed with exit status 1 on my_kernels (target avx2-i32x8" in message
    assert "my_kernels:" in message and 'symbol "missing_name"' in message.replace("\n", " ")
    line = next(i for i, s in enumerate((prelude(AVX2) + bad).splitlines(), 1) if "missing" in s)
    assert f"{line:6}|   for (uniform int t" in message
    assert f"{line - 2:6}|" in message and f"{line + 1:6}| }}" in message


def test_long_lines_are_cut(own_cache: Path) -> None:
    bad = DOUBLE.replace("x[t] * 2", "x[t] * missing_name" + " + 1.0f" * 4000)
    with pytest.raises(CompileError) as caught:
        compile_units([unit(bad)])
    lines = str(caught.value).splitlines()
    assert any("missing_name" in line and line.endswith(" ...") for line in lines)
    assert max(map(len, lines)) < 250


def test_unknown_function_in_library(build: Build) -> None:
    with pytest.raises(CompileError, match="has no function 'thrice'; is it declared 'export'"):
        build(DOUBLE).kernel("thrice")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("sleep 1050.5 & sleep 1050.5", "took longer than 0.4 s and was killed on unit"),
        ("kill -KILL $$", "was killed by signal 9 (SIGKILL) on unit"),
        ("kill -SEGV $$", "was killed by signal 11 (SIGSEGV) on unit"),
        ("echo 'out of memory'; exit 134", "was killed by signal 6 (SIGABRT) on unit"),
        ("exit 0", "ended without an error and without writing the object of unit"),
        ("echo 'LLVM ERROR: no such pass'; exit 2", "LLVM ERROR: no such pass"),
    ],
)
def test_broken_compiler(make_fake: MakeFake, cold_cache: Path, body: str, message: str) -> None:
    make_fake(body)
    start = time.monotonic()
    with pytest.raises(CompileError) as caught:
        compile_units([unit()], timeout=0.4)
    assert time.monotonic() - start < 5
    assert message in str(caught.value)
    assert wait_until(lambda: not processes_with("sleep 1050.5"))


def test_linker_fails(
    cold_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, real_ispc: str
) -> None:
    script = tmp_path / "cc"
    script.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && echo fake && exit 0\necho "ld: no space"; exit 1\n'
    )
    script.chmod(0o755)
    monkeypatch.setenv("CC", str(script))
    with pytest.raises(CompileError, match=r"linking unit with .*cc failed with exit status 1: ld"):
        compile_units([unit()])


def test_target_that_ispc_lacks(cold_cache: Path) -> None:
    with pytest.raises(DeviceError, match="has no target avx9-x9"):
        compile_units([Unit("unit", "", Isa("avx9", "avx9-x9", 9, 9, ()))])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("damage", [b"", b"garbage", None])
def test_damaged_cache_entry_is_rebuilt(cold_cache: Path, damage: bytes | None) -> None:
    path = compile_units([unit()])[0].path
    data = path.read_bytes()
    # Not written in place: this process has the file mapped.
    path.unlink()
    path.write_bytes(data[: len(data) // 2] if damage is None else damage)
    with pytest.warns(MiniDNNWarning, match="is damaged"):
        assert works(compile_units([unit()])[0])


def test_cache_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MINIDNN_CACHE", str(tmp_path / "file" / "below"))
    with pytest.warns(MiniDNNWarning, match="cannot be written"):
        assert works(compile_units([unit(DOUBLE + "// unwritable\n")])[0])


def test_full_disk(monkeypatch: pytest.MonkeyPatch, cold_cache: Path) -> None:
    from minidnn.cache import _store

    place = _store.place

    def full(base: Path, target: Path, fill) -> None:
        if target.is_relative_to(cold_cache):
            raise OSError(errno.ENOSPC, "No space left on device")
        place(base, target, fill)

    monkeypatch.setattr(_store, "place", full)
    with pytest.warns(MiniDNNWarning, match="No space left on device"):
        assert works(compile_units([unit(DOUBLE + "// full\n")])[0])


def test_full_temporary_folder(monkeypatch: pytest.MonkeyPatch, cold_cache: Path) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(kernels, "temporary_folder", full)
    with pytest.raises(CompileError, match=r"compiling unit failed: .*No space left.*TMPDIR"):
        compile_units([unit()])


@pytest.mark.alone
def test_many_processes_compile_once(
    make_fake: MakeFake, cold_cache: Path, tmp_path: Path, real_ispc: str
) -> None:
    count = 16 if IS_FULL else 6
    log = tmp_path / "log"
    make_fake(f'echo x >> {log}\nexec {real_ispc} "$@"\n')
    code = f"""
        from minidnn.backends.cpu.compilers.kernels import Unit, compile_units
        from minidnn.backends.cpu.compilers.kernels import prelude
        from minidnn.backends.cpu.isa import AVX2
        units = [Unit(f"u{{i}}", prelude(AVX2) + {DOUBLE!r} + f"// {{i}}", AVX2) for i in range(3)]
        print(len([library.kernel("twice") for library in compile_units(units)]))
        """
    children = [run_python(code) for _ in range(count)]
    ended = [child.communicate(timeout=60) for child in children]
    assert [out for out, _ in ended] == ["3\n"] * count, [err for _, err in ended if err]
    assert log.read_text().count("x") == 3


def test_hanging_builder_does_not_block_the_next(
    make_fake: MakeFake, cold_cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Somebody else holds the lock for ever: the wait says so and ends after the time limit."""
    with one_at_a_time(kernels.BUILD_LOCK, "hangs", 1.0):
        start = time.monotonic()
        make_fake("exit 5")
        with pytest.raises(CompileError, match="exit status 5"):
            compile_units([unit()], timeout=1.2)
        assert 1.2 <= time.monotonic() - start < 5
    waiting, going_on = (record.getMessage() for record in caplog.records)
    holder = f"process {os.getpid()} on {platform.node()}"
    lock = cold_cache / "locks" / f"{kernels.BUILD_LOCK}.lock"
    assert waiting == f"waiting for {holder}, which compiles and holds {lock} (for at most 1.2 s)"
    assert going_on == f"{holder} still compiles after 1 s and holds {lock}; going on beside it"


def test_ctrl_c_leaves_nothing(make_fake: MakeFake, cold_cache: Path, tmp_path: Path) -> None:
    make_fake("sleep 1051.5 & sleep 1051.5")
    code = """
        from minidnn.backends.cpu.compilers.kernels import Unit, compile_units
        from minidnn.backends.cpu.isa import AVX2
        try:
            compile_units([Unit(f"u{i}", f"// {i}", AVX2) for i in range(4)])
        except KeyboardInterrupt:
            print("interrupted")
        """
    child = run_python(code, TMPDIR=str(tmp_path))
    assert wait_until(lambda: len(processes_with("sleep 1051.5")) >= 2), child.communicate()
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=10)
    assert out == "interrupted\n", err
    assert wait_until(lambda: not processes_with("sleep 1051.5"))
    assert not list(tmp_path.glob("minidnn-*"))


def test_progress_counts_units(cold_cache: Path) -> None:
    seen = []
    units = [unit(DOUBLE + f"// {i}\n", f"u{i}") for i in range(3)]
    compile_units(units, progress=lambda text, done, total: seen.append((text, done, total)))
    assert seen == [("compiling kernels", i, 3) for i in range(4)]


def test_limit_from_the_environment(
    make_fake: MakeFake, cold_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_fake("sleep 1052.5")
    monkeypatch.setenv("MINIDNN_COMPILE_TIMEOUT", "0.3")
    with pytest.raises(CompileError, match=r"took longer than 0\.3 s and was killed"):
        compile_units([unit()])
    for text in ("soon", "-1", "0", "inf", "nan"):
        monkeypatch.setenv("MINIDNN_COMPILE_TIMEOUT", text)
        with pytest.raises(DeviceError, match=f"TIMEOUT={text} is not a positive number of sec"):
            compile_units([unit()])
