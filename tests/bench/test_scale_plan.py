"""The simulation of many GPUs beside what can be computed by hand."""

from __future__ import annotations

import json
import re
from math import log2
from pathlib import Path

import numpy as np
import pytest

from benchmarks.scale_plan import (
    Link,
    Plan,
    Step,
    Stragglers,
    by_hosts,
    main,
    read_measured,
    ring,
    step_of,
    step_seconds,
    trees,
)

LINK = Link(10e-6, 50e9)
SIZE = 25e6


@pytest.mark.parametrize("ranks", [1, 2, 3, 8, 100])
def test_a_ring_takes_what_its_formula_says(ranks: int) -> None:
    found = ring(LINK)(SIZE, np.zeros(ranks))
    expected = 2 * (ranks - 1) * (LINK.latency + SIZE / ranks / LINK.bandwidth)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("ranks", [2, 7, 64, 1000])
def test_trees_are_within_their_bounds(ranks: int) -> None:
    """Nothing is faster than what must pass a link; the way up and down adds chunks and latency."""
    chunk = 1 << 17
    found = float(trees(LINK, chunk)(SIZE, np.zeros(ranks)).max())
    passed = 2 * SIZE / LINK.bandwidth
    depth = int(log2(ranks)) + 1
    filled = 2 * depth * (LINK.latency + 4 * chunk / LINK.bandwidth)
    assert passed * 0.5 <= found <= passed + filled


def test_trees_scale_and_rings_do_not() -> None:
    small = 1e6
    for ranks, trees_win in ((4, False), (1000, True)):
        both = [way(small, np.zeros(ranks)).max() for way in (trees(LINK), ring(LINK))]
        assert bool(both[0] < both[1]) is trees_win


def test_hosts_first_takes_three_rings() -> None:
    inside, gpus, hosts = Link(5e-6, 300e9), 8, 4
    found = by_hosts(inside, LINK, gpus)(SIZE, np.zeros(gpus * hosts))
    within = (gpus - 1) * inside.seconds(SIZE / gpus)
    part = SIZE / gpus
    between = 2 * (hosts - 1) * LINK.seconds(part / hosts)
    np.testing.assert_allclose(found, 2 * within + between, rtol=1e-12)
    one = by_hosts(inside, LINK, gpus)(SIZE, np.zeros(2))
    np.testing.assert_allclose(one, ring(inside)(SIZE, np.zeros(2)))


@pytest.mark.parametrize("way", [ring(LINK), trees(LINK), by_hosts(LINK, LINK, 8)])
def test_all_wait_for_the_last(way) -> None:
    late = np.zeros(32)
    late[13] = 1.0
    found = way(SIZE, late)
    together = way(SIZE, np.zeros(32))
    assert (found > 1.0).all() and found.max() <= 1.0 + together.max() + 1e-12


def test_sums_beside_arithmetic_cost_what_is_left_of_the_last() -> None:
    """One bucket in the middle is hidden; one at the end is not."""
    taken = float(ring(LINK)(SIZE, np.zeros(2)).max())
    hidden = Step(0.1, ((SIZE, 0.5),))
    assert step_seconds(hidden, 2, ring(LINK)) == pytest.approx(0.1)
    exposed = Step(0.1, ((SIZE, 0.5), (SIZE, 1.0)))
    assert step_seconds(exposed, 2, ring(LINK)) == pytest.approx(0.1 + taken)
    behind = Step(0.1, ((SIZE, 1.0), (SIZE, 1.0)), launch=1e-3)
    assert step_seconds(behind, 2, ring(LINK)) == pytest.approx(0.1 + 2 * taken + 2e-3)
    assert step_seconds(behind, 1, ring(LINK)) == pytest.approx(0.1)


def test_stragglers_cost_more_the_more_ranks_there_are() -> None:
    step, slow = Step(0.1, ((SIZE, 0.9),)), Stragglers(0.0, 0.01, 0.5)
    few, many = (step_seconds(step, n, ring(LINK), slow, tries=10) for n in (2, 300))
    assert few < 0.11 and many == pytest.approx(0.15, rel=0.2)


def test_a_plan_adds_up() -> None:
    plan = Plan(1000, 128, 1e9, 5, failure_hours=50_000, save_seconds=5, restart_seconds=180)
    found = plan.figures(0.032)
    assert found["images_per_second"] == pytest.approx(4e6)
    assert found["stored_bytes"] == pytest.approx(1.1e14)
    assert found["seconds_between_checkpoints"] == pytest.approx((2 * 5 * 180_000) ** 0.5)
    pure = 5e9 / 4e6 / 86400
    assert found["days"] == pytest.approx(pure / (1 - found["part_lost_to_failures"]))
    assert 0 < found["part_lost_to_failures"] < 0.02


def test_buckets_are_those_of_the_step() -> None:
    import minidnn as md

    step = step_of("resnet18", 0.01, 0.0, 32, 64)
    net = md.models.resnet18()
    gradients = sum(4 * int(np.prod(p.shape)) for _, p in net.trainable_parameters())
    assert gradients < sum(size for size, _ in step.buckets) < 1.01 * gradients
    parts = [part for _, part in step.buckets]
    assert parts == sorted(parts) and 0.2 < parts[0] < 0.5 and 0.9 < parts[-1] <= 1.0


def test_it_predicts_what_was_measured_beside_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = {"network": "resnet18", "ranks": 2, "batch": 64, "ms_alone": 5.0, "ms_together": 5.1}
    one["precision"] = "float32"
    path = tmp_path / "two.json"
    path.write_text("a line of something else\n" + json.dumps(one) + "\n")
    main(["--measured", str(path), "--ranks", "16"])
    (row,) = re.findall(r"^\| 2 \| 5 \| 5.1 \| (\S+) \|$", capsys.readouterr().out, re.MULTILINE)
    assert 5.0 <= float(row) < 6.0
    path.write_text("nothing\n")
    with pytest.raises(ValueError, match=r"two.json: no line is a result of"):
        read_measured(path)


@pytest.mark.full
def test_the_page_is_that_of_the_results(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main([])
    page = root / "docs/explanation/a-thousand-gpus.md"
    assert capsys.readouterr().out == page.read_text(encoding="utf-8")
