"""Compiled networks in files: the same bits in a process that has NumPy and no compiler, and a
clear error for every file that is not for this machine, this version, or not whole."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import minidnn as md
from minidnn import compiled_file, models
from minidnn import layers as L
from minidnn.backends.cpu.compilers import library
from minidnn.backends.cpu.execution import stored
from minidnn.cli import main
from minidnn.cli.batch import _load
from minidnn.cli.serve import sources_of
from minidnn.compiled_file import CONSTANTS, CompiledFile
from minidnn.errors import DeviceError, GraphError, MiniDNNError, UnsupportedError, WeightsError
from minidnn.executable import Executable
from minidnn.graph.ir import Constant, Graph, Node, Value
from minidnn.graph.operators import ReLU
from minidnn.graph.types import TensorType
from minidnn.runtime.program import StoredProgram
from tests.compile.several import Several

ROOT = Path(__file__).resolve().parents[2]
SHAPE = (4, 3, 20, 20)


@pytest.fixture(scope="module")
def exe() -> Executable:
    return md.compile(Several(), SHAPE, device="cpu", threads=2)


@pytest.fixture(scope="module")
def saved(exe: Executable, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("compiled") / "net.mdx"
    exe.save(path)
    return path


@pytest.fixture
def copy(saved: Path, tmp_path: Path) -> Callable[[Callable[[bytearray], None]], Path]:
    """Makes a file of the saved one's bytes after a change."""

    def copied(change: Callable[[bytearray], None]) -> Path:
        data = bytearray(saved.read_bytes())
        change(data)
        path = tmp_path / "changed.mdx"
        path.write_bytes(data)
        return path

    return copied


PROGRAM = """
    import sys

    class Blocked:
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] not in {*sys.stdlib_module_names, "numpy", "minidnn"} \
                    and not name.startswith("_sysconfigdata"):
                raise ImportError(f"{name} is not installed")

    sys.meta_path.insert(0, Blocked())
    import numpy as np
    import minidnn as md

    file, x, y = sys.argv[1:]
    exe = md.load(file)
    want, got = np.load(y), exe(np.load(x))
    assert sorted(got) == ["again", "given", "scores"], sorted(got)
    np.testing.assert_array_equal(got["scores"], want)
    np.testing.assert_array_equal(got["again"], want)
    heavy = {"minidnn.graph.ir", "minidnn.cache", "minidnn.compiler"}
    assert not heavy & set(sys.modules), heavy & set(sys.modules)
"""


def test_it_runs_with_numpy_alone_and_nothing_that_compiles(
    exe: Executable, saved: Path, tmp_path: Path
) -> None:
    x = exe.random_inputs()[0]
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", exe(x)["scores"])
    cache = tmp_path / "cache"
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), saved, "x.npy", "y.npy"],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tmp_path,
        env={
            "PATH": "",
            "PYTHONPATH": str(ROOT),
            "MINIDNN_NO_COMPILE": "1",
            "MINIDNN_CACHE": str(cache),
        },
    )
    assert done.returncode == 0, done.stderr
    assert not cache.exists()


@pytest.mark.parametrize("threads", [None, 1, 3])
def test_results_have_the_same_bits_on_any_number_of_threads(
    exe: Executable, saved: Path, threads: int | None
) -> None:
    loaded = md.load(saved, threads=threads, check=True)
    x = exe.random_inputs()[0]
    want, got = exe(x), loaded(x)
    assert list(got) == list(want)
    for name in want:
        np.testing.assert_array_equal(got[name], want[name])
    with pytest.raises(GraphError, match=r"threads=0; valid is an int from 1 to 1024"):
        md.load(saved, threads=0)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_result_that_is_a_constant_and_results_in_float16(dtype: str, tmp_path: Path) -> None:
    x = Value(TensorType((1, 3, 8, 8), dtype), "x")
    relu = Node(ReLU(), [x], "relu")
    six = Constant(TensorType((1, 6), dtype), "six", np.arange(6, dtype=dtype).reshape(1, 6))
    graph = Graph([x], [relu.output, six], [relu])
    exe = md.compile(graph, device="cpu", precision="float32", threads=1)
    exe.save(tmp_path / "net.mdx")
    given = exe.random_inputs()[0]
    for got, want in zip(md.load(tmp_path / "net.mdx")(given), exe(given), strict=True):
        assert got.dtype == dtype
        np.testing.assert_array_equal(got, want)


def test_weights_are_mapped_from_the_file(saved: Path) -> None:
    loaded = md.load(saved)
    assert isinstance(loaded, Executable)
    address = loaded.program._constants.ctypes.data  # type: ignore[attr-defined]
    assert address % 4096 == 0
    for line in Path("/proc/self/maps").read_text().splitlines():
        begin, end = (int(number, 16) for number in line.split()[0].split("-"))
        if begin <= address < end:
            assert line.endswith(str(saved))
            assert line.split()[1] == "r--s"
            return
    raise AssertionError("the constants are not mapped")


def test_what_a_file_keeps_and_what_not(exe: Executable, saved: Path) -> None:
    loaded = md.load(saved)
    assert isinstance(loaded, Executable)
    assert repr(loaded) == repr(exe)
    assert loaded.explain() == exe.explain()
    for asked in (
        lambda: loaded.graph,
        lambda: loaded.source,
        lambda: loaded.explain(measure=True),
        lambda: loaded.profile(*exe.random_inputs()),
    ):
        with pytest.raises(UnsupportedError, match=r"was loaded from a file, which keeps what is"):
            asked()
    with pytest.raises(UnsupportedError, match=r"a file that was loaded can be copied"):
        loaded.save("other.mdx")
    with pytest.raises(GraphError, match=r"input 'input' has shape \(1, 3, 20, 20\)"):
        loaded(np.zeros((1, 3, 20, 20), np.float32))


def test_what_cannot_be_saved(tmp_path: Path) -> None:
    net = L.Sequential(L.ReLU())
    with pytest.raises(UnsupportedError, match="cannot be saved compiled: devices 'cpu' and 'cu"):
        md.compile(net, (1, 3), device="reference").save(tmp_path / "net.mdx")
    guarded = md.compile(net, (1, 3), device="cpu", guarded=True)
    with pytest.raises(UnsupportedError, match=r"guarded=True\) cannot be saved"):
        guarded.save(tmp_path / "net.mdx")
    plain = md.compile(net, (1, 3), device="cpu")
    with pytest.raises(GraphError, match=r"save: path=3 is a int; valid is a path"):
        plain.save(3)  # type: ignore[arg-type]
    with pytest.raises(OSError, match=r"No such file.*missing/net.mdx"):
        plain.save(tmp_path / "missing" / "net.mdx")
    assert not list(tmp_path.iterdir())


def _flip(at: int) -> Callable[[bytearray], None]:
    def flip(data: bytearray) -> None:
        data[at] ^= 1

    return flip


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data.clear(), "it begins otherwise"),
        (lambda data: data.__delitem__(slice(20, None)), "it has 20 bytes: it is truncated"),
        (lambda data: data.__delitem__(slice(300, None)), "it has 300 bytes: it is truncated"),
        (
            lambda data: data.__delitem__(slice(-100, None)),
            r"bytes instead of \d+: it is truncated",
        ),
        (lambda data: data.append(0), r"bytes instead of \d+: something was added"),
        (_flip(0), "it begins otherwise; valid is what executable.save wrote"),
        (_flip(20), "its header is not what was written"),
        (_flip(100), "its header is not what was written"),
        (lambda data: data.__setitem__(slice(0, None), b"{}"), "it begins otherwise"),
    ],
)
def test_damaged_files(
    copy: Callable[..., Path], change: Callable[[bytearray], None], message: str
) -> None:
    path = copy(change)
    with pytest.raises(
        WeightsError, match=f"compiled network '{path}' cannot be loaded: .*{message}"
    ):
        md.load(path)


def test_every_part_is_checked_and_weights_unless_told_otherwise(
    saved: Path, copy: Callable[..., Path]
) -> None:
    file = CompiledFile(saved)
    for name, (offset, size, _) in file.header["parts"].items():
        drawn = np.random.default_rng(0).integers(0, size, 5)
        for at in (*drawn, 0, size - 1):
            path = copy(_flip(int(file._base + offset + at)))
            with pytest.raises(WeightsError, match=f"{name} .*not what w.*differ"):
                md.load(path)
            if name == CONSTANTS:
                md.load(path, check=False)


def test_commands_check_whole_files(saved: Path, copy: Callable[..., Path]) -> None:
    file = CompiledFile(saved)
    offset, size, _ = file.header["parts"][CONSTANTS]
    path = str(copy(_flip(file._base + offset + size - 1)))
    options = argparse.Namespace(models=[path], device=None, threads=1)
    (source,) = sources_of(options, print)
    with pytest.raises(WeightsError, match="constants are not what was written"):
        source.open().compile(None)
    with pytest.raises(WeightsError, match="constants are not what was written"):
        _load(path, "cpu", 1, 4)


def test_tables_of_offsets_are_checked_always(tmp_path: Path) -> None:
    net = L.Sequential(L.Conv2d(3, 8, 3), L.Upsample(scale_factor=1.5), L.Conv2d(8, 4, 1))
    path = tmp_path / "net.mdx"
    md.compile(net, (1, 3, 9, 9), device="cpu", threads=1).save(path)
    file = CompiledFile(path)
    constants, indices = file.part(CONSTANTS), file.header["indices"]
    assert 0 < indices < constants.size
    assert np.all(constants[:indices].view(np.int64) >= -1)  # sizes and offsets, no weights
    data = bytearray(path.read_bytes())
    data[data.find(constants.tobytes()) + indices - 1] ^= 1
    path.write_bytes(data)
    with pytest.raises(WeightsError, match=r"1 of 1 blocks of 1048576 bytes .*first at byte 0"):
        md.load(path, check=False)


def test_blocks_of_weights_and_of_indices(tmp_path: Path) -> None:
    block = compiled_file._BLOCK
    sizes = (40, 3 * block, 1, 5 * block + 17)
    arrays = [np.random.default_rng(i).integers(0, 256, n, np.uint8) for i, n in enumerate(sizes)]
    program = StoredProgram("any", {}, {"code": b"code"}, arrays, block + 1)
    compiled_file.write_compiled(tmp_path / "net", "cpu", program, {})
    whole = (tmp_path / "net").read_bytes()
    file = CompiledFile(tmp_path / "net")
    data = file.part(CONSTANTS).tobytes()
    assert data[64 : 64 + sizes[1]] == arrays[1].tobytes()
    file.check_constants(all=True)
    begin = len(whole) - len(data)
    for at in (0, block, 2 * block - 1, 2 * block, 8 * block, len(data) - 1):
        changed = bytearray(whole)
        changed[begin + at] ^= 0x40
        (tmp_path / "changed").write_bytes(changed)
        file = CompiledFile(tmp_path / "changed")
        message = rf"1 of 9 blocks of .* the first at byte {at // block * block}$"
        with pytest.raises(WeightsError, match=message):
            file.check_constants(all=True)
        if at < 2 * block:
            with pytest.raises(WeightsError, match="1 of 2 blocks"):
                file.check_constants(all=False)
        else:
            file.check_constants(all=False)


def test_files_for_others(
    saved: Path, copy: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    later = copy(lambda data: data.__setitem__(8, 9))
    with pytest.raises(
        UnsupportedError, match=r"has format 9, and minidnn .* reads formats 2 and 3; comp"
    ):
        md.load(later)
    with monkeypatch.context() as patch:
        patch.setattr(stored, "processor_flags", lambda: frozenset({"sse2"}))
        with pytest.raises(UnsupportedError, match=r"is for avx\w+, and this processor lacks "):
            md.load(saved)
    with monkeypatch.context() as patch:
        patch.setattr(compiled_file, "__version__", "9.9")
        with pytest.raises(UnsupportedError, match=r"by minidnn 0.1.0, and this is minidnn 9.9;"):
            md.load(saved)
    with monkeypatch.context() as patch:
        patch.setattr(compiled_file, "system", lambda: "linux-riscv64")
        with pytest.raises(UnsupportedError, match=r"is for linux-\w+, and this is linux-riscv64"):
            md.load(saved)
    with monkeypatch.context() as patch:
        patch.setattr(stored, "sources_digest", lambda: "other")
        with pytest.raises(UnsupportedError, match=r"the native runner of another state"):
            md.load(saved)


def test_what_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="it is not a regular file"):
        md.load(tmp_path)
    with pytest.raises(WeightsError, match="No such file or directory"):
        md.load(tmp_path / "missing.mdx")
    os.mkfifo(tmp_path / "pipe.mdx")
    with pytest.raises(WeightsError, match="it is not a regular file"):
        md.load(tmp_path / "pipe.mdx")
    with pytest.raises(GraphError, match=r"load: path=None is a NoneType; valid is a path"):
        md.load(None)  # type: ignore[arg-type]


def test_where_a_network_is_wanted_the_error_says_what_loads_it(saved: Path) -> None:
    for take in (md.compile, md.load_graph, md.load_weights):
        with pytest.raises(MiniDNNError, match=r"compiled network.*, which minidnn.load\(path\)"):
            take(saved)  # type: ignore[operator]


def test_without_memory_that_has_no_name_code_is_loaded_from_a_private_folder(
    exe: Executable, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(data: memoryview) -> None:
        raise OSError("no such memory")

    monkeypatch.setattr(library, "_from_memory", refused)
    monkeypatch.setattr(library, "_loaded", {})
    x = exe.random_inputs()[0]
    np.testing.assert_array_equal(md.load(saved)(x)["scores"], exe(x)["scores"])


def test_code_that_cannot_be_loaded(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise OSError("version `GLIBC_9.9' not found")

    monkeypatch.setattr(library, "_from_memory", refused)
    monkeypatch.setattr(library, "_from_temporary", refused)
    monkeypatch.setattr(library, "_loaded", {})
    with pytest.raises(DeviceError, match=r"net.mdx: its code cannot be loaded: .*GLIBC_9.9"):
        md.load(saved)


def test_the_command_writes_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, x = tmp_path / "digits.mdx", np.ones((3, 1, 8, 8), np.float32)
    how = ("--weights", "default", "--batch", "3", "--isa", "avx2", "--threads", "1")
    assert main(["export", "digits", str(path), *how]) == 0
    printed = capsys.readouterr()
    assert printed.err == "" and "float32[3, 1, 8, 8]" in printed.out
    expected = md.compile(models.digits(weights="DEFAULT"), x.shape, device="reference")(x)
    np.testing.assert_allclose(md.load(path)(x), expected, rtol=1e-4, atol=1e-5)
    assert main(["export", str(path), str(tmp_path / "net.onnx")]) == 2
    assert "a compiled network, which minidnn.load(path) loads" in capsys.readouterr().err


def test_a_program_with_states_is_not_saved(tmp_path: Path) -> None:
    net = L.Sequential(L.Conv2d(3, 8, 1))
    exe = md.compile(net, (1, 3, 4, 4), device="cpu", store=md.Store())
    with pytest.raises(UnsupportedError, match=r"what has states, which live in a store"):
        exe.save(tmp_path / "net.mdx")
