"""The ladders of copied and reversed words: right in the emulator, compiled, counted by hand."""

from __future__ import annotations

import pytest

from minidnn.backends.cuda.functions import compile_kernels
from minidnn.lab.api import H100, ladder_of
from minidnn.lab.cuda.arrays import WordsShape
from minidnn.lab.model import Prediction
from minidnn.lab.step import points_of
from minidnn.lab.studies import predict

STEPS = [(name, step) for name in ("memory", "reverse") for step in ladder_of(name).steps]


def predicted(name: str, step: str, **parameters: int) -> Prediction:
    ladder = ladder_of(name)
    points = points_of([ladder.step(step)], [(16, 16)], parameters)
    (one,) = predict(points, WordsShape(1 << 20), H100)
    assert isinstance(one, Prediction)
    return one


@pytest.mark.parametrize(
    ("step", "parameters", "sectors"),
    [
        ("words", {}, 4.0),
        ("pairs", {}, 8.0),
        ("vectors", {}, 16.0),
        ("fields", {"FIELDS": 4}, 4.0),
        ("structures", {"FIELDS": 4}, 16.0),
        ("strided", {"STRIDE": 1}, 4.0),
        ("strided", {"STRIDE": 2}, 8.0),
        ("strided", {"STRIDE": 8}, 32.0),
        ("strided", {"STRIDE": 32}, 32.0),
        ("pitched", {"WIDTH": 1001}, 4.0),
    ],
)
def test_sectors_counted_by_hand(step: str, parameters: dict[str, int], sectors: float) -> None:
    found = predicted("memory", step, **parameters)
    assert found.sectors_a_request == sectors
    # Reads of a block share sectors; each instruction that writes sends all that it touches.
    read = min(8, parameters.get("STRIDE", 1))
    written = parameters["FIELDS"] if step == "structures" else read
    assert found.bytes_moved["L2"] == pytest.approx((4 << 20) * (read + written), rel=0.02)


def test_misaligned_words_touch_a_sector_more() -> None:
    assert 4.9 < predicted("memory", "shifted", SHIFT=1).sectors_a_request <= 5
    assert predicted("memory", "shifted", SHIFT=8).sectors_a_request < 4.1
    assert predicted("memory", "rows", WIDTH=1001).sectors_a_request > 4.5


def test_reversing_has_no_conflicts() -> None:
    for step in ladder_of("reverse").steps:
        found = predicted("reverse", step.name)
        assert found.bank_conflicts == 1.0 and found.coalescing == 1.0
    assert predicted("reverse", "fixed").resources.shared_bytes == 4 * 256
    assert predicted("reverse", "sized").launch.shared_bytes == 4 * 256


def test_refusals_are_reasons() -> None:
    step = ladder_of("memory").step("vectors")
    reason = step.why_not(WordsShape(6), (8, 8), H100)
    assert reason == "6 words; this step wants a multiple of 4"


def test_steps_compile() -> None:
    launches = [call.launch for _, step in STEPS for call in step.calls(WordsShape(), (32, 8))]
    kernels = compile_kernels([launch.source for launch in launches], "sm_90")
    assert {kernel.resources.spill_bytes for kernel in kernels} == {0}
