"""Patch geometry against brute force: positions counted one by one, tap by tap."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from minidnn.fusion.geometry import Extent
from minidnn.fusion.region import FusedSequence as Region
from minidnn.fusion.sequence import Schedule
from minidnn.graph import operators as ops
from minidnn.graph.ir import Graph
from minidnn.graph.trace import apply
from tests.fusion.planes import needed, random_graph, sequence_of
from tests.passes.build import graph_of, join, max_pool, relu


def check_axis(graph: Graph, patch: int, axis: int, count: Counter[str]) -> None:
    """Every patch's extents are supersets of what is needed, and exact away from edges."""
    sequence = sequence_of(graph)
    extents, anchor = sequence.extents[axis], sequence.anchor.type.plane[2 + axis]
    tiles: dict[str, list[int]] = {value.name: [] for value in sequence.outputs}
    for begin in range(0, anchor, patch):
        end, last = min(begin + patch, anchor), begin + patch >= anchor
        wanted = {}
        for value in sequence.outputs:
            own = range(*sequence.owned[value][axis].interval(begin, end, last))
            tiles[value.name] += own
            wanted[value] = set(own)
        exact = needed(sequence.steps, wanted, axis)
        free = needed(sequence.steps, wanted, axis, clip=False)
        whole_tiles = all(
            len(positions) == (end - begin) * sequence.owned[value][axis].scale
            for value, positions in wanted.items()
        )
        for value, positions in exact.items():
            low, high = extents[value].interval(begin, end, last)
            assert positions <= set(range(low, high)), (value, begin, low, high)
            assert high - low <= extents[value].span(patch) or (last and extents[value].to_end)
            if not sequence.needs_whole_plane and free[value] and not last and whole_tiles:
                inside = all(
                    min(p) >= 0 and max(p) < v.type.plane[2 + axis] for v, p in free.items() if p
                )
                if inside:
                    assert (low, high) == (min(positions), max(positions) + 1), (value, begin)
                    count["tight"] += 1
        count["patches"] += 1
    for value in sequence.outputs:
        size = value.type.plane[2 + axis]
        times = len(range(0, anchor, patch)) if sequence.needs_whole_plane else 1
        expected = list(range(size)) * times
        assert sorted(tiles[value.name]) == sorted(expected), "patches tile every output"
    count["whole"] += sequence.needs_whole_plane


@pytest.mark.sampled(3)
@pytest.mark.parametrize("chain", [True, False], ids=["chains", "graphs"])
def test_extents_of_random_stacks(chain: bool) -> None:
    count: Counter[str] = Counter()
    for seed in range(250):
        graph = random_graph(seed, 2 + seed % 8, chain)
        patch = 1 + seed % 5
        for axis in (0, 1):
            if sequence_of(graph).needs_whole_plane:
                patch = sequence_of(graph).anchor.type.plane[2 + axis]
            check_axis(graph, patch, axis, count)
    assert count["patches"] > 1400 and count["tight"] > 2000, count
    assert chain or count["whole"] > 20, count


def test_totals_are_the_sum_of_all_intervals() -> None:
    random = np.random.default_rng(0)
    for _ in range(3000):
        anchor = int(random.integers(1, 60))
        patch = int(random.integers(1, anchor + 1))
        scale = int(random.integers(0, 4))
        low, high = -int(random.integers(0, 20)), int(random.integers(0, 20))
        size = max(1, scale * anchor + int(random.integers(-3, 4)))
        extent = Extent(size, scale, low, high, bool(random.integers(2)))
        total = 0
        for begin in range(0, anchor, patch):
            first, past = extent.interval(
                begin, min(begin + patch, anchor), begin + patch >= anchor
            )
            total += past - first
        assert extent.total(patch, anchor) == total, (extent, patch, anchor)


def test_a_hull_of_different_scales_is_everything() -> None:
    assert Extent(9, 2, 0, 1).hull(Extent(9, 1, 0, 0)) == Extent(9)
    assert Extent(9, 2, -1, 1).hull(Extent(9, 2, 0, 3, True)) == Extent(9, 2, -1, 3, True)
    assert Extent(9).interval(3, 4, False) == (0, 9)
    assert Extent(9).span(2) == 9


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(40))
def test_buffers_hold_what_patches_need(seed: int) -> None:
    """Also rolling ones: the interpreter finds every row that is read after it was overwritten."""
    graph = random_graph(seed + 1000, 3 + seed % 6)
    sequence = sequence_of(graph)
    rows, columns = sequence.anchor.type.plane[2:]
    random = np.random.default_rng(seed)
    whole = sequence.needs_whole_plane
    for strips in (1, 2, 50):
        tall = rows if whole else int(random.integers(1, rows + 1))
        wide = columns if whole else int(random.integers(1, columns + 1))
        region = Region(graph, Schedule(tall, wide, strips))
        x = np.round(random.standard_normal(graph.inputs[0].shape), 1).astype(np.float32)
        for got, expected in zip(region.interpret(x), region.reference(x), strict=True):
            np.testing.assert_array_equal(got, expected)


def whole(build, *shapes) -> bool:
    return sequence_of(graph_of(build, *shapes)).needs_whole_plane


def test_when_only_whole_planes_can_be_patches() -> None:
    x = (1, 2, 12, 12)

    def agree(t, x):
        return apply(ops.Add(), max_pool(x, 2, 2, 0), max_pool(x, 4, 2, 1))

    def disagree(t, x):
        """Two strides on the way from one value to one anchor."""
        a, b = max_pool(x, 3, 2, 1), max_pool(x, 7, 1, 0)
        return apply(ops.Add(), a, b)

    def two_outputs(t, x):
        return max_pool(x, 2, 2, 0), relu(x)

    def no_whole_number(t, x):
        """From the smaller output, stride 3 away, the other lies at 3 / 2."""
        return max_pool(x, 3, 3, 0), max_pool(x, 2, 2, 0)

    def apart(t, x, y):
        """Nothing but a later step, which is not in the sequence, joins them."""
        return max_pool(x), max_pool(y)

    def side_by_side(t, x, y):
        return max_pool(join(x, y))

    assert not whole(agree, x)
    assert whole(disagree, x)
    assert not whole(two_outputs, x)
    assert whole(no_whole_number, x)
    assert whole(apart, x, x)
    assert not whole(side_by_side, x, x)


def test_an_output_that_reaches_further_than_the_anchor_is_finished_by_the_last_patch() -> None:
    """relu has 7 rows, pooled to 3 by stride 2: the last patch writes rows 4 to 6."""

    def build(t, x):
        y = relu(x)
        return y, max_pool(y, 2, 2, 0)

    sequence = sequence_of(graph_of(build, (1, 1, 7, 7)))
    owned = sequence.owned[sequence.outputs[0]][0]
    assert owned == Extent(7, 2, 0, 0, to_end=True)
    assert [owned.interval(i, i + 1, i == 2) for i in range(3)] == [(0, 2), (2, 4), (4, 7)]
    assert sequence.owned[sequence.anchor][0] == Extent(3, 1)


def test_ceil_mode_reads_no_more_than_there_is() -> None:
    def build(t, x):
        return apply(ops.MaxPool2d((3, 3), (2, 2), ceil_mode=True), relu(x))

    sequence = sequence_of(graph_of(build, (1, 1, 6, 6)))
    (first,) = sequence.steps[0].operations
    extent = sequence.extents[0][first.output]
    assert sequence.anchor.shape[2:] == (3, 3)
    assert [extent.interval(i, i + 1, i == 2) for i in range(3)] == [(0, 3), (2, 5), (4, 6)]
