"""Measured choices: the fastest is taken, remembered, and used without a compiler."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from minidnn.backends.cpu import tuning
from minidnn.backends.cpu.backend import CpuProgram
from minidnn.backends.cpu.contraction import Choice, Question, choose_by_price
from minidnn.backends.cpu.tuning import race
from minidnn.cache import CacheStore, digest, forbid_builds
from minidnn.errors import GraphError, MiniDNNWarning
from minidnn.executable import Executable
from tests.sampling import every

SHAPE = (2, 16, 12, 12)
Times = dict[Question, float]
Clock = Callable[[CpuProgram], Times]


def network() -> md.Sequential:
    return md.Sequential(
        L.Conv2d(16, 32, 3, padding=1), L.ReLU(), L.Conv2d(32, 16, 1), L.Conv2d(16, 24, 3, stride=2)
    )


def compiled(**options: Any) -> Executable:
    return md.compile(network(), SHAPE, device="cpu", threads=2, **options)


def made(executable: Executable) -> list[tuple[str, dict[str, int]]]:
    """The choices in a network."""
    program = executable.program
    assert isinstance(program, CpuProgram)
    found = dict.fromkeys((task.node, task.choice) for task in program.tasks if task.choice)
    return [(c.algorithm.name, c.algorithm.describe(c.scheme)) for _, c in found]


@pytest.fixture(autouse=True)
def own_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No choices of other tests, but their compiled kernels; few candidates, much time."""
    monkeypatch.setattr(tuning, "VERSION", str(tmp_path))
    monkeypatch.setattr(tuning, "BUDGET_SECONDS", 1e9)
    monkeypatch.setattr(tuning, "MOST_CANDIDATES", {"quick": 4, "exhaustive": 4})


@pytest.fixture
def races(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts programs that were raced, with a clock by which other choices are the fastest."""
    count: list[int] = []
    clock(monkeypatch, by_clock, count)
    return count


def entries() -> set[Path]:
    return {entry.path for entry in CacheStore("cpu_choices", ".json")}


def clock(monkeypatch: pytest.MonkeyPatch, tell: Clock, count: list[int]) -> None:
    def fake(programs: list[CpuProgram], *_: object) -> list[Times]:
        count.append(len(programs))
        return [tell(program) for program in programs]

    monkeypatch.setattr(tuning, "race", fake)


def seconds_of(choice: Choice, question: Question) -> float:
    """Choices by price are the slowest; others differ by a number that is always the same."""
    if choice == choose_by_price(question):
        return 3.0
    told = choice.algorithm.name, choice.algorithm.describe(choice.scheme)
    return 1.0 + int(digest(*told)[:8], 16) / 2**32


def by_clock(program: CpuProgram) -> Times:
    asked = [(task.choice, task.question) for task in program.tasks]
    return {
        question: seconds_of(choice, question) for choice, question in asked if choice and question
    }


def test_the_fastest_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: dict[Question, dict[Choice, float]] = {}

    def tell(program: CpuProgram) -> Times:
        for task in program.tasks:
            if task.question and task.choice:
                known = tried.setdefault(task.question, {})
                known[task.choice] = seconds_of(task.choice, task.question)
        return by_clock(program)

    clock(monkeypatch, tell, [])
    by_price, tuned = compiled(), compiled(tune=True)
    assert len(tried) == 3 and all(len(choices) > 1 for choices in tried.values())
    assert isinstance(tuned.program, CpuProgram)
    for task in tuned.program.tasks:
        if task.question:
            times = tried[task.question]
            assert task.choice == min(times, key=times.__getitem__)
    x = by_price.random_inputs()[0]
    np.testing.assert_allclose(tuned(x), by_price(x), rtol=0, atol=1e-5)


def test_what_is_not_faster_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    clock(monkeypatch, lambda p: {t.question: 1.0 for t in p.tasks if t.question}, [])
    assert made(compiled(tune=True)) == made(compiled())


def test_what_does_not_hold_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first variant is fast, and slow when it runs once more."""
    seen: list[object] = []

    def fickle(programs: list[CpuProgram], *_: object) -> list[Times]:
        now = [(task.node, task.choice) for task in programs[1].tasks]
        first = {t.question: 1.0 for t in programs[0].tasks if t.question}
        seconds = 1.5 if seen else 0.5
        if now in seen:
            confirmed.append(1)
        seen.append(now)
        return [first, dict.fromkeys(first, seconds)]

    confirmed: list[int] = []
    monkeypatch.setattr(tuning, "race", fickle)
    assert made(compiled(tune=True)) == made(compiled())
    assert confirmed


def test_choices_are_remembered(races: list[int]) -> None:
    tuned = compiled(tune=True)
    measured = len(races)
    with forbid_builds():
        again = compiled(tune=True)
    assert len(races) == measured
    assert made(again) == made(tuned) != made(compiled())


def test_exhaustive_choices_serve_a_quick_one(races: list[int]) -> None:
    compiled(tune="exhaustive")
    measured = len(races)
    compiled(tune="quick")
    assert len(races) == measured


@pytest.mark.parametrize("options", every(2, [{"threads": 1}, {"accuracy": "high"}]))
def test_other_circumstances_are_measured(races: list[int], options: dict[str, Any]) -> None:
    compiled(tune=True)
    measured = len(races)
    md.compile(network(), SHAPE, device="cpu", **{"threads": 2, "tune": True} | options)
    assert len(races) > measured


def test_other_kernels_are_measured(races: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    compiled(tune=True)
    measured = len(races)
    monkeypatch.setattr(tuning, "_kernels", lambda: "other")
    compiled(tune=True)
    assert len(races) > measured


def test_damaged_choices_are_measured_again(races: list[int]) -> None:
    before = entries()
    wanted = made(compiled(tune=True))
    measured = len(races)
    own = sorted(entries() - before)
    assert len(own) == 3
    own[0].write_bytes(own[0].read_bytes()[:-9])
    with pytest.warns(MiniDNNWarning, match="is damaged"):
        assert made(compiled(tune=True)) == wanted
    assert len(races) > measured


@pytest.mark.parametrize(
    "text",
    [
        b"[]",
        b'{"algorithm": "direct"}',
        b'{"algorithm": "F(9x9, 3x3)", "scheme": {}}',
        b'{"algorithm": "direct", "scheme": {"vectors": 99}}',
    ],
)
def test_senseless_choices_are_measured_again(
    races: list[int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, text: bytes
) -> None:
    with monkeypatch.context() as patch:
        put = CacheStore.put

        def put_text(store: CacheStore, key: str, data: bytes, *, label: str = "") -> Path:
            return put(store, key, text if store.kind == "cpu_choices" else data, label=label)

        patch.setattr(CacheStore, "put", put_text)
        compiled(tune=True)
    measured = len(races)
    with caplog.at_level(logging.WARNING):
        compiled(tune=True)
    assert "measured again" in caplog.text
    assert len(races) > measured


def test_an_interrupt_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    before = entries()

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(tuning, "race", interrupted)
        with pytest.raises(KeyboardInterrupt):
            compiled(tune=True)
    assert entries() == before
    clock(monkeypatch, by_clock, [])
    assert made(compiled(tune=True)) != made(compiled())


def test_the_budget_is_kept_and_the_rest_is_told(
    races: list[int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tuning, "BUDGET_SECONDS", 0.0)
    with caplog.at_level(logging.WARNING):
        compiled(tune=True)
    assert "tuning ends after its 0 seconds" in caplog.text
    assert "of 3 contractions were not measured" in caplog.text
    assert len(races) == 1  # what was chosen, against itself


def test_races_tell_the_least(monkeypatch: pytest.MonkeyPatch) -> None:
    class Fake:
        def __init__(self, seconds: list[float]) -> None:
            self.given = iter(seconds)
            self.tasks = made_tasks

        def seconds(self, *_: object) -> np.ndarray:
            return np.array([next(self.given), 5.0, 0.25])

    program = compiled().program
    assert isinstance(program, CpuProgram)
    first = next(task for task in program.tasks if task.question)
    made_tasks = [first, replace(first, question=None), first]
    monkeypatch.setattr(tuning, "SHORT_SECONDS", 0.0)
    monkeypatch.setattr(tuning, "MOST_ROUNDS", 5)
    fakes = [Fake([9.0, 1.0, 2.0, 3.0, 4.0]), Fake([0.75] * 5)]
    assert race(fakes, [], [], 60) == [{first.question: 1.25}, {first.question: 1.0}]


def test_measured_for_real() -> None:
    by_price, tuned = compiled(), compiled(tune=True)
    x = by_price.random_inputs()[0]
    np.testing.assert_allclose(tuned(x), by_price(x), rtol=0, atol=1e-5)
    with forbid_builds():
        assert made(compiled(tune=True)) == made(tuned)


def test_a_cache_that_cannot_be_written_is_told(
    races: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled()
    place = CacheStore._write

    def fails(store: CacheStore, key: str, name: str, fill: Any) -> Path:
        if store.kind == "cpu_choices":
            (tmp_path / "file").touch()
            monkeypatch.setenv("MINIDNN_CACHE", str(tmp_path / "file" / "folder"))
        return place(store, key, name, fill)

    monkeypatch.setattr(CacheStore, "_write", fails)
    with pytest.warns(MiniDNNWarning, match="cannot be written"):
        tuned = compiled(tune=True)
    assert made(tuned) != made(compiled())


def test_guarded_programs_may_be_tuned(races: list[int]) -> None:
    by_price, tuned = compiled(), compiled(tune=True, guarded=True)
    x = by_price.random_inputs()[0]
    np.testing.assert_allclose(tuned(x), by_price(x), rtol=0, atol=1e-5)


def test_other_values_are_refused() -> None:
    with pytest.raises(GraphError, match="tune='long'; valid are True, False, 'heuristic', 'quick"):
        compiled(tune="long")
