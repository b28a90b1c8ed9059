"""Every test has a cache of its own, which ISPC and the C compiler need not be asked for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from minidnn import models
from minidnn.weights import save_weights


@pytest.fixture(autouse=True)
def cache_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("MINIDNN_CACHE", str(folder))
    return folder


@pytest.fixture(scope="session")
def squeezenet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights of squeezenet1_1, with larger scores than random ones have."""
    path = tmp_path_factory.mktemp("weights") / "squeezenet1_1.safetensors"
    state = dict(models.squeezenet1_1(seed=7).state_dict())
    last = "classifier.1.weight"
    state[last] = np.asarray(state[last] * 30, np.float32)
    save_weights(state, path)
    return path
