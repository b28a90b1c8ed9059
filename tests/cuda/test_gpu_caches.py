"""What was kept for another card or version, or is damaged, is not used; nothing else is lost."""

from __future__ import annotations

import json
import threading
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from minidnn.backends.cuda import functions
from minidnn.backends.cuda.contraction import choice, tune
from minidnn.backends.cuda.contraction.problem import ContractionProblem
from minidnn.backends.cuda.functions import compile_kernels
from minidnn.backends.cuda.machine import machine_of
from minidnn.errors import MiniDNNWarning

pytestmark = pytest.mark.gpu
SHAPE = (2, 8, 12, 12)
KINDS = ("cubin", "cubin_index", "cuda_contraction")
TOLERANCE = {"float32": 1e-5, "float16": 5e-3}
"""Of the largest value."""


@cache
def network() -> md.Layer:
    return L.Sequential(L.Conv2d(8, 16, 3, padding=1, bias=False), L.MaxPool2d(3, 1, 1))


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A cache that only this test has."""
    monkeypatch.setenv("MINIDNN_CACHE", str(tmp_path))
    return tmp_path


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[ContractionProblem]:
    """The problems that were measured, as they are; a thread that an earlier test left behind may
    measure its own."""
    found: list[ContractionProblem] = []
    measure = choice.measured
    own = threading.get_ident()

    def noted(problem: ContractionProblem, built: Any, tuning: Any) -> Any:
        if threading.get_ident() == own:
            found.append(problem)
        return measure(problem, built, tuning)

    monkeypatch.setattr(choice, "measured", noted)
    return found


def right(precision: str = "float16", tuned: str = "quick") -> np.ndarray:
    """The result of the network, compiled now; it is right."""
    x = np.random.default_rng(0).standard_normal(SHAPE, np.float32)
    exe = md.compile(network(), SHAPE, device="cuda", precision=precision, tune=tuned)
    expected = md.compile(network(), SHAPE, device="reference")(x)
    result = np.asarray(exe(x), np.float32)
    assert np.abs(result - expected).max() < TOLERANCE[precision] * np.abs(expected).max()
    return result


@pytest.mark.early
@pytest.mark.parametrize("precision", TOLERANCE)
def test_all_that_there_is_can_be_measured_and_is_remembered(
    precision: str, measured: list[ContractionProblem], folder: Path
) -> None:
    first = right(precision, "exhaustive")
    assert len(measured) == 1
    (entry,) = (folder / "cuda_contraction").rglob("*.json")
    assert json.loads(entry.read_text())["ranked"]
    np.testing.assert_array_equal(right(precision, "exhaustive"), first)
    assert len(measured) == 1


@pytest.mark.parametrize(
    "name, other",
    [("device_name", lambda index: "another card"), ("library_name", lambda: "another cuDNN")],
    ids=["card", "version"],
)
def test_choices_of_another_card_or_version_are_not_taken(
    name: str,
    other: Callable[..., str],
    measured: list[ContractionProblem],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as there:
        there.setattr(tune, name, other)
        right()
    races = len(measured)  # a second one if engines that compile may save much
    assert races in (1, 2)
    right()
    assert len(measured) == 2 * races
    right()
    assert len(measured) == 2 * races


def test_kernels_of_another_card_are_not_taken(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of an architecture that cannot run here lie in the cache under the same names."""
    own = machine_of(0).arch
    other = "sm_80" if own != "sm_80" else "sm_90"
    sources: dict[str, Any] = {}

    def collected(given: Any, arch: str) -> Any:
        sources.update((source.name, source) for source in given if not source.specific)
        return compile_kernels(given, arch)

    with monkeypatch.context() as there:
        there.setattr(functions, "compile_kernels", collected)
        right("float32")
    (folder / "cubin_index").rename(folder / "gone")  # as on a machine of the other card
    theirs = compile_kernels(list(sources.values()), other)
    right("float32")
    ours = compile_kernels(list(sources.values()), own)
    assert ours
    for one, two in zip(ours, theirs, strict=True):
        assert one.name == two.name and one.cubin != two.cubin


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_entries_are_told_and_written_again(kind: str, folder: Path) -> None:
    first = right()
    entries = [path for path in (folder / kind).rglob("*") if path.is_file()]
    assert entries
    for path in entries:
        path.chmod(0o600)
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.warns(MiniDNNWarning, match="is damaged: its checksum is .* built again"):
        right()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = right()
    assert np.isfinite(again).all() and again.shape == first.shape
