"""A long picture folded into columns, side by side, each of which goes on at the next one's top."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import sqrt

from minidnn.graph.ir import Value
from minidnn.graph.svg import LINE, Item, Port, clean, moved, px

#: Width by height that a whole picture should have, and a height that is left in one column.
_SHAPE, _SHORT = 1.5, 1500.0
#: Between columns, between lines there, and about what lies between boxes.
_GUTTER, _LANE, _GAP, _ROUND = 40.0, 6.0, 26.0, 5.0
#: Of the height of a column: how far from its even end it may end.
_SLACK = 0.3


def folded(items: Sequence[Item], join: Callable[[list[Item]], Item]) -> Item:
    """Items in topological order, joined in as many columns as make a picture of a good shape.

    ``join`` places the items of one column and draws the lines between them.
    """
    whole = join(list(items))
    count = max(1, round(sqrt(_SHAPE * whole.height / (whole.width + _GUTTER))))
    if count == 1 or whole.height < _SHORT:
        return whole
    cuts = _cuts(items, count)
    if not cuts:
        return whole
    columns = []
    for start, stop in zip([0, *cuts], [*cuts, len(items)], strict=True):
        entries = [Port(8, 0, [], gives={v: 0.0}, value=v) for v in _crossing(items, start)]
        exits = [Port(8, 0, [], reads={v: 0.0}, value=v) for v in _crossing(items, stop)]
        columns.append(join([*entries, *items[start:stop], *exits]))
    return _side_by_side(columns)


def _crossing(items: Sequence[Item], cut: int) -> list[Value]:
    """What is given before a place in the order, and read behind it."""
    given = {value for item in items[:cut] for value in item.gives}
    read = (value for item in items[cut:] for value in item.reads if value in given)
    return list(dict.fromkeys(read))


def _cuts(items: Sequence[Item], count: int) -> list[int]:
    """Where columns of about the same height end, with as few lines as possible going on."""
    height, ends, last_read = 0.0, [], dict[Value, int]()
    below: dict[Value, float] = {}
    for i, item in enumerate(items):
        top = max((below.get(value, 0.0) for value in item.reads), default=0.0)
        height = max(height, top + item.height + _GAP)
        ends.append(height)
        below |= dict.fromkeys(item.gives, top + item.height + _GAP)
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
    wanted, found = height / count, list[int]()
    for number in range(1, count):
        places = [
            (3 * crossing[cut] + 4 * abs(ends[cut - 1] / wanted - number) / _SLACK, cut)
            for cut in range((found[-1] if found else 0) + 1, len(items))
            if abs(ends[cut - 1] / wanted - number) < _SLACK
        ]
        if places:
            found.append(min(places)[1])
    return found


def _side_by_side(columns: Sequence[Item]) -> Item:
    """Columns from left to right, with lines from the bottom of each to the next one's top."""
    most = max(len(column.gives) for column in columns)
    head, gutter = _ROUND + _LANE * (most + 1), _GUTTER + _LANE * most
    left, body = 0.0, list[str]()
    for i, column in enumerate(columns):
        body += moved(column.body, left, head)
        right = left + column.width
        if i + 1 < len(columns):
            after = columns[i + 1]
            for lane, value in enumerate(column.gives):
                start = (left + column.width / 2 + column.gives[value], head + column.height)
                into = right + gutter + after.width / 2 + (after.reads[value] or 0.0)
                aside = _LANE * (lane + 1)
                across = right + gutter / 2 - _LANE * most / 2 + aside
                body.append(_line(value, start, (into, head), aside, across))
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
    """Down, right, up, right and down, with round corners."""
    (x0, y0), (x1, y1), r = start, end, _ROUND
    low, high = y0 + aside + r, y1 - aside - r
    path = f"M{px(x0)},{px(y0)} V{px(low - r)} q0,{px(r)} {px(r)},{px(r)} H{px(across - r)} "
    path += f"q{px(r)},0 {px(r)},{px(-r)} V{px(high + r)} q0,{px(-r)} {px(r)},{px(-r)} "
    path += f"H{px(x1 - r)} q{px(r)},0 {px(r)},{px(r)} V{px(y1)}"
    return f'<path d="{path}" {LINE}><title>{value_title(value)}</title></path>'


def value_title(value: Value) -> str:
    """What is told of a line: the value that goes along."""
    return clean(f"{value.name}: {value.type}")
