"""Draws a graph as an SVG picture, which a browser zooms and pans.

Data flows downwards, and from the bottom of a column to the top of the next one.  A box is a node:
its name, a row for each operator that it computes, coloured by operator class, and its output's
shape.  The groups that a caller names are outlined.  Constants are not drawn.  The text of the SVG
is the same in every process.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from math import inf, sqrt
from typing import Any

from minidnn.errors import GraphError
from minidnn.graph.ir import Constant, Graph, Node, Value
from minidnn.graph.layered import Arrangement, arrange, folded, value_title
from minidnn.graph.svg import (
    CLASSES,
    HEAT,
    LETTER,
    LINE,
    MARGIN,
    SCRIPT,
    STYLE,
    Item,
    Port,
    box,
    clean,
    description,
    frame,
    moved,
    outline,
    pill,
    px,
    shortened,
    tag,
    text,
)
from minidnn.graph.totals import inner_nodes, totals, with_bodies


def to_svg(
    graph: Graph,
    highlight: Iterable[Node | str] | None = None,
    groups: Mapping[str, Sequence[Node]] | None = None,
    times: Mapping[str, float] | None = None,
) -> str:
    """The picture of a graph as the text of an SVG file.

    ``highlight`` holds nodes, or names of nodes, that get a thick frame; nodes in bodies count,
    too.  ``groups`` are outlined and labelled with their names.  Where an outline would have to
    enclose other nodes too, because a path leaves the group and comes back, the group's nodes are
    framed and labelled one by one.  ``times`` maps names of nodes to seconds, which their boxes
    show in words and by colour.

    GraphError names a node that is not in the graph, or that is in two groups, or whose time is
    no number.
    """
    owners = _owners(graph, groups or {})
    outlined = _convex(graph, owners)
    drawing = _Drawing(
        _marked(graph, highlight),
        {n: g for n, g in owners.items() if g not in outlined},
        _times(graph, times or {}),
    )
    content = drawing.whole(graph, {n: g for n, g in owners.items() if g in outlined})
    header = _header(graph, drawing)
    width = max(content.width, header.width) + 2 * MARGIN
    height = content.height + header.height + 2 * MARGIN
    size = f'width="{px(width)}" height="{px(height)}" viewBox="0 0 {px(width)} {px(height)}"'
    left = (width - content.width) / 2
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size}>',
        f"<title>{clean(graph.name)}</title>",
        STYLE,
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto" markerUnits="userSpaceOnUse">'
        '<path d="M0,0.8 L8,4 L0,7.2 z" class="a"/></marker></defs>',
        f'<rect x="{px(-4 * width)}" y="{px(-4 * height)}" width="{px(9 * width)}" '
        f'height="{px(9 * height)}" class="page"/>',
        *moved(header.body, MARGIN, MARGIN),
        *moved(content.body, left, MARGIN + header.height),
        SCRIPT,
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


class _Drawing:
    """Draws a graph and the bodies of its regions, with frames, labels and colours of times."""

    def __init__(
        self, marked: set[Node], tags: dict[Node, str], times: Mapping[str, float]
    ) -> None:
        self.marked, self.tags, self.times = marked, tags, times
        #: Whether any group is drawn, for the legend.
        self.groups = bool(tags)

    def whole(self, graph: Graph, groups: Mapping[Node, str]) -> Item:
        """The whole graph.

        In the order of items, an input comes right before its first reader, and an output right
        after its producer, so that they are in the same column.
        """
        waiting = {value: _input_pill(value) for value in graph.inputs}
        names = graph.output_names or ("output",) * len(graph.outputs)
        last: dict[Value, list[Item]] = {}
        for value, name in zip(graph.outputs, names, strict=True):
            if not isinstance(value, Constant):
                last.setdefault(value, []).append(_output_pill(value, name))
        items = []
        for members, group in _units(graph.nodes, groups):
            item = self.node(members[0]) if group is None else self.group(group, members, graph)
            items += [waiting.pop(value) for value in item.reads if value in waiting]
            items.append(item)
            for value in item.gives:
                items += last.pop(value, [])
        items += [*waiting.values(), *(pill for pills in last.values() for pill in pills)]
        return folded(items, _arranged)

    def scope(self, graph: Graph, nodes: Sequence[Node]) -> Item:
        """The nodes of a group or of a body, with the graph's inputs and outputs as ports."""
        items: list[Item] = [Port(8, 0, [], gives={v: 0.0}, value=v) for v in graph.inputs]
        items += [self.node(members[0]) for members, _ in _units(nodes, {})]
        items += [
            Port(8, 0, [], reads={v: 0.0}, value=v)
            for v in graph.outputs
            if not isinstance(v, Constant)
        ]
        return _arranged(items)

    def node(self, node: Node) -> Item:
        """The box of a node, or the outline of a region that contains regions."""
        if any(inner_nodes(inner) for inner in inner_nodes(node)):
            item = self.region(node, node.op.body)  # type: ignore[attr-defined]
        else:
            item = box(node, *self.told(node))
        if node in self.tags:
            group = self.tags[node]
            item.body += [frame(item, "k", 5.0, group), tag(group)]
        if node in self.marked or any(inner in self.marked for inner in _rows(node)):
            item.body.append(frame(item, "m", 3.0, "highlighted"))
        return item

    def told(self, node: Node) -> tuple[str, int | None]:
        """The time of a node in words, and the index of its colour; "" and None if it has none."""
        if node.name not in self.times:
            return "", None
        seconds, longest = self.times[node.name], max(self.times.values())
        return _seconds(seconds), _step(seconds / longest if longest else 0.0)

    def region(self, node: Node, body: Graph) -> Item:
        """The outline of a region, with its body inside."""
        content = self.scope(body, body.nodes)
        label = f"{shortened(node.name)}: {node.op.name}"
        outer, inner = node.inputs, body.inputs
        reads = {o: content.reads[i] for o, i in zip(outer, inner, strict=True)}
        gives = {
            o: content.gives[i]
            for o, i in zip(node.outputs, body.outputs, strict=True)
            if i in content.gives
        }
        content.reads, content.gives = reads, gives
        return outline(content, label, description(node), "r")

    def group(self, name: str, nodes: Sequence[Node], graph: Graph) -> Item:
        """The outline of a group that the caller named, with its nodes inside."""
        self.groups = True
        produced = {value for node in nodes for value in node.outputs}
        reads = dict.fromkeys(v for node in nodes for v in node.tensors if v not in produced)
        members = set(nodes)
        gives = [
            value
            for node in nodes
            for value in node.outputs
            if value in graph.outputs or any(r not in members for r in graph.readers[value])
        ]
        content = self.scope(Graph(reads, gives, nodes, name), nodes)
        return outline(content, shortened(name), name, "g")


def _rows(node: Node) -> tuple[Node, ...]:
    """The nodes of a body that are rows in the node's box."""
    inner = inner_nodes(node)
    return () if any(inner_nodes(each) for each in inner) else inner


def _times(graph: Graph, times: Mapping[str, float]) -> Mapping[str, float]:
    known = {node.name for node in graph.nodes}
    for name, seconds in times.items():
        if name not in known:
            raise GraphError(f"times: {name!r:.100} is no node of graph {graph.name!r}")
        if not isinstance(seconds, (int, float)) or not 0 <= seconds < inf:
            raise GraphError(f"times[{name!r:.100}]={seconds!r:.80}; valid are seconds")
    return times


def _step(share: float) -> int:
    """The index of the colour of a time, from its share of the longest one.

    It grows with the square root, so that short times differ in colour, too.
    """
    return min(len(HEAT) - 1, int(len(HEAT) * sqrt(share)))


def _seconds(seconds: float) -> str:
    if seconds >= 0.9995:
        return f"{seconds:.3g} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 0.9995e-3 else f"{seconds * 1e6:.3g} \u00b5s"


def _marked(graph: Graph, highlight: Iterable[Node | str] | None) -> set[Node]:
    """The nodes to highlight, in bodies, too; GraphError for anything that is no node or name."""
    known: dict[Node | str, list[Node]] = {}
    for node in with_bodies(graph.nodes):
        known.setdefault(node.name, []).append(node)
        known[node] = [node]
    if isinstance(highlight, str):
        highlight = [highlight]
    marked: set[Node] = set()
    for item in highlight or ():
        if item not in known:
            name = item.name if isinstance(item, Node) else item
            raise GraphError(
                f"highlight: {name!r:.100} is no node of graph {graph.name!r}; valid are its nodes"
                " and their names"
            )
        marked.update(known[item])
    return marked


def _owners(graph: Graph, groups: Mapping[str, Sequence[Node]]) -> dict[Node, str]:
    owners: dict[Node, str] = {}
    for name, nodes in groups.items():
        for node in nodes:
            if node not in graph.position:
                raise GraphError(
                    f"groups[{name!r:.100}]: {node!r:.200} is no node of graph {graph.name!r}; "
                    "valid are its nodes"
                )
            if owners.setdefault(node, name) != name:
                raise GraphError(
                    f"groups[{name!r:.100}]: node {node.name!r} is in the group {owners[node]!r} "
                    "already; valid is one group for each node"
                )
    return owners


def _convex(graph: Graph, owners: Mapping[Node, str]) -> set[str]:
    """The groups that outlines can enclose: merged into one box each, they cause no cycle."""
    accepted: set[str] = set()
    for name in dict.fromkeys(owners.values()):
        tried = accepted | {name}
        if _order(graph.nodes, {n: g for n, g in owners.items() if g in tried}) is not None:
            accepted = tried
    return accepted


def _units(
    nodes: Sequence[Node], groups: Mapping[Node, str]
) -> list[tuple[list[Node], str | None]]:
    """Single nodes, and groups with their names, in topological order."""
    order = _order(nodes, groups) or []
    return [(members, groups.get(members[0])) for members in order]


def _order(nodes: Sequence[Node], groups: Mapping[Node, str]) -> list[list[Node]] | None:
    """Groups and single nodes in topological order; None if they have a cycle."""
    units: dict[Any, list[Node]] = {}
    for node in nodes:
        units.setdefault(groups.get(node, node), []).append(node)
    after: dict[Any, dict[Any, None]] = {key: {} for key in units}
    for key, members in units.items():
        for node in members:
            for value in node.inputs:
                producer = value.producer
                source = groups.get(producer, producer) if producer is not None else None
                if source in after and source != key:
                    after[source][key] = None
    waiting = dict.fromkeys(units, 0)
    for targets in after.values():
        for target in targets:
            waiting[target] += 1
    ready = [key for key in units if not waiting[key]]
    for key in ready:
        for target in after[key]:
            waiting[target] -= 1
            if not waiting[target]:
                ready.append(target)
    return [units[key] for key in ready] if len(ready) == len(units) else None


def _arranged(items: list[Item]) -> Item:
    """Arranges items, and draws the edges between them; the ports become those of the result."""
    source = {value: i for i, item in enumerate(items) for value in item.gives}
    edges = [
        (source[value], i, value)
        for i, item in enumerate(items)
        for value in item.reads
        if value in source
    ]
    arrangement = arrange([(item.width, item.height) for item in items], edges)
    drawn = []
    for value, targets in _by_value(edges).items():
        drawn += _edge(value, source[value], targets, items, arrangement)
    for i, item in enumerate(items):
        drawn += moved(item.body, arrangement.x[i] - item.width / 2, arrangement.top[i])
    drawing = Item(arrangement.width, arrangement.height, drawn)
    for i, item in enumerate(items):
        if isinstance(item, Port):
            side = drawing.gives if item.reads else drawing.reads
            side[item.value] = arrangement.x[i] - arrangement.width / 2
    return drawing


def _by_value(edges: list[tuple[int, int, Value]]) -> dict[Value, list[int]]:
    targets: dict[Value, list[int]] = {}
    for _, target, value in edges:
        targets.setdefault(value, []).append(target)
    return targets


def _edge(
    value: Value, source: int, targets: list[int], items: list[Item], arrangement: Arrangement
) -> list[str]:
    """The lines of a value: one trunk through its lanes, and a branch to each reader."""
    bands, rank = arrangement.bands, arrangement.rank
    x = arrangement.x[source] + items[source].gives[value]
    bottom = arrangement.top[source] + items[source].height
    stops = [(x, bottom, bands[rank[source]][1])]
    for i, lane in enumerate(arrangement.lanes.get(value, ())):
        stops.append((lane, *bands[rank[source] + 1 + i]))
    lines = []
    title = f"<title>{value_title(value)}</title>"
    if len(stops) > 1:
        path = f"M{px(x)},{px(bottom)}"
        for before, after in pairwise(stops):
            path += _curve(before, after)
        lines.append(f'<path d="{path} V{px(stops[-1][2])}" {LINE}>{title}</path>')
    for target in targets:
        start = stops[rank[target] - rank[source] - 1]
        arrival = _arrival(value, target, items, arrangement, start[0])
        end = (arrival, bands[rank[target]][0], arrangement.top[target])
        path = f"M{px(start[0])},{px(start[1] if len(stops) == 1 else start[2])}"
        path += _curve(start, end)
        if end[2] > end[1] + 0.1:  # a last line without length would turn the arrow
            path += f" V{px(end[2])}"
        arrow = ' marker-end="url(#arrow)"' if items[target].reads[value] is None else ""
        lines.append(f'<path d="{path}" {LINE}{arrow}>{title}</path>')
    return lines


def _curve(before: tuple[float, float, float], after: tuple[float, float, float]) -> str:
    """The path from the bottom of one stop (x, top, bottom) to the top of the next."""
    (x0, _, y0), (x1, y1, _) = before, after
    if abs(x0 - x1) < 0.5:
        return f" V{px(y1)}"
    middle = (y0 + y1) / 2
    return f" V{px(y0)} C{px(x0)},{px(middle)} {px(x1)},{px(middle)} {px(x1)},{px(y1)}"


def _arrival(
    value: Value, target: int, items: list[Item], arrangement: Arrangement, start: float
) -> float:
    """The x at which an edge ends on a reader's upper side: at its port, or below its start."""
    item = items[target]
    port = item.reads[value]
    if port is not None:
        return arrangement.x[target] + port
    room = item.width / 2 - 14
    offset = min(max(start - arrangement.x[target], -room), room)
    return arrangement.x[target] + (offset if len(item.reads) > 1 else 0.0)


def _input_pill(value: Value) -> Item:
    item = pill(value.name, value.type)
    item.gives = {value: 0.0}
    return item


def _output_pill(value: Value, name: str) -> Item:
    item = pill(name, value.type)
    item.reads = {value: None}
    return item


def _header(graph: Graph, drawing: _Drawing) -> Item:
    """The header: the graph's name, its totals, and the legend of boxes, colours and frames."""
    sums = totals(graph)
    summary = (
        f"{sums.nodes:,} nodes, {sums.operations:,} operations, {sums.constants:,} constants of "
        f"{sums.bytes:,} bytes"
    )
    if drawing.times:
        summary += f"; {len(drawing.times):,} kernels take {_seconds(sum(drawing.times.values()))}"
    body = [text(0, 14, shortened(graph.name, 60), "t w l"), text(0, 32, summary, "f")]
    kinds = [(kind if kind in CLASSES else "other", kind) for kind in _kinds(graph)]
    fused = any(map(inner_nodes, graph.nodes))
    rows = [[("b", "one region, a row for each operator"), *kinds] if fused else kinds]
    if drawing.groups:
        rows[0].append(("g", "group"))
    if drawing.marked:
        rows[0].append(("m", "highlighted"))
    if drawing.times:
        rows.append(_scale(max(drawing.times.values())))
    width, y = max(len(summary) * LETTER, len(graph.name[:60]) * 10.0), 40.0
    for row in rows:
        x = 0.0
        for style, words in row:
            body.append(
                f'<rect x="{px(x)}" y="{px(y)}" width="14" height="12" rx="3" class="{style}"/>'
            )
            body.append(text(x + 19, y + 10, words, "f"))
            x += 19 + len(words) * LETTER + 16
        width, y = max(width, x), y + 18
    return Item(width, y + 14, body)


def _scale(longest: float) -> list[tuple[str, str]]:
    """The legend of the colours of times: the longest time of each."""
    count = len(HEAT)
    return [(f"b h{i}", f"to {_seconds(longest * ((i + 1) / count) ** 2)}") for i in range(count)]


def _kinds(graph: Graph) -> list[str]:
    kinds = {node.op.kind for node in with_bodies(graph.nodes) if not inner_nodes(node)}
    return sorted(kinds, key=lambda kind: ([*CLASSES, kind].index(kind), kind))
