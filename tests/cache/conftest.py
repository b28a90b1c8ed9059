from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def cache_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test has a cache folder of its own."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("MINIDNN_CACHE", str(folder))
    monkeypatch.delenv("MINIDNN_NO_COMPILE", raising=False)
    return folder
