from __future__ import annotations

import io
import struct
import threading
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.weights.server import SHA, Handler, Plan, Server

Write = Callable[..., Path]


@pytest.fixture(autouse=True)
def cache_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test has a cache folder of its own, and talks to its own server without a proxy."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("MINIDNN_CACHE", str(folder))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    return folder


@pytest.fixture
def tensors() -> dict[str, np.ndarray[Any, Any]]:
    """A state dict with every dtype, an empty tensor and a scalar."""
    rng = np.random.default_rng(0)
    made: dict[str, np.ndarray[Any, Any]] = {
        f"layer.{kind}": (rng.standard_normal((3, 4)) * 50).astype(kind)
        for kind in ("f8", "f4", "f2", "i8", "i4", "i2", "i1", "u1", "?")
    }
    made["empty"] = np.zeros((0, 3), np.float32)
    made["scalar"] = np.array(7, np.int64)
    made["special"] = np.array([np.nan, np.inf, -np.inf, -0.0, 1e-45], np.float32)
    return made


@pytest.fixture
def write_zip(tmp_path: Path) -> Write:
    """Writes a zip file like torch.save's from a pickle and the bytes of storages."""

    def write(
        pickled: bytes,
        storages: dict[str, bytes] | None = None,
        extra: dict[str, bytes] | None = None,
        compression: int = zipfile.ZIP_STORED,
    ) -> Path:
        path = tmp_path / "made.pth"
        with zipfile.ZipFile(path, "w", compression) as archive:
            archive.writestr("archive/data.pkl", pickled)
            for key, data in (storages or {}).items():
                archive.writestr(f"archive/data/{key}", data)
            for name, data in (extra or {}).items():
                archive.writestr(name, data)
        return path

    return write


@pytest.fixture
def write_legacy(tmp_path: Path) -> Write:
    """Writes a file like that of PyTorch before 1.6 from an object's pickle and storages."""

    def write(pickled: bytes, storages: dict[str, tuple[int, bytes]] | None = None) -> Path:
        out = io.BytesIO()
        out.write(b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.")
        out.write(b"\x80\x02M\xe9\x03.")
        out.write(b"\x80\x02}q\x00X\x0d\x00\x00\x00little_endianq\x01\x88s.")
        out.write(pickled)
        out.write(b"\x80\x02](")
        for key in storages or {}:
            out.write(b"X" + struct.pack("<I", len(key)) + key.encode())
        out.write(b"e.")
        for count, data in (storages or {}).values():
            out.write(struct.pack("<q", count) + data)
        path = tmp_path / "made_legacy.pth"
        path.write_bytes(out.getvalue())
        return path

    return write


@pytest.fixture
def plan() -> Plan:
    return Plan()


@pytest.fixture
def url(plan: Plan) -> Iterator[str]:
    handler = type("PlannedHandler", (Handler,), {"plan": plan})
    with Server(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/models/net-{SHA[:8]}.pth"
        plan.release.set()
        server.shutdown()
        thread.join()
