"""Places of boxes: nothing overlaps, edges lead downwards, lanes pass between boxes."""

from __future__ import annotations

import itertools
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from minidnn.graph.layered import _crossings, arrange


@st.composite
def graphs(draw):
    count = draw(st.integers(1, 25))
    sizes = [(draw(st.integers(10, 200)), draw(st.integers(20, 120))) for _ in range(count)]
    edges = []
    for target in range(1, count):
        for source in draw(st.sets(st.integers(0, target - 1), max_size=4)):
            edges.append((source, target, source))
    return sizes, edges


@settings(max_examples=100)
@given(graphs())
def test_boxes_and_lanes_keep_their_distance(graph) -> None:
    sizes, edges = graph
    placed = arrange(sizes, edges)
    rows: dict[int, list[tuple[float, float]]] = {}
    for box, (width, height) in enumerate(sizes):
        top, bottom = placed.bands[placed.rank[box]]
        assert top - 1e-6 <= placed.top[box] and placed.top[box] + height <= bottom + 1e-6
        assert placed.x[box] - width / 2 >= -1e-6
        assert placed.x[box] + width / 2 <= placed.width + 1e-6
        span = (placed.x[box] - width / 2, placed.x[box] + width / 2)
        rows.setdefault(placed.rank[box], []).append(span)
    for key, lanes in placed.lanes.items():
        assert isinstance(key, int)
        for i, x in enumerate(lanes):
            rows.setdefault(placed.rank[key] + 1 + i, []).append((x, x))
    for row in rows.values():
        row.sort()
        for (_, right), (left, _) in itertools.pairwise(row):
            assert left - right >= 8.9  # the distance of lanes; boxes keep more
    for above, below in zip(placed.bands, placed.bands[1:], strict=False):
        assert below[0] >= above[1] + 10
    for source, target, key in edges:
        distance = placed.rank[target] - placed.rank[source]
        assert distance >= 1
        assert len(placed.lanes.get(key, ())) >= distance - 1


def test_a_chain_is_straight_and_a_skip_runs_beside_it() -> None:
    sizes = [(100.0, 40.0)] * 5
    edges = [(0, 1, 0), (1, 2, 1), (2, 3, 2), (3, 4, 3), (0, 3, 0)]
    placed = arrange(sizes, edges)
    assert len({round(x, 6) for x in placed.x}) == 1
    assert len({round(x, 6) for x in placed.lanes[0]}) == 1 and len(placed.lanes[0]) == 2
    assert abs(placed.lanes[0][0] - placed.x[0]) > 50


def test_a_value_has_one_lane_for_all_readers() -> None:
    sizes = [(50.0, 20.0)] * 6
    edges = [(i, i + 1, i) for i in range(5)] + [(0, i, 0) for i in range(2, 6)]
    assert [len(lanes) for lanes in arrange(sizes, edges).lanes.values()] == [4]


def test_what_needs_nothing_stands_near_its_reader_and_ports_at_the_ends() -> None:
    sizes = [(50.0, 20.0)] * 3 + [(50.0, 20.0), (8.0, 0.0), (8.0, 0.0)]
    edges = [(0, 1, 0), (1, 2, 1), (3, 2, 3), (4, 2, 4), (0, 5, 0)]
    placed = arrange(sizes, edges)
    assert placed.rank == [0, 1, 2, 1, 0, 2]
    assert placed.top[4] == 0 and placed.top[5] == placed.height


def test_nothing_at_all() -> None:
    placed = arrange([], [])
    assert (placed.width, placed.height, placed.bands) == (0.0, 0.0, [])


def test_crossings_are_counted() -> None:
    random_ = random.Random(1)
    for _ in range(50):
        n, m = random_.randrange(1, 8), random_.randrange(1, 8)
        down = [random_.sample(range(n, n + m), random_.randrange(0, m + 1)) for _ in range(n)] + [
            [] for _ in range(m)
        ]
        upper, lower = list(range(n)), list(range(n, n + m))
        random_.shuffle(upper)
        random_.shuffle(lower)
        pairs = [(upper.index(v), lower.index(w)) for v in upper for w in down[v]]
        expected = sum(a < c and b > d for a, b in pairs for c, d in pairs)
        assert _crossings([upper, lower], down) == expected


def test_a_drawing_without_crossings_is_found() -> None:
    # Two chains whose second halves stand in the wrong order at first.
    sizes = [(30.0, 20.0)] * 6
    edges = [(0, 3, 0), (1, 2, 1), (3, 5, 3), (2, 4, 2)]
    placed = arrange(sizes, edges)
    assert (placed.x[0] < placed.x[1]) == (placed.x[3] < placed.x[2])
    assert (placed.x[3] < placed.x[2]) == (placed.x[5] < placed.x[4])
