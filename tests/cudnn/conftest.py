"""Fixtures: the binding on top of fakes, with nothing left over from other tests."""

from __future__ import annotations

import gc
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from minidnn.cudnn import (
    activation,
    batch_norm,
    handle,
    library,
    machine,
    pooling,
    tensor,
    workspace,
)
from minidnn.cudnn.compat import batch_norm as compat_batch_norm
from minidnn.cudnn.compat import convolution as compat_convolution
from minidnn.cudnn.convolution import choose, functions


def _load(name: str) -> Any:
    """Import a helper beside this file; importlib mode has no package for it."""
    full = f"cudnn_tests_{name}"
    if full not in sys.modules:
        place = Path(__file__).with_name(f"{name}.py")
        spec = importlib.util.spec_from_file_location(full, place)
        assert spec and spec.loader
        module = importlib.util.module_from_spec(spec)
        sys.modules[full] = module
        spec.loader.exec_module(module)
    return sys.modules[full]


def _forget() -> None:
    for memo in (
        tensor._cache,
        tensor._by_array,
        activation._cache,
        pooling._cache,
        batch_norm._derived,
        compat_batch_norm._described,
        compat_convolution._warm,
        choose._plans,
        functions._warm,
    ):
        memo.clear()
    workspace.release()
    handle.reset_handles()
    machine.device_name.cache_clear()
    compat_convolution._capability.cache_clear()
    gc.collect()


@pytest.fixture(scope="module", autouse=True)
def _frozen() -> None:
    """What was there before a file's tests is not looked at by each of their collections, nor by
    later ones: thawing it would thaw what stays to the end, too, of which looking at all takes
    half a second each time that a test or minidnn asks for a collection (tests/conftest.py)."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[SimpleNamespace]:
    """The binding on a fake CuPy and cuDNN: ``fake.cupy``, ``fake.dll``."""
    fakes = _load("fakes")
    _forget()
    monkeypatch.setenv("MINIDNN_CACHE", str(tmp_path))
    cupy, dll = fakes.FakeCupy(), fakes.FakeCuDNN()
    monkeypatch.setattr("minidnn.gpu._module", cupy)
    monkeypatch.setattr(library, "_library", library.Library(dll, "/fake/libcudnn.so.9"))
    yield SimpleNamespace(cupy=cupy, dll=dll)
    _forget()
    assert not dll.live, "descriptors or handles were not freed"


@pytest.fixture
def oracles() -> Any:
    """The module oracles.py."""
    return _load("oracles")


@pytest.fixture
def real_cupy() -> Any:
    """CuPy, on a machine with a GPU."""
    import cupy

    return cupy
