"""The elements of a picture of a graph, as lines of SVG: boxes, outlines and text; and its style
sheet and script, which zooms and pans in a browser and needs no library.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from typing import Any

from minidnn.graph.ir import Node, Value
from minidnn.graph.operator import Contraction, Windowed
from minidnn.graph.totals import inner_nodes
from minidnn.graph.types import TensorType

#: Colours of rows by operator class: fill and text in the light theme, then in the dark one.
CLASSES = {
    "contraction": ("#dbe7fb", "#2f5ea8", "#1f3557", "#9cc2ff"),
    "elementwise": ("#ddf2dc", "#2f7a33", "#1e3f24", "#8fd694"),
    "window": ("#ffe9cc", "#a85f06", "#4a3316", "#ffc272"),
    "movement": ("#ececec", "#5f6368", "#33373d", "#c0c4ca"),
    "reduction": ("#ecdff7", "#6f3f9c", "#382850", "#cfa8f2"),
    "other": ("#f9dfe3", "#a12c40", "#4a2028", "#ff9db0"),
}
#: Colours of times, from the shortest to the longest.
HEAT = ("#fffbe6", "#fff0b3", "#ffdf80", "#ffc65c", "#ffa552", "#fb7f4f", "#ee5a4f")
_HEAT_DARK = ("#2b2a22", "#3d3617", "#574412", "#75500f", "#95560f", "#b5541a", "#cf4a2a")

_DAY = {"page": "#ffffff", "text": "#20242b", "faint": "#5c6470", "edge": "#8a8f98"}
_NIGHT = {"page": "#16181d", "text": "#e8eaed", "faint": "#a3aab5", "edge": "#7f8794"}
_DAY |= {"box": "#ffffff", "frame": "#5a5a8c", "mark": "#e0115f", "group": "#f7f7fb"}
_NIGHT |= {"box": "#22262e", "frame": "#a9a9dc", "mark": "#ff5c97", "group": "#1c1f27"}


def _rules(night: bool) -> str:
    """The rules of the style sheet for the light theme, or for the dark one."""
    of = _NIGHT if night else _DAY
    heat = _HEAT_DARK if night else HEAT
    rules = [
        f".page{{fill:{of['page']}}} .t{{fill:{of['text']}}} .f{{fill:{of['faint']}}}",
        f".e{{fill:none;stroke:{of['edge']};stroke-width:1.3}} .a{{fill:{of['edge']}}}",
        f".b{{fill:{of['box']};stroke:{of['edge']};stroke-width:1.2}}",
        f".p{{fill:{of['page']};stroke:{of['text']};stroke-width:1.2}}",
        f".g{{fill:{of['group']};stroke:{of['frame']};stroke-width:1.6;stroke-dasharray:6 3}}",
        f".r{{fill:{of['group']};stroke:{of['edge']};stroke-width:1.6}}",
        f".k{{fill:none;stroke:{of['frame']};stroke-width:2.5}} .kt{{fill:{of['frame']}}}",
        f".m{{fill:none;stroke:{of['mark']};stroke-width:2.5}}",
    ]
    for name, colours in CLASSES.items():
        fill, line = colours[2:] if night else colours[:2]
        rules.append(f".{name}{{fill:{fill}}} .{name}-t{{fill:{line}}}")
    rules += [f".h{i}{{fill:{colour}}}" for i, colour in enumerate(heat)]
    return "\n".join(rules)


STYLE = f"""<style>
text{{font:11px Helvetica,Arial,'DejaVu Sans',sans-serif}} .w{{font-weight:bold}}
.c{{text-anchor:middle}} .s{{font-size:10px}} .l{{font-size:16px}} .end{{text-anchor:end}}
{_rules(False)}
@media (prefers-color-scheme: dark) {{
{_rules(True)}
}}
</style>"""

#: Wheel and pinch zoom at the pointer, dragging pans, and a double click or 0 shows all again.  In
#: a page that shows the file as an image, no script runs, and the picture has its natural size.
SCRIPT = """<script><![CDATA[
(function () {
  var svg = document.documentElement;
  if (svg.localName !== "svg") return;
  var all = svg.getAttribute("viewBox").split(" ").map(Number), v = all.slice(), from = null;
  svg.setAttribute("width", "100%"); svg.setAttribute("height", "100%");
  svg.style.position = "fixed"; svg.style.cursor = "grab"; svg.style.touchAction = "none";
  function show() { svg.setAttribute("viewBox", v.join(" ")); }
  function at(x, y) {
    return new DOMPoint(x, y).matrixTransform(svg.getScreenCTM().inverse());
  }
  function zoom(f, x, y) {
    var p = at(x, y), w = Math.min(all[2] * 4, Math.max(60, v[2] * f));
    f = w / v[2];
    v = [p.x - (p.x - v[0]) * f, p.y - (p.y - v[1]) * f, w, v[3] * f];
    show();
  }
  svg.addEventListener("wheel", function (e) {
    e.preventDefault();
    zoom(Math.exp(Math.max(-60, Math.min(60, e.deltaY)) / 250), e.clientX, e.clientY);
  }, { passive: false });
  svg.addEventListener("pointerdown", function (e) {
    if (e.button) return;
    from = at(e.clientX, e.clientY); svg.style.cursor = "grabbing";
    svg.setPointerCapture(e.pointerId);
  });
  svg.addEventListener("pointermove", function (e) {
    if (!from) return;
    var p = at(e.clientX, e.clientY);
    v[0] += from.x - p.x; v[1] += from.y - p.y; show();
  });
  svg.addEventListener("pointerup", function () { from = null; svg.style.cursor = "grab"; });
  svg.addEventListener("dblclick", function () { v = all.slice(); show(); });
  window.addEventListener("keydown", function (e) {
    var x = innerWidth / 2, y = innerHeight / 2, step = v[2] / 10;
    if (e.key === "+" || e.key === "=") zoom(0.8, x, y);
    else if (e.key === "-") zoom(1.25, x, y);
    else if (e.key === "0") { v = all.slice(); show(); }
    else if (e.key === "ArrowLeft") { v[0] -= step; show(); }
    else if (e.key === "ArrowRight") { v[0] += step; show(); }
    else if (e.key === "ArrowUp") { v[1] -= step; show(); }
    else if (e.key === "ArrowDown") { v[1] += step; show(); }
    else return;
    e.preventDefault();
  });
})();
]]></script>"""


_WIDEST, LETTER, _BOLD, _PADDING = 40, 5.9, 6.6, 9.0
_NAME, _ROW, _SHAPE, _PILL_HEIGHT = 17.0, 16.0, 16.0, 34.0
_TITLE_HEIGHT, MARGIN, _INSET = 20.0, 20.0, 12.0

LINE = 'class="e"'


@dataclass
class Item:
    """A drawn element with a size: a box, a pill, a port, or an outline with its content.

    Attributes:
        width, height: its size in pixels.
        body: its lines of SVG, with the upper left corner as origin.
        reads: the values whose lines end at its upper side, each with the offset of its port from
            the centre, or None if the line may end anywhere.
        gives: the values whose lines begin at its lower side, with their offsets from the centre.
    """

    width: float
    height: float
    body: list[str]
    reads: dict[Value, float | None] = field(default_factory=dict)
    gives: dict[Value, float] = field(default_factory=dict)
    #: Whether arrows may end anywhere on the upper side.
    box: bool = True


@dataclass
class Port(Item):
    """The point at which a value enters or leaves an outline."""

    value: Any = None


def pill(name: str, type: TensorType) -> Item:
    """A pill for an input or output of the graph: its name and its type."""
    lines = [shortened(name), shape(type)]
    width = max(len(lines[0]) * _BOLD, len(lines[1]) * LETTER) + 3 * _PADDING
    body = [
        f'<rect width="{px(width)}" height="{px(_PILL_HEIGHT)}" rx="{px(_PILL_HEIGHT / 2)}" '
        'class="p"/>',
        text(width / 2, 14, lines[0], "t c w"),
        text(width / 2, 27, lines[1], "f c"),
    ]
    return Item(width, _PILL_HEIGHT, body)


def box(node: Node, told: str = "", heat: int | None = None) -> Item:
    """The box of a node: its name, a row for each operator that it computes, the output's shape.

    ``told`` is a text beside the name (its time), and ``heat`` is an index into :data:`HEAT`.
    """
    inner = inner_nodes(node) or (node,)
    name = shortened(node.name)
    rows = [shortened(f"{_label(node, each)}{each.op.name}{_detail(each)}") for each in inner]
    shapes = shortened(", ".join(shape(value.type) for value in node.outputs))
    head = len(name) * _BOLD + (len(told) * LETTER + 10 if told else 0)
    wide = max(head, *(len(row) * LETTER + 12 for row in rows), len(shapes) * LETTER)
    width = max(wide + 2 * _PADDING, 96.0)
    height = _NAME + _ROW * len(rows) + _SHAPE
    fill = "b" if heat is None else f"b h{heat}"
    drawn = [
        f'<rect width="{px(width)}" height="{px(height)}" rx="6" class="{fill}">'
        f"<title>{clean(description(node))}</title></rect>"
    ]
    if told:
        drawn.append(text(_PADDING, 12.5, name, "t w"))
        drawn.append(text(width - _PADDING, 12.5, told, "t end"))
    else:
        drawn.append(text(width / 2, 12.5, name, "t c w"))
    y = _NAME
    for each, row in zip(inner, rows, strict=True):
        kind = each.op.kind if each.op.kind in CLASSES else "other"
        title = "" if each is node else f"<title>{clean(description(each))}</title>"
        drawn.append(
            f'<rect x="5" y="{px(y)}" width="{px(width - 10)}" height="{px(_ROW - 2)}" rx="3" '
            f'class="{kind}">{title}</rect>'
        )
        drawn.append(text(width / 2, y + 10.5, row, f"{kind}-t c"))
        y += _ROW
    drawn.append(text(width / 2, y + 10, shapes, "f c s" if heat is None else "t c s"))
    reads: dict[Value, float | None] = dict.fromkeys(node.tensors)
    return Item(width, height, drawn, reads, dict.fromkeys(node.outputs, 0.0))


def _label(node: Node, inner: Node) -> str:
    """The part of the name of an operator with weights that differs from the name of its box."""
    if inner is node or len(inner.inputs) == len(inner.tensors):
        return ""
    path, inner_path = node.name.split("."), inner.name.split(".")
    common = next((i for i, (a, b) in enumerate(zip(path, inner_path, strict=False)) if a != b), 0)
    return f"{'.'.join(inner_path[common:])}: "


def _detail(node: Node) -> str:
    """The size of an operator's kernel or window, and its stride; "" if it has none."""
    if isinstance(node.op, Windowed):
        kernel = tuple(axis.kernel for axis in node.op.window().axes)
    elif (
        isinstance(node.op, Contraction) and len(node.inputs) > 1 and node.inputs[1].type.rank == 4
    ):
        kernel = node.inputs[1].shape[2:]
    else:
        return ""
    stride = getattr(node.op, "stride", (1, 1))
    strided = "" if stride == (1, 1) else f" /{_by(stride)}"
    return f" {'x'.join(map(str, kernel))}{strided}"


def _by(pair: tuple[int, ...]) -> str:
    return str(pair[0]) if len(set(pair)) == 1 else "x".join(map(str, pair))


def description(node: Node) -> str:
    """The tooltip of a node: its operator, its layer and its operands."""
    operands = ", ".join(f"{value.name}: {value.type}" for value in node.inputs)
    return f"{node.name} = {node.op}\nfrom {node.source}\nof {operands}"


def outline(content: Item, label: str, title: str, kind: str) -> Item:
    """A labelled frame around ``content``, to which the lines of its ports are extended.

    ``kind`` is "g" for a group that a caller named, and "r" for a region that contains regions.
    """
    width = max(content.width + 2 * _INSET, len(label) * _BOLD + 2 * _INSET)
    height = content.height + _TITLE_HEIGHT + _INSET / 2
    lines = [(x or 0.0, 0.0, _TITLE_HEIGHT) for x in content.reads.values()]
    lines += [(x, height - _INSET / 2, height) for x in content.gives.values()]
    body = [
        f'<rect width="{px(width)}" height="{px(height)}" rx="10" class="{kind}">'
        f"<title>{clean(title)}</title></rect>",
        *(f'<path d="M{px(width / 2 + x)},{px(y0)} V{px(y1)}" {LINE}/>' for x, y0, y1 in lines),
        *moved(content.body, (width - content.width) / 2, _TITLE_HEIGHT),
        text(_INSET, 14.5, label, "kt w"),
    ]
    return Item(width, height, body, content.reads, content.gives)


def frame(item: Item, kind: str, distance: float, title: str) -> str:
    return (
        f'<rect x="{px(-distance)}" y="{px(-distance)}" width="{px(item.width + 2 * distance)}" '
        f'height="{px(item.height + 2 * distance)}" rx="9" class="{kind}">'
        f"<title>{clean(title)}</title></rect>"
    )


def tag(name: str) -> str:
    """A small label above the left end of a frame."""
    return text(-4, -9, shortened(name, 24), "kt w s")


def moved(body: list[str], x: float, y: float) -> list[str]:
    return [f'<g transform="translate({px(x)},{px(y)})">', *body, "</g>"] if body else []


def text(x: float, y: float, words: str, kind: str) -> str:
    return f'<text x="{px(x)}" y="{px(y)}" class="{kind}">{clean(words)}</text>'


def shape(type: TensorType) -> str:
    shape = "x".join(map(str, type.shape)) or "scalar"
    return shape if type.dtype == "float32" else f"{type.dtype} {shape}"


def shortened(text: str, widest: int = _WIDEST) -> str:
    if len(text) <= widest:
        return text
    head = (widest - 1) // 3
    return f"{text[:head]}\u2026{text[len(text) - (widest - 1 - head) :]}"


def px(value: float) -> str:
    """A coordinate with one decimal, or as an integer where that is the same."""
    text = f"{value:.1f}"
    return "0" if text == "-0.0" else text.removesuffix(".0")


def clean(text: str) -> str:
    """Text escaped for XML; characters that XML cannot represent become U+FFFD."""
    return escape("".join(letter if _is_xml(letter) else "\ufffd" for letter in text))


def _is_xml(letter: str) -> bool:
    return (
        letter in "\t\n"
        or " " <= letter <= "\ud7ff"
        or "\ue000" <= letter <= "\ufffd"
        or (letter >= "\U00010000")
    )
