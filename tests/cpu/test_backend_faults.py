"""Broken compilers and caches, and many processes, as a caller of md.compile meets them."""

from __future__ import annotations

import errno
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from minidnn.backends.backend import default_device
from minidnn.errors import CompileError, DeviceError, MiniDNNWarning
from tests.sampling import IS_FULL

from .conftest import MakeFake, processes_with, run_python, wait_until

SHAPE = (1, 3, 12, 12)


def network() -> Any:
    """One kernel: many tests compile it from nothing, here and in other processes."""
    return L.Sequential(L.Conv2d(3, 5, 3), L.ReLU())


def works(exe: Any) -> bool:
    x = np.random.default_rng(0).standard_normal(SHAPE, np.float32)
    expected = md.compile(network(), SHAPE, device="reference")(x)
    return np.allclose(exe(x), expected, rtol=1e-4, atol=1e-5)


def compiled() -> Any:
    return md.compile(network(), SHAPE, device="cpu")


def test_without_ispc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    missing = tmp_path / "no-ispc"
    monkeypatch.setenv("MINIDNN_ISPC", str(missing))
    with pytest.raises(DeviceError, match=r"device='cpu' cannot be used here: .*does not exist"):
        compiled()
    device, reasons = default_device()
    assert device == "reference"
    assert any(f"MINIDNN_ISPC={missing} does not exist" in reason for reason in reasons)
    assert md.compile(network(), SHAPE).device == "reference"


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("echo 'LLVM ERROR: no such pass'; exit 2", "LLVM ERROR: no such pass"),
        ("sleep 1061.5 & sleep 1061.5", r"took longer than 0\.5 s and was killed on kernels_"),
        ("kill -KILL $$", r"was killed by signal 9 \(SIGKILL\) on kernels_"),
    ],
)
def test_broken_ispc(
    make_fake: MakeFake,
    cold_cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    body: str,
    message: str,
    real_ispc: str,
) -> None:
    make_fake(body)
    monkeypatch.setenv("MINIDNN_COMPILE_TIMEOUT", "0.5")
    start = time.monotonic()
    with pytest.raises(CompileError, match=message):
        compiled()
    assert time.monotonic() - start < 10
    assert wait_until(lambda: not processes_with("sleep 1061.5"))
    # Nothing of it is left: the next compilation is right.
    monkeypatch.setenv("MINIDNN_ISPC", real_ispc)
    monkeypatch.delenv("MINIDNN_COMPILE_TIMEOUT")
    assert works(compiled())


def test_damaged_cache(cold_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    several = [L.Conv2d(3, 16, 3), L.ReLU(), L.MaxPool2d(2), L.Flatten(), L.Linear(400, 5)]
    monkeypatch.setitem(globals(), "network", lambda: L.Sequential(*several))
    assert works(compiled())
    damaged = 0
    for path in [*cold_cache.glob("ispc/*/*.so"), *cold_cache.glob("ispc_index/*/*.json")]:
        data = path.read_bytes()
        path.unlink()  # this process has the libraries mapped: not in place
        path.write_bytes(data[: len(data) // 2])
        damaged += 1
    assert damaged >= 4
    with pytest.warns(MiniDNNWarning, match="is damaged"):
        assert works(compiled())
    assert works(compiled())


@pytest.mark.filterwarnings("ignore:.*cannot be written:minidnn.errors.MiniDNNWarning")
def test_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MINIDNN_CACHE", str(tmp_path / "file" / "below"))
    assert works(compiled())


@pytest.mark.filterwarnings("ignore:.*No space left:minidnn.errors.MiniDNNWarning")
def test_full_disk(monkeypatch: pytest.MonkeyPatch, cold_cache: Path) -> None:
    from minidnn.cache import _store

    place = _store.place

    def full(base: Path, target: Path, fill: Any) -> None:
        if target.is_relative_to(cold_cache):
            raise OSError(errno.ENOSPC, "No space left on device")
        place(base, target, fill)

    monkeypatch.setattr(_store, "place", full)
    assert works(compiled())


@pytest.mark.alone
def test_many_processes(
    make_fake: MakeFake, cold_cache: Path, tmp_path: Path, real_ispc: str
) -> None:
    """All get the same bits, and every file is compiled once."""
    log = tmp_path / "log"
    make_fake(f'echo x >> {log}\nexec {real_ispc} "$@"\n')
    code = f"""
        import hashlib
        import numpy as np
        import minidnn as md
        from tests.cpu.test_backend_faults import network
        exe = md.compile(network(), {SHAPE}, device="cpu", threads=1)
        x = np.random.default_rng(0).standard_normal({SHAPE}, np.float32)
        print(hashlib.sha256(exe(x).tobytes()).hexdigest())
        """
    children = [run_python(code) for _ in range(16 if IS_FULL else 6)]
    ended = [child.communicate(timeout=120) for child in children]
    said = [line for _, err in ended for line in err.splitlines()]
    others = [line for line in said if not line.startswith("waiting for ")]
    assert not others, "\n".join(others)
    assert len({out for out, _ in ended}) == 1 and len(ended[0][0]) == 65
    files = len(list(cold_cache.glob("ispc/*/*.so")))
    assert log.read_text().count("x") == files >= 1
    assert works(compiled())
