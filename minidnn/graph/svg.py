"""The shapes of a picture of a graph: boxes, outlines, text, as lines of SVG."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from typing import Any

from minidnn.graph.ir import Node, Value
from minidnn.graph.operator import Contraction, Windowed
from minidnn.graph.types import TensorType

#: Fill and line of a box by operator class; of others; and of outlines with and without a
#: contraction inside.
COLOURS = {
    "contraction": ("#dbe7fb", "#3465b0"),
    "elementwise": ("#ddf2dc", "#3c8a3f"),
    "window": ("#ffe9cc", "#c77712"),
    "movement": ("#ececec", "#7a7a7a"),
    "reduction": ("#ecdff7", "#7d4aa8"),
}
OTHER = ("#f9dfe3", "#b3394c")
STACK, REGION, GROUP = ("#fffaf0", "#c77712"), ("#f3f7ff", "#3465b0"), ("#f7f7fb", "#5a5a8c")
EDGE, TEXT, FAINT, MARK = "#8a8f98", "#20242b", "#5c6470", "#e0115f"

_WIDEST, LETTER, _BOLD, _PADDING = 40, 6.4, 7.3, 9.0
_BOX_HEIGHT, _PILL_HEIGHT, _TITLE_HEIGHT, MARGIN, _INSET = 47.0, 34.0, 20.0, 20.0, 12.0


LINE = f'fill="none" stroke="{EDGE}" stroke-width="1.3"'


@dataclass
class Item:
    """Something with a place: a box, a pill, a port, or an outline with its content."""

    width: float
    height: float
    body: list[str]
    reads: dict[Value, float | None] = field(default_factory=dict)
    gives: dict[Value, float] = field(default_factory=dict)
    #: Whether arrows may end anywhere on the upper side.
    box: bool = True


@dataclass
class Port(Item):
    """Where a value enters or leaves an outline."""

    value: Any = None


def pill(name: str, type: TensorType) -> Item:
    lines = [shortened(name), shape(type)]
    width = _width(lines) + 3 * _PADDING
    body = [
        f'<rect width="{px(width)}" height="{px(_PILL_HEIGHT)}" rx="{px(_PILL_HEIGHT / 2)}" '
        f'fill="white" stroke="{TEXT}" stroke-width="1.2"/>',
        line(width / 2, 14, lines[0], TEXT, bold=True),
        line(width / 2, 27, lines[1], FAINT),
    ]
    return Item(width, _PILL_HEIGHT, body)


def box(node: Node) -> Item:
    constants = len(node.inputs) - len(node.tensors)
    counted = f" + {constants} constant{'s' * (constants > 1)}" if constants else ""
    lines = [
        shortened(node.name),
        shortened(f"{node.op.name}{_detail(node)}{counted}"),
        shortened(", ".join(shape(value.type) for value in node.outputs)),
    ]
    width = max(_width(lines) + 2 * _PADDING, 90)
    fill, stroke = COLOURS.get(node.op.kind, OTHER)
    body = [
        f'<rect width="{px(width)}" height="{px(_BOX_HEIGHT)}" rx="7" fill="{fill}" '
        f'stroke="{stroke}" stroke-width="1.2"><title>{clean(description(node))}</title></rect>',
        line(width / 2, 14.5, lines[0], TEXT, bold=True),
        line(width / 2, 27.5, lines[1], stroke),
        line(width / 2, 40.5, lines[2], FAINT),
    ]
    reads: dict[Value, float | None] = dict.fromkeys(node.tensors)
    return Item(width, _BOX_HEIGHT, body, reads, dict.fromkeys(node.outputs, 0.0))


def _width(lines: list[str]) -> float:
    """About what lines take, the first of which is bold."""
    return max(len(lines[0]) * _BOLD, max(map(len, lines)) * LETTER)


def _detail(node: Node) -> str:
    """The size of a kernel or window, and its stride."""
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
    operands = ", ".join(f"{value.name}: {value.type}" for value in node.inputs)
    return f"{node.name} = {node.op}\nfrom {node.source}\nof {operands}"


def outline(
    content: Item, label: str, title: str, colours: tuple[str, str], dashes: str = ""
) -> Item:
    """A frame around ``content``, to which the lines of its ports go on, with a label."""
    fill, stroke = colours
    width = max(content.width + 2 * _INSET, len(label) * _BOLD + 2 * _INSET)
    height = content.height + _TITLE_HEIGHT + _INSET / 2
    lines = [(x or 0.0, 0.0, _TITLE_HEIGHT) for x in content.reads.values()]
    lines += [(x, height - _INSET / 2, height) for x in content.gives.values()]
    body = [
        f'<rect width="{px(width)}" height="{px(height)}" rx="10" fill="{fill}" '
        f'stroke="{stroke}" stroke-width="1.6"{dashes}><title>{clean(title)}</title></rect>',
        *(f'<path d="M{px(width / 2 + x)},{px(y0)} V{px(y1)}" {LINE}/>' for x, y0, y1 in lines),
        *moved(content.body, (width - content.width) / 2, _TITLE_HEIGHT),
        f'<text x="{px(_INSET)}" y="14.5" fill="{stroke}" font-weight="bold" stroke="{fill}" '
        f'stroke-width="5" paint-order="stroke">{clean(label)}</text>',
    ]
    return Item(width, height, body, content.reads, content.gives)


def frame(item: Item, colour: str, distance: float, title: str) -> str:
    return (
        f'<rect x="{px(-distance)}" y="{px(-distance)}" width="{px(item.width + 2 * distance)}" '
        f'height="{px(item.height + 2 * distance)}" rx="10" fill="none" stroke="{colour}" '
        f'stroke-width="2.5"><title>{clean(title)}</title></rect>'
    )


def tag(name: str, colour: str) -> str:
    """A small label above the left end of a frame."""
    return (
        f'<text x="-4" y="-9" font-size="9" font-weight="bold" fill="{colour}" stroke="white" '
        f'stroke-width="3" paint-order="stroke">{clean(shortened(name, 24))}</text>'
    )


def moved(body: list[str], x: float, y: float) -> list[str]:
    return [f'<g transform="translate({px(x)},{px(y)})">', *body, "</g>"] if body else []


def line(x: float, y: float, text: str, colour: str, bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return (
        f'<text x="{px(x)}" y="{px(y)}" text-anchor="middle" fill="{colour}"{weight}>'
        f"{clean(text)}</text>"
    )


def shape(type: TensorType) -> str:
    shape = "x".join(map(str, type.shape)) or "scalar"
    return shape if type.dtype == "float32" else f"{type.dtype} {shape}"


def shortened(text: str, widest: int = _WIDEST) -> str:
    if len(text) <= widest:
        return text
    head = (widest - 1) // 3
    return f"{text[:head]}\u2026{text[len(text) - (widest - 1 - head) :]}"


def px(value: float) -> str:
    """A coordinate with one decimal, without a needless one."""
    text = f"{value:.1f}"
    return "0" if text == "-0.0" else text.removesuffix(".0")


def clean(text: str) -> str:
    """Text as XML has it; what XML cannot hold becomes a replacement character."""
    return escape("".join(letter if _is_xml(letter) else "\ufffd" for letter in text))


def _is_xml(letter: str) -> bool:
    return (
        letter in "\t\n"
        or " " <= letter <= "\ud7ff"
        or "\ue000" <= letter <= "\ufffd"
        or (letter >= "\U00010000")
    )
