"""Layered drawing of a directed acyclic graph: the coordinates of boxes and lines, for pictures.

Boxes stand in ranks by their longest path (Sugiyama, Tagawa and Toda, "Methods for visual
understanding of hierarchical system structures", 1981).  An edge that spans several ranks passes
through a lane in every rank between, one lane for all readers of a value.  Barycentre sweeps order
the boxes and lanes of each rank; coordinates follow Brandes and Köpf, "Fast and simple horizontal
coordinate assignment" (2002), except that boxes align with boxes and lanes with lanes where there
is a choice, so that main paths and lanes run straight.

A long picture is folded into columns, side by side: lines lead from the bottom of each column to
the top of the next.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt

from minidnn.graph.ir import Value
from minidnn.graph.svg import LINE, Item, Port, clean, moved, px

_SWEEPS = 8
# Distances in pixels: between boxes, between lanes, between ranks, and next to ranks of ports.
_GAP = 22.0
_LANE = 9.0
_RANK_GAP = 26.0
_PORT_GAP = 12.0

#: The vertices of each rank from left to right.  A vertex is a box, or, from the number of boxes
#: on, the lane of an edge in one rank.
Ranks = list[list[int]]
#: For each vertex, those that it has edges from (up) or to (down).
Neighbours = list[list[int]]


@dataclass(frozen=True, slots=True)
class Arrangement:
    """The coordinates of boxes and lanes, in pixels."""

    #: Horizontal centre, top and rank of each box.
    x: list[float]
    top: list[float]
    rank: list[int]
    #: Top and bottom of each rank.
    bands: list[tuple[float, float]]
    #: For each value that spans several ranks, the x of its lanes in the ranks after its source.
    lanes: dict[Hashable, list[float]]
    width: float
    height: float


def arrange(
    sizes: Sequence[tuple[float, float]], edges: Sequence[tuple[int, int, Hashable]]
) -> Arrangement:
    """Computes the coordinates of boxes with ``sizes`` (width, height).

    ``edges`` lead from a box to a later one, and name the value that they carry.  Boxes without
    height are ports of the drawing: those with outgoing edges are at its top, others at its bottom.
    """
    ports = {box for box, (_, height) in enumerate(sizes) if not height}
    rank = _ranks(len(sizes), edges, ports)
    chains = _chains(rank, edges)
    count = len(sizes) + sum(len(chain) for _, chain in chains.values())
    ranks: Ranks = [[] for _ in range(max(rank, default=-1) + 1)]
    up: Neighbours = [[] for _ in range(count)]
    down: Neighbours = [[] for _ in range(count)]
    for box, level in enumerate(rank):
        ranks[level].append(box)
    vertex, first = len(sizes), dict[Hashable, int]()
    for key, (source, chain) in chains.items():
        first[key] = vertex
        for i, level in enumerate(chain):
            ranks[level].append(vertex)
            _link(up, down, vertex - 1 if i else source, vertex)
            vertex += 1
    for source, target, key in edges:
        depth = rank[target] - rank[source] - 1
        _link(up, down, first[key] + depth - 1 if depth else source, target)
    ranks = _ordered(ranks, up, down)
    widths = [width for width, _ in sizes] + [0.0] * (count - len(sizes))
    x = _straightened(ranks, _coordinates(ranks, up, down, widths, len(sizes)), widths)
    left = min((x[v] - widths[v] / 2 for v in range(count)), default=0.0)
    x = [value - left for value in x]
    bands: list[tuple[float, float]] = []
    y = 0.0
    for level, row in enumerate(ranks):
        height = max((sizes[v][1] for v in row if v < len(sizes)), default=0.0)
        if level:
            tight = not height or bands[-1][0] == bands[-1][1]  # next to a rank of ports alone
            y += (_PORT_GAP if tight else _RANK_GAP) + _slant(row, up, x)
        bands.append((y, y + height))
        y += height
    top = [
        (bands[level][0] + bands[level][1] - sizes[box][1]) / 2
        if box not in ports
        else (0.0 if down[box] else y)
        for box, level in enumerate(rank)
    ]
    lanes = {key: x[first[key] : first[key] + len(chain)] for key, (_, chain) in chains.items()}
    width = max((x[v] + widths[v] / 2 for v in range(count)), default=0.0)
    return Arrangement(x[: len(sizes)], top, rank, bands, lanes, width, y)


def _link(up: Neighbours, down: Neighbours, source: int, target: int) -> None:
    if source not in up[target]:
        up[target].append(source)
        down[source].append(target)


def _slant(row: list[int], up: Neighbours, x: list[float]) -> float:
    """Extra height above a rank, in proportion to the widest horizontal run of lines to it."""
    reach = max((abs(x[v] - x[u]) for v in row for u in up[v]), default=0.0)
    return min(60.0, reach * 0.06)


def _ranks(count: int, edges: Sequence[tuple[int, int, Hashable]], ports: set[int]) -> list[int]:
    """The rank of each box: the length of the longest path to it; ports are first or last."""
    rank = [0] * count
    above: list[list[int]] = [[] for _ in range(count)]
    for source, target, _ in edges:
        above[target].append(source)
    for box in range(count):
        rank[box] = max((rank[source] + 1 for source in above[box]), default=0)
    below: dict[int, int] = {}
    for source, target, _ in edges:
        below[source] = min(below.get(source, count), rank[target])
    last = max(rank, default=0)
    for box in range(count):
        if box in ports:
            rank[box] = 0 if box in below else last
        elif not above[box] and box in below:  # a source is drawn right above its first reader
            rank[box] = below[box] - 1
    return rank


def _chains(
    rank: list[int], edges: Sequence[tuple[int, int, Hashable]]
) -> dict[Hashable, tuple[int, range]]:
    """For each value that is read beyond the next rank: its source, and the ranks in between."""
    last: dict[Hashable, tuple[int, int]] = {}
    for source, target, key in edges:
        last[key] = (source, max(rank[target], last.get(key, (0, 0))[1]))
    return {
        key: (source, range(rank[source] + 1, end))
        for key, (source, end) in last.items()
        if end > rank[source] + 1
    }


def _ordered(ranks: Ranks, up: Neighbours, down: Neighbours) -> Ranks:
    """The ranks, each in the order that had the fewest crossings in a few barycentre sweeps."""
    best, fewest = ranks, _crossings(ranks, down)
    current = [list(row) for row in ranks]
    for sweep in range(_SWEEPS):
        if not fewest:
            break
        downwards = sweep % 2 == 1
        levels = range(1, len(ranks)) if downwards else range(len(ranks) - 2, -1, -1)
        for level in levels:
            fixed = current[level - 1 if downwards else level + 1]
            position = {v: i for i, v in enumerate(fixed)}
            near = up if downwards else down
            row = current[level]
            keys = {}
            for i, v in enumerate(row):
                positions = [position[u] for u in near[v]]
                keys[v] = (
                    sum(positions) / len(positions) if positions else i * len(fixed) / len(row)
                )
            current[level] = sorted(row, key=keys.__getitem__)
        crossings = _crossings(current, down)
        if crossings < fewest:
            best, fewest = [list(row) for row in current], crossings
    return best


def _crossings(ranks: Ranks, down: Neighbours) -> int:
    """The number of crossings between neighbouring ranks: inversions, counted by a Fenwick tree."""
    total = 0
    for upper, lower in pairwise(ranks):
        position = {v: i for i, v in enumerate(lower)}
        targets = [t for v in upper for t in sorted(position[w] for w in down[v])]
        tree = [0] * (len(lower) + 1)
        for seen, target in enumerate(targets):
            i, not_beyond = target + 1, 0
            while i:
                not_beyond += tree[i]
                i &= i - 1
            total += seen - not_beyond
            i = target + 1
            while i < len(tree):
                tree[i] += 1
                i += i & -i
    return total


def _coordinates(
    ranks: Ranks, up: Neighbours, down: Neighbours, widths: list[float], boxes: int
) -> list[float]:
    """The x of the centre of each vertex: the median of four assignments by Brandes and Köpf."""

    def separation(a: int, b: int) -> float:
        gap = _LANE if a >= boxes and b >= boxes else _GAP
        return (widths[a] + widths[b]) / 2 + gap

    up, down = _preferred(up, boxes), _preferred(down, boxes)
    assignments = []
    for upwards in (False, True):
        for mirrored in (False, True):
            rows = [row[::-1] for row in ranks] if mirrored else ranks
            if upwards:
                rows = rows[::-1]
            root = _aligned(rows, down if upwards else up, boxes)
            x = _compacted(rows, root, separation)
            assignments.append([-value for value in x] if mirrored else x)
    spans = [
        (
            min(x[v] - widths[v] / 2 for v in range(len(x))),
            max(map(sum, zip(x, widths, strict=True))),
        )
        if x
        else (0.0, 0.0)
        for x in assignments
    ]
    narrowest = min(range(4), key=lambda i: spans[i][1] - spans[i][0])
    for i, x in enumerate(assignments):
        side = i % 2  # mirrored ones align at the right
        shift = spans[narrowest][side] - spans[i][side]
        assignments[i] = [value + shift for value in x]
    return [sum(sorted(values)[1:3]) / 2 for values in zip(*assignments, strict=True)]


def _straightened(ranks: Ranks, x: list[float], widths: list[float]) -> list[float]:
    """Moves boxes so that those that are alone in their ranks stand below each other.

    The ranks between two such boxes move as a block: it keeps its distance from them if they stood
    below each other before, and is centred if they did not.
    """
    alone = [level for level, row in enumerate(ranks) if len(row) == 1]
    if not alone:
        return x
    moved = list(x)
    for above, below in pairwise([-1, *alone, len(ranks)]):
        between = [v for row in ranks[above + 1 : below] for v in row]
        ends = [x[ranks[level][0]] for level in (above, below) if 0 <= level < len(ranks)]
        if not between:
            shift = 0.0
        elif max(ends) - min(ends) < 1:
            shift = ends[0]
        else:
            left = min(x[v] - widths[v] / 2 for v in between)
            shift = (left + max(x[v] + widths[v] / 2 for v in between)) / 2
        for v in between:
            moved[v] = x[v] - shift
    for level in alone:
        moved[ranks[level][0]] = 0.0
    return moved


def _preferred(near: Neighbours, boxes: int) -> Neighbours:
    """The neighbours of the same kind (box or lane) as a vertex, or all if it has none."""
    chosen = []
    for v, neighbours in enumerate(near):
        same = [u for u in neighbours if (u < boxes) == (v < boxes)]
        chosen.append(same or neighbours)
    return chosen


def _aligned(rows: Ranks, above: Neighbours, boxes: int) -> list[int]:
    """The root of the block that each vertex is in; the vertices of a block share a coordinate."""
    count = sum(map(len, rows))
    root, align = list(range(count)), list(range(count))
    position = [0] * count
    for row in rows:
        for i, v in enumerate(row):
            position[v] = i
    for row in rows:
        for wanted in range(3):  # lanes first: nothing may break them; then boxes
            _align_row(row, above, position, root, align, boxes, wanted)
    return root


def _align_row(
    row: list[int],
    above: Neighbours,
    position: list[int],
    root: list[int],
    align: list[int],
    boxes: int,
    wanted: int,
) -> None:
    """Aligns vertices with their median neighbours above, without crossing another alignment.

    ``wanted`` is 0 for lanes below lanes, 1 for boxes below boxes, 2 for the rest.
    """
    aligned_with = [-1] * len(row)  # the position above with which each vertex is aligned so far
    for i, v in enumerate(row):
        if root[v] != v:
            aligned_with[i] = position[next(u for u in above[v] if align[u] == v)]
    right = [len(position)] * (len(row) + 1)
    for i in range(len(row) - 1, -1, -1):
        right[i] = aligned_with[i] if aligned_with[i] >= 0 else right[i + 1]
    left = -1
    for i, v in enumerate(row):
        if aligned_with[i] >= 0:
            left = aligned_with[i]
            continue
        near = sorted(above[v], key=position.__getitem__)
        if not near or wanted != (2 if (v < boxes) != (near[0] < boxes) else int(v < boxes)):
            continue
        for u in near[(len(near) - 1) // 2 : len(near) // 2 + 1]:
            if align[u] == u and left < position[u] < right[i + 1] and root[v] == v:
                align[u], root[v] = v, root[u]
                left = position[u]


def _compacted(
    rows: Ranks, root: list[int], separation: Callable[[int, int], float]
) -> list[float]:
    """The coordinates of vertices: blocks move as far left as possible, then right up to others."""
    after: dict[int, dict[int, float]] = {r: {} for r in root}
    waiting = dict.fromkeys(after, 0)
    for row in rows:
        for a, b in pairwise(row):
            distances = after[root[a]]
            waiting[root[b]] += root[b] not in distances
            distances[root[b]] = max(distances.get(root[b], 0.0), separation(a, b))
    order = [r for r in after if not waiting[r]]
    x = dict.fromkeys(after, 0.0)
    for r in order:
        for other, distance in after[r].items():
            x[other] = max(x[other], x[r] + distance)
            waiting[other] -= 1
            if not waiting[other]:
                order.append(other)
    for r in reversed(order):
        if after[r]:
            x[r] = max(x[r], min(x[other] - distance for other, distance in after[r].items()))
    return [x[r] for r in root]


#: The aspect ratio to aim at, and the height in pixels below which a picture stays in one column.
_SHAPE, _SHORT = 1.5, 1500.0
#: Distances between columns, between lines there, and between boxes (an estimate); and the radius
#: of round corners.
_GUTTER, _COLUMN_LANE, _COLUMN_GAP, _ROUND = 40.0, 6.0, 26.0, 5.0
#: How far from even columns a cut may be, as a fraction of a column's height.
_SLACK = 0.3


def folded(items: Sequence[Item], arrange_column: Callable[[list[Item]], Item]) -> Item:
    """Draws items, in topological order, in as many columns as give a good aspect ratio.

    ``arrange_column`` arranges the items of one column and draws the lines between them.
    """
    single_column = arrange_column(list(items))
    count = max(1, round(sqrt(_SHAPE * single_column.height / (single_column.width + _GUTTER))))
    if count == 1 or single_column.height < _SHORT:
        return single_column
    cuts = _cuts(items, count)
    if not cuts:
        return single_column
    columns = []
    for start, stop in zip([0, *cuts], [*cuts, len(items)], strict=True):
        entries = [Port(8, 0, [], gives={v: 0.0}, value=v) for v in _crossing(items, start)]
        exits = [Port(8, 0, [], reads={v: 0.0}, value=v) for v in _crossing(items, stop)]
        columns.append(arrange_column([*entries, *items[start:stop], *exits]))
    return _side_by_side(columns)


def _crossing(items: Sequence[Item], cut: int) -> list[Value]:
    """The values that an item before ``cut`` gives, and an item from there on reads."""
    produced = {value for item in items[:cut] for value in item.gives}
    read = (value for item in items[cut:] for value in item.reads if value in produced)
    return list(dict.fromkeys(read))


def _cuts(items: Sequence[Item], count: int) -> list[int]:
    """The indices of items where columns end: heights are about even, and few lines cross a cut."""
    height, ends, last_read = 0.0, [], dict[Value, int]()
    below: dict[Value, float] = {}
    for i, item in enumerate(items):
        top = max((below.get(value, 0.0) for value in item.reads), default=0.0)
        height = max(height, top + item.height + _COLUMN_GAP)
        ends.append(height)
        below |= dict.fromkeys(item.gives, top + item.height + _COLUMN_GAP)
        last_read |= dict.fromkeys(item.reads, i)
    crossing, live = [0], 0
    closing = [0] * len(items)
    for i, item in enumerate(items):
        for value in item.gives:
            if last_read.get(value, i) > i:
                live += 1
                closing[last_read[value]] += 1
        live -= closing[i]
        crossing.append(live)
    column_height, cuts = height / count, list[int]()
    for number in range(1, count):
        candidates = [
            (3 * crossing[cut] + 4 * abs(ends[cut - 1] / column_height - number) / _SLACK, cut)
            for cut in range((cuts[-1] if cuts else 0) + 1, len(items))
            if abs(ends[cut - 1] / column_height - number) < _SLACK
        ]
        if candidates:
            cuts.append(min(candidates)[1])
    return cuts


def _side_by_side(columns: Sequence[Item]) -> Item:
    """Draws columns from left to right, and lines from each one's bottom to the next one's top."""
    most_lines = max(len(column.gives) for column in columns)
    head, gutter = _ROUND + _COLUMN_LANE * (most_lines + 1), _GUTTER + _COLUMN_LANE * most_lines
    left, body = 0.0, list[str]()
    for i, column in enumerate(columns):
        body += moved(column.body, left, head)
        right = left + column.width
        if i + 1 < len(columns):
            next_column = columns[i + 1]
            for lane, value in enumerate(column.gives):
                start = (left + column.width / 2 + column.gives[value], head + column.height)
                entry = right + gutter + next_column.width / 2 + (next_column.reads[value] or 0.0)
                lane_offset = _COLUMN_LANE * (lane + 1)
                lane_x = right + gutter / 2 - _COLUMN_LANE * most_lines / 2 + lane_offset
                body.append(_line(value, start, (entry, head), lane_offset, lane_x))
        left = right + gutter
    height = max(column.height for column in columns) + 2 * head
    return Item(left - gutter, height, body)


def _line(
    value: Value,
    start: tuple[float, float],
    end: tuple[float, float],
    aside: float,
    across: float,
) -> str:
    """A line that goes down, right, up, right and down, with round corners."""
    (x0, y0), (x1, y1), r = start, end, _ROUND
    low, high = y0 + aside + r, y1 - aside - r
    path = f"M{px(x0)},{px(y0)} V{px(low - r)} q0,{px(r)} {px(r)},{px(r)} H{px(across - r)} "
    path += f"q{px(r)},0 {px(r)},{px(-r)} V{px(high + r)} q0,{px(-r)} {px(r)},{px(-r)} "
    path += f"H{px(x1 - r)} q{px(r)},0 {px(r)},{px(r)} V{px(y1)}"
    return f'<path d="{path}" {LINE}><title>{value_title(value)}</title></path>'


def value_title(value: Value) -> str:
    """The tooltip of a line: the name and type of the value that it carries."""
    return clean(f"{value.name}: {value.type}")
