"""A graph as an SVG picture: boxes by operator class, stacks and groups as outlines.

Data flows downwards.  A node whose operator has a ``body`` is drawn as an outline around the
nodes of that body, and so is each of the groups that a caller names.  Constants are not drawn,
but counted.  The text is the same in every process.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from minidnn.errors import GraphError
from minidnn.graph.ir import Constant, Graph, Node, Value
from minidnn.graph.layered import Arrangement, arrange
from minidnn.graph.operator import Contraction
from minidnn.graph.svg import (
    COLOURS,
    EDGE,
    FAINT,
    GROUP,
    LETTER,
    LINE,
    MARGIN,
    MARK,
    OTHER,
    REGION,
    STACK,
    TEXT,
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
)
from minidnn.graph.totals import totals


def to_svg(
    graph: Graph,
    highlight: Iterable[Node | str] | None = None,
    groups: Mapping[str, Sequence[Node]] | None = None,
) -> str:
    """The picture of a graph as the text of an SVG file.

    ``highlight`` are nodes, or names of nodes, that get a thick frame; those in bodies count.
    ``groups`` are outlined and labelled with their names.  Where an outline would have to
    enclose other nodes too, because a path leaves the group and comes back, the group's nodes
    are framed and labelled one by one.

    GraphError names a node that is not in the graph, or that is in two groups.
    """
    drawing = _Drawing(_marked(graph, highlight), {})
    owners = _owners(graph, groups or {})
    outlined = _convex(graph, owners)
    drawing.tags = {n: g for n, g in owners.items() if g not in outlined}
    inner = {n: g for n, g in owners.items() if g in outlined}
    content = drawing.scope(graph, graph.nodes, inner, pills=True)
    header = _header(graph)
    width = max(content.width, header.width) + 2 * MARGIN
    height = content.height + header.height + 2 * MARGIN
    size = f'width="{px(width)}" height="{px(height)}" viewBox="0 0 {px(width)} {px(height)}"'
    left = (width - content.width) / 2
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} '
        'font-family="Helvetica, Arial, DejaVu Sans, sans-serif" font-size="11">',
        f"<title>{clean(graph.name)}</title>",
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto" markerUnits="userSpaceOnUse">'
        f'<path d="M0,0.8 L8,4 L0,7.2 z" fill="{EDGE}"/></marker></defs>',
        f'<rect width="{px(width)}" height="{px(height)}" fill="white"/>',
        *moved(header.body, MARGIN, MARGIN),
        *moved(content.body, left, MARGIN + header.height),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


class _Drawing:
    """Draws graphs, and the graphs within them."""

    def __init__(self, marked: set[Node], tags: dict[Node, str]) -> None:
        self.marked, self.tags = marked, tags

    def scope(
        self, graph: Graph, nodes: Sequence[Node], groups: Mapping[Node, str], pills: bool
    ) -> Item:
        """The nodes between a graph's inputs and outputs, which are pills or mere ports."""
        make_input, make_output = (_input_pill, _output_pill) if pills else (_input, _output)
        items = [make_input(value) for value in graph.inputs]
        for members, name in _units(nodes, groups):
            items.append(
                self.node(members[0]) if name is None else self.group(name, members, graph)
            )
        names = graph.output_names or ("output",) * len(graph.outputs)
        items += [
            make_output(value, name)
            for value, name in zip(graph.outputs, names, strict=True)
            if not isinstance(value, Constant)
        ]
        return _joined(items)

    def node(self, node: Node) -> Item:
        body = getattr(node.op, "body", None)
        item = self.region(node, body) if isinstance(body, Graph) else box(node)
        if node in self.tags:
            name = self.tags[node]
            item.body += [frame(item, GROUP[1], 5.0, name), tag(name, GROUP[1])]
        if node in self.marked:
            item.body.append(frame(item, MARK, 3.0, "highlighted"))
        return item

    def region(self, node: Node, body: Graph) -> Item:
        content = self.scope(body, body.nodes, {}, pills=False)
        colours = REGION if any(isinstance(n.op, Contraction) for n in body.nodes) else STACK
        label = f"{shortened(node.name)}: {node.op.name}"
        outer, inner = node.inputs, body.inputs
        reads = {o: content.reads[i] for o, i in zip(outer, inner, strict=True)}
        gives = {
            o: content.gives[i]
            for o, i in zip(node.outputs, body.outputs, strict=True)
            if i in content.gives
        }
        content.reads, content.gives = reads, gives
        return outline(content, label, description(node), colours)

    def group(self, name: str, nodes: Sequence[Node], graph: Graph) -> Item:
        own = {value for node in nodes for value in node.outputs}
        reads = dict.fromkeys(v for node in nodes for v in node.tensors if v not in own)
        member = set(nodes)
        gives = [
            value
            for node in nodes
            for value in node.outputs
            if value in graph.outputs or any(r not in member for r in graph.readers[value])
        ]
        content = self.scope(Graph(reads, gives, nodes, name), nodes, {}, pills=False)
        return outline(content, shortened(name), name, GROUP, ' stroke-dasharray="6 3"')


def _marked(graph: Graph, highlight: Iterable[Node | str] | None) -> set[Node]:
    known: dict[Node | str, list[Node]] = {}
    pending = list(graph.nodes)
    while pending:
        node = pending.pop()
        known.setdefault(node.name, []).append(node)
        known[node] = [node]
        body = getattr(node.op, "body", None)
        pending.extend(body.nodes if isinstance(body, Graph) else ())
    if isinstance(highlight, str):
        highlight = [highlight]
    found: set[Node] = set()
    for item in highlight or ():
        if item not in known:
            name = item.name if isinstance(item, Node) else item
            raise GraphError(
                f"highlight: {name!r:.100} is no node of graph {graph.name!r}; valid are its nodes"
                " and their names"
            )
        found.update(known[item])
    return found


def _owners(graph: Graph, groups: Mapping[str, Sequence[Node]]) -> dict[Node, str]:
    found: dict[Node, str] = {}
    for name, nodes in groups.items():
        for node in nodes:
            if node not in graph.position:
                raise GraphError(
                    f"groups[{name!r:.100}]: {node!r:.200} is no node of graph {graph.name!r}; "
                    "valid are its nodes"
                )
            if found.setdefault(node, name) != name:
                raise GraphError(
                    f"groups[{name!r:.100}]: node {node.name!r} is in the group {found[node]!r} "
                    "already; valid is one group for each node"
                )
    return found


def _convex(graph: Graph, owners: Mapping[Node, str]) -> set[str]:
    """The groups that outlines can enclose: joined to one box each, they make no cycle."""
    accepted: set[str] = set()
    for name in dict.fromkeys(owners.values()):
        tried = accepted | {name}
        if _order(graph.nodes, {n: g for n, g in owners.items() if g in tried}) is not None:
            accepted = tried
    return accepted


def _units(
    nodes: Sequence[Node], groups: Mapping[Node, str]
) -> list[tuple[list[Node], str | None]]:
    """Nodes by themselves and whole groups, each after what it reads."""
    order = _order(nodes, groups) or []
    return [(members, groups.get(members[0])) for members in order]


def _order(nodes: Sequence[Node], groups: Mapping[Node, str]) -> list[list[Node]] | None:
    """Groups and other nodes in topological order; None if there is none."""
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


def _joined(items: list[Item]) -> Item:
    """Items at their places, with the edges between them."""
    source = {value: i for i, item in enumerate(items) for value in item.gives}
    edges = [
        (source[value], i, value)
        for i, item in enumerate(items)
        for value in item.reads
        if value in source
    ]
    placed = arrange([(item.width, item.height) for item in items], edges)
    drawn = []
    for value, targets in _by_value(edges).items():
        drawn += _edge(value, source[value], targets, items, placed)
    for i, item in enumerate(items):
        drawn += moved(item.body, placed.x[i] - item.width / 2, placed.top[i])
    whole = Item(placed.width, placed.height, drawn)
    for i, item in enumerate(items):
        if isinstance(item, Port):
            side = whole.gives if item.reads else whole.reads
            side[item.value] = placed.x[i] - placed.width / 2
    return whole


def _by_value(edges: list[tuple[int, int, Value]]) -> dict[Value, list[int]]:
    found: dict[Value, list[int]] = {}
    for _, target, value in edges:
        found.setdefault(value, []).append(target)
    return found


def _edge(
    value: Value, source: int, targets: list[int], items: list[Item], placed: Arrangement
) -> list[str]:
    """One trunk through the value's lanes, and a branch to each reader."""
    bands, rank = placed.bands, placed.rank
    x = placed.x[source] + items[source].gives[value]
    bottom = placed.top[source] + items[source].height
    stops = [(x, bottom, bands[rank[source]][1])]
    for i, lane in enumerate(placed.lanes.get(value, ())):
        stops.append((lane, *bands[rank[source] + 1 + i]))
    lines = []
    title = f"<title>{clean(f'{value.name}: {value.type}')}</title>"
    if len(stops) > 1:
        path = f"M{px(x)},{px(bottom)}"
        for before, after in pairwise(stops):
            path += _bend(before, after)
        lines.append(f'<path d="{path} V{px(stops[-1][2])}" {LINE}>{title}</path>')
    for target in targets:
        start = stops[rank[target] - rank[source] - 1]
        arrival = _arrival(value, target, items, placed, start[0])
        end = (arrival, bands[rank[target]][0], placed.top[target])
        path = f"M{px(start[0])},{px(start[1] if len(stops) == 1 else start[2])}"
        path += _bend(start, end)
        if end[2] > end[1] + 0.1:  # a last line without length would turn the arrow
            path += f" V{px(end[2])}"
        arrow = ' marker-end="url(#arrow)"' if items[target].reads[value] is None else ""
        lines.append(f'<path d="{path}" {LINE}{arrow}>{title}</path>')
    return lines


def _bend(before: tuple[float, float, float], after: tuple[float, float, float]) -> str:
    """From the bottom of one stop (x, top, bottom) to the top of the next."""
    (x0, _, y0), (x1, y1, _) = before, after
    if abs(x0 - x1) < 0.5:
        return f" V{px(y1)}"
    middle = (y0 + y1) / 2
    return f" V{px(y0)} C{px(x0)},{px(middle)} {px(x1)},{px(middle)} {px(x1)},{px(y1)}"


def _arrival(
    value: Value, target: int, items: list[Item], placed: Arrangement, start: float
) -> float:
    """Where on a reader's upper side an edge ends: at its port, or below where it comes from."""
    item = items[target]
    port = item.reads[value]
    if port is not None:
        return placed.x[target] + port
    room = item.width / 2 - 14
    aside = min(max(start - placed.x[target], -room), room)
    return placed.x[target] + (aside if len(item.reads) > 1 else 0.0)


def _input(value: Value) -> Item:
    return Port(8, 0, [], gives={value: 0.0}, value=value)


def _output(value: Value, name: str) -> Item:
    return Port(8, 0, [], reads={value: 0.0}, value=value)


def _input_pill(value: Value) -> Item:
    item = pill(value.name, value.type)
    item.gives = {value: 0.0}
    return item


def _output_pill(value: Value, name: str) -> Item:
    item = pill(name, value.type)
    item.reads = {value: None}
    return item


def _header(graph: Graph) -> Item:
    """The graph's name, its totals, and the colours of the classes that it has."""
    sums = totals(graph)
    facts = (
        f"{sums.nodes:,} nodes, {sums.operations:,} operations, {sums.constants:,} constants of "
        f"{sums.bytes:,} bytes"
    )
    body = [
        f'<text x="0" y="14" font-size="16" font-weight="bold" fill="{TEXT}">'
        f"{clean(shortened(graph.name, 60))}</text>",
        f'<text x="0" y="32" fill="{FAINT}">{facts}</text>',
    ]
    x = 0.0
    for kind in _kinds(graph):
        fill, stroke = COLOURS.get(kind, OTHER)
        body.append(
            f'<rect x="{px(x)}" y="40" width="12" height="12" rx="3" fill="{fill}" '
            f'stroke="{stroke}"/><text x="{px(x + 17)}" y="50" fill="{FAINT}">{clean(kind)}</text>'
        )
        x += 17 + len(kind) * LETTER + 16
    return Item(max(x, len(facts) * LETTER, len(graph.name[:60]) * 10.0), 74, body)


def _kinds(graph: Graph) -> list[str]:
    found: dict[str, None] = {}
    pending = list(graph.nodes)
    while pending:
        node = pending.pop()
        body = getattr(node.op, "body", None)
        if isinstance(body, Graph):
            pending.extend(body.nodes)
        else:
            found[node.op.kind] = None
    return sorted(found, key=lambda kind: ([*COLOURS, kind].index(kind), kind))
