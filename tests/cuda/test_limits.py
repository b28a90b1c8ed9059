"""How much memory a plan may take; without a GPU, whose part is replaced."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

import minidnn as md
from minidnn import layers as L
from minidnn.backends.cuda import prepare
from minidnn.backends.cuda.constants import Constants
from minidnn.backends.cuda.contraction import tune
from minidnn.backends.cuda.contraction.algorithms import algorithms_for
from minidnn.backends.cuda.contraction.problem import ContractionProblem
from minidnn.backends.cuda.contraction.tune import Tuning
from minidnn.backends.cuda.memory import Limit
from minidnn.errors import OutOfMemoryError, UnsupportedError
from tests.cuda.cards import H200

from .greedy import be_greedy, least
from .lowered import problems_of

STEM = L.Conv2d(3, 64, 7, 2, 3)
AFTER_NORM = L.Sequential(L.BatchNorm2d(224), L.ReLU(), L.Conv2d(224, 128, 1, bias=False))
THREE = L.Sequential(
    *(L.Conv2d(64, 64, 3, padding=1), L.ReLU(), L.Conv2d(64, 64, 3, padding=1), L.ReLU()),
    L.Conv2d(64, 64, 3, padding=1),
)


def limit(size: int) -> Limit:
    return Limit(size, f"memory_limit={size} bytes")


def tuning(limit: int, tuned: str = "quick") -> Tuning:
    return Tuning(H200, tuned, limit, lambda launches: [])


@pytest.mark.parametrize("precision", ["float16", "tf32"])
def test_an_image_may_be_gathered_whatever_it_takes(precision: str) -> None:
    """It has to be: else batches of large images had no way at all."""
    (problem,) = problems_of(L.Conv2d(3, 16, 3, padding=1), (64, 3, 1200, 1000), precision)
    gathered = problem.batch * problem.gathered.image * problem.gathered.itemsize
    assert 1 << 30 < gathered <= tuning(1 << 30).limit(problem) < gathered + 256


@pytest.mark.parametrize("precision", ["float16", "float32"])
def test_what_comes_before_needs_no_memory(precision: str) -> None:
    """cuDNN's forms need a copy that has been through it, our kernels do not."""
    (problem,) = problems_of(AFTER_NORM, (32, 224, 56, 56), precision)
    assert problem.before and tuning(0).limit(problem) == 0


@pytest.mark.parametrize("left", [0, 1 << 20])
@pytest.mark.parametrize("precision", ["float32", "tf32", "float16"])
@pytest.mark.parametrize("network", [STEM, AFTER_NORM], ids=["stem", "after a norm"])
def test_nothing_takes_more_than_the_limit(
    network: md.Layer, precision: str, left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """cuDNN's engines take all that they may, beside what is prepared for them."""

    def plans(constraints: Any, **options: Any) -> list[Any]:
        config = SimpleNamespace(engine=1, knobs=())
        return [SimpleNamespace(workspace=constraints.workspace_limit, config=config)]

    monkeypatch.setattr(tune, "graph_of", lambda *given: SimpleNamespace(plans=plans))
    monkeypatch.setattr(tune, "fixed_convolution", lambda *given: "there is no cuDNN")
    channels = 3 if network is STEM else 224
    (problem,) = problems_of(network, (4, channels, 56, 56), precision)
    heuristic = tuning(left, "heuristic")
    found = [
        config
        for algorithm in algorithms_for(problem, H200)
        for config, _ in tune._candidates(problem, algorithm, 3, heuristic)
    ]
    assert found and all(one.workspace <= heuristic.limit(problem) for one in found)


def test_what_nothing_computes_is_told_with_every_kernels_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (problem,) = problems_of(L.Conv2d(64, 64, 3), (4, 64, 9, 9), "float16")
    grouped = replace(problem, groups=2)
    monkeypatch.setattr(tune, "_candidates", lambda *given: ())
    with pytest.raises(UnsupportedError, match="bytes of workspace; of our kernels not ") as told:
        tune.first(grouped, tuning(0, "heuristic"))
    assert "; not tile: it has 2 groups" in str(told.value)
    assert "; not rows: its products need not be exact float32" in str(told.value)


@pytest.fixture
def greedy(monkeypatch: pytest.MonkeyPatch) -> None:
    be_greedy(monkeypatch)
    monkeypatch.setattr(Constants, "upload", lambda self: self.bytes)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("extra", [0, 256, 1 << 18, 1 << 20, 4 << 20])
@pytest.mark.parametrize("precision", ["float32", "float16"])
@pytest.mark.parametrize(
    "network, shape",
    [(THREE, (8, 64, 56, 56)), (AFTER_NORM, (8, 224, 28, 28))],
    ids=["three convolutions", "after a norm"],
)
@pytest.mark.usefixtures("greedy")
def test_a_limit_that_can_be_kept_is_kept(
    network: md.Layer, shape: tuple[int, ...], precision: str, extra: int
) -> None:
    """Each workspace is within the limit, but may lie where the input or output would."""
    plan, tasks, needed = least(network, shape, precision)
    made = prepare.prepare(plan, tasks, H200, "quick", limit(needed + extra))
    assert made.constants.bytes + made.table.block.own_bytes <= needed + extra


@pytest.mark.parametrize("precision", ["tf32", "float16"])
@pytest.mark.usefixtures("greedy")
def test_a_limit_that_leaves_no_room_to_gather_is_told(precision: str) -> None:
    network = L.Sequential(STEM, L.ReLU(), L.MaxPool2d(3, 2, 1))
    plan, tasks, needed = least(network, (2, 3, 64, 64), precision)
    (problem,) = (task.work for task in tasks if isinstance(task.work, ContractionProblem))
    gathered = tuning(0).limit(problem)
    with pytest.raises(OutOfMemoryError, match=rf"memory_limit={needed} .* \d+ are needed"):
        prepare.prepare(plan, tasks, H200, "quick", limit(needed))
    made = prepare.prepare(plan, tasks, H200, "quick", limit(needed + gathered))
    assert made.table.block.own_bytes <= needed + gathered
