"""Engines in processes: what they answer, and what is said when they fail."""

from __future__ import annotations

import os
import time

import pytest

from minidnn.bench.measure import alternate
from minidnn.bench.process import EngineError, EngineProcess
from minidnn.measure import LoadWatch

HERE = "tests.bench.engines"


def engine(function: str, **options: float) -> EngineProcess:
    return EngineProcess("it", f"{HERE}:{function}", options, {"MINIDNN_TEST": "here"}, timeout=20)


def test_an_engine_is_made_once_and_runs_when_asked() -> None:
    with engine("doubling", start=3.0) as it:
        assert it.about == {"version": "1", "variable": "here"}
        assert it.seconds >= 0 and it.memory() > 1 << 20
        assert len(it.run(4)) == 4
        (output,) = it.outputs()
        assert output.tolist() == [3.0 * 2**5]
    with pytest.raises(EngineError, match="engine 'it': its process has ended; asked to run"):
        it.run(1)


def test_times_are_seconds() -> None:
    with engine("sleeping", seconds=0.02) as it:
        assert all(0.02 <= seconds < 0.5 for seconds in it.run(3))


def test_what_libraries_print_does_not_disturb() -> None:
    with engine("noisy") as it:
        assert len(it.run(2)) == 2


@pytest.mark.parametrize(
    ("function", "text"),
    [
        ("broken", "could not make: ValueError: no such model"),
        ("missing", "has no attribute 'missing'"),
        ("nothing", "tests.bench.engines:nothing returned NoneType, not a LoadedEngine"),
    ],
)
def test_what_cannot_be_made_is_named(function: str, text: str) -> None:
    with pytest.raises(EngineError, match=text) as caught:
        engine(function)
    assert "Traceback" not in str(caught.value)  # only where a traceback is printed
    assert "Traceback" in "".join(caught.value.__notes__)


def test_a_process_that_dies_is_named_with_what_it_printed() -> None:
    with (
        engine("dying") as it,
        pytest.raises(EngineError, match=r"(?s)ended with status 3.*about to die"),
    ):
        it.run(1)


def test_a_process_that_hangs_is_ended() -> None:
    with engine("sleeping", seconds=60.0) as it:
        it.timeout = 0.3
        start = time.perf_counter()
        with pytest.raises(EngineError, match=r"no answer within 0\.3 s"):
            it.run(1)
        assert time.perf_counter() - start < 10


def test_closing_leaves_no_process() -> None:
    it = engine("noisy")
    it.close()
    it.close()
    with pytest.raises(ProcessLookupError):
        os.kill(it.pid, 0)


def test_engines_run_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LoadWatch, "others", lambda self: 0.0)
    order = []
    with engine("sleeping", seconds=0.01) as slow, engine("sleeping", seconds=0.002) as fast:
        found = alternate(
            {"slow": slow, "fast": fast}, 3, 0.02, 0.0, lambda i, name: order.append((i, name))
        )
    assert order == [
        (0, "slow"), (0, "fast"), (1, "fast"), (1, "slow"), (2, "slow"), (2, "fast"),
    ]  # fmt: skip
    assert [len(times) for times in found.values()] == [3, 3]
    assert all(a > b for a, b in zip(found["slow"], found["fast"], strict=True))
