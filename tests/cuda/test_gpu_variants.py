"""Sequences whose kernels were chosen by measurement, on a GPU."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from minidnn.backends.cuda import fastest

pytestmark = pytest.mark.gpu
SHAPE = (8, 32, 30, 26)


def network() -> md.Layer:
    """Sequences of every kind: in registers, patches, a lone window, element after element."""
    block = (L.MaxPool2d(3, 1, 1), L.BatchNorm2d(32), L.ReLU())
    return L.Sequential(*block * 3, L.MaxPool2d(2), L.AvgPool2d(3, 1, 1), L.Sigmoid())


@pytest.mark.parametrize("precision", ["float32", "float16", "bfloat16"])
def test_what_is_measured_gives_the_same_bits_and_is_remembered(
    precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINIDNN_CACHE", str(tmp_path))
    races: list[int] = []
    race = fastest.race

    def counted(contestants: Any) -> Any:
        races.append(len(contestants))
        return race(contestants)

    monkeypatch.setattr(fastest, "race", counted)
    net = network()
    x = np.random.default_rng(0).standard_normal(SHAPE, np.float32)
    usual = md.compile(net, SHAPE, device="cuda", precision=precision)
    assert not races
    tuned = md.compile(net, SHAPE, device="cuda", precision=precision, tune="exhaustive")
    assert races and min(races) > 3
    np.testing.assert_array_equal(tuned(x), usual(x))
    assert re.search(r"the fastest of \d+ kernels", str(tuned.explain(measure=True)))
    count = len(races)
    again = md.compile(net, SHAPE, device="cuda", precision=precision, tune="exhaustive")
    assert len(races) == count, "it was remembered"
    np.testing.assert_array_equal(again(x), usual(x))
