"""Attention in one kernel, and its gradient in two, on tensor cores.

No scores pass through memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import e, log2, prod
from pathlib import Path

from ....fusion.attention import (
    AttentionGradientShape,
    AttentionShape,
    FeatureRows,
    FusedAttention,
    FusedAttentionGradient,
)
from ....graph.ir import Node
from ....graph.types import HALVES
from ..kernels import Launch
from ..task import InWorkspace, Pointer, Task, at_offset
from .fragments import kernel_of, unravel

_CHUNK = 8
"""Elements of 16 bytes, which are read and written at once."""
_MOST_FEATURES = 128
"""Of a head: of more, threads have no registers."""
_BLOCK = 64
_THREADS = 128


@dataclass(frozen=True)
class Passing:
    """How a block passes over queries or keys: in tiles of so many, with the registers that leave
    room for so many blocks beside each other, and with its own rows in them or read again."""

    tile: int
    beside: int
    again: bool = False


def passing_of(size: int) -> tuple[Passing, Passing]:
    """How the gradient's kernels do it, for heads of so many features: that for queries, and that
    for keys and values.  More would not fit the registers."""
    if size <= 64:
        return Passing(64, 3), Passing(32, 3)
    return Passing(32, 2), Passing(32, 2, again=True)


def why_not_attention(shape: AttentionShape, *others: FeatureRows) -> str | None:
    """Why no kernel computes attention, or its gradient; None if one does."""
    if shape.dtype not in HALVES:
        return f"it is in {shape.dtype}"
    if shape.size % _CHUNK or shape.size > _MOST_FEATURES:
        return (
            f"heads have {shape.size} features; valid are multiples of {_CHUNK} up to "
            f"{_MOST_FEATURES}"
        )
    if not shape.factor > 0.0:
        return f"scores are multiplied by {shape.factor}; valid are positive numbers"
    if 0 in (shape.queries, shape.keys, *shape.batch):
        return "there is nothing to look at"
    for lines in (shape.q, shape.k, shape.v, shape.y, *others):
        if not lines.is_aligned(_CHUNK):
            return "its rows do not begin at multiples of 16 bytes"
    return None


def print_attention(shape: AttentionShape, keeps_logs: bool) -> Launch:
    """The kernel; pointers are queries, keys, values, result and logarithms, or anything where
    these are not kept."""
    tile = 64
    parts = _steps(shape, {"q": shape.q, "k": shape.k, "v": shape.v, "y": shape.y})
    parts |= {"TILE": tile, "KEEPS_LOGS": int(keeps_logs), "LOG_SCALE": _number(shape.factor)}
    stages = 2 if shape.keys > tile else 1
    shared = (_BLOCK + stages * 2 * tile) * _pitch(shape)
    return _launch("attention.cu", shape, parts, shape.queries, shared)


def print_attention_gradient(shape: AttentionGradientShape) -> tuple[Launch, Launch]:
    """The kernel for queries, whose pointers are queries, keys, values, result, its gradient,
    logarithms, what is left for the next kernel (:func:`shares_bytes`), and the queries' gradient;
    and that for keys and values: queries, keys, values, the result's gradient, logarithms, what the
    other one left, and the gradients of keys and of values."""
    inner = shape.attention
    of_queries, of_keys = passing_of(inner.size)
    read = {"q": inner.q, "k": inner.k, "v": inner.v, "g": shape.g}
    parts = _steps(inner, {**read, "y": inner.y, "dq": shape.dq}) | _passes(of_queries)
    parts["FACTOR"] = _number(inner.factor)
    stages = 2 if inner.keys > of_queries.tile else 1
    shared = (3 * _BLOCK + stages * 2 * of_queries.tile) * _pitch(inner)
    first = _launch("attention_queries.cu", inner, parts, inner.queries, shared)
    parts = _steps(inner, {**read, "dk": shape.dk, "dv": shape.dv}) | _passes(of_keys)
    parts["FACTOR"] = _number(inner.factor)
    stages = 2 if inner.queries > of_keys.tile else 1
    shared = (2 * _BLOCK + stages * 2 * of_keys.tile) * _pitch(inner)
    shared += stages * 2 * of_keys.tile * 4
    return first, _launch("attention_keys.cu", inner, parts, inner.keys, shared)


def _passes(passing: Passing) -> dict[str, object]:
    return {"TILE": passing.tile, "BESIDE": passing.beside, "AGAIN": int(passing.again)}


def shares_bytes(shape: AttentionGradientShape) -> int:
    """What the first kernel of the gradient leaves for the second one."""
    return 4 * shape.attention.queries * prod(shape.attention.batch)


def _steps(shape: AttentionShape, lines: Mapping[str, FeatureRows]) -> dict[str, object]:
    """How everything lies that a kernel has pointers to."""
    parts: dict[str, object] = {f"STEP_{name.upper()}": each.rows for name, each in lines.items()}
    batches = {name: each.batch for name, each in lines.items()}
    parts["UNRAVEL"] = unravel("head", shape.batch, batches)
    return parts


def _launch(
    file: str, shape: AttentionShape, parts: Mapping[str, object], rows: int, shared_bytes: int
) -> Launch:
    """A kernel of which a block has some of so many rows of a head."""
    folder = Path(__file__)
    sizes = {
        "QUERIES": shape.queries,
        "KEYS": shape.keys,
        "SIZE": shape.size,
        "SCALE": _number(shape.factor * log2(e)),
    }
    shared = folder.with_name("attention_shared.cu").read_text().rstrip("\n")
    source = kernel_of(folder.with_name(file), shape.dtype, {"SHARED": shared, **parts, **sizes})
    blocks = -(-rows // _BLOCK) * prod(shape.batch)
    return Launch(source, (blocks, 1, 1), (_THREADS, 1, 1), shared_bytes)


def _pitch(shape: AttentionShape) -> int:
    """Bytes from one row in shared memory to the next."""
    depth = -(-shape.size // 16) * 16
    return (depth // _CHUNK | 1) * 16


def _number(x: float) -> str:
    return repr(float(x))


def attention_tasks(node: Node) -> Sequence[Task]:
    """The kernels of attention, or of its gradient, and what they read and write."""
    op = node.op
    assert isinstance(op, (FusedAttention, FusedAttentionGradient))
    given: list[Pointer] = [at_offset(node.inputs[i], view.offset) for i, view in op.given]
    if isinstance(op, FusedAttention):
        launch = print_attention(op.shape, keeps_logs=len(node.outputs) > 1)
        place, view = op.written(op.node.outputs[0])
        result = at_offset(node.outputs[place], view.offset)
        return (Task(node, launch, (*given, result, node.outputs[-1])),)
    of_queries, of_keys = print_attention_gradient(op.shape)
    size, shares = shares_bytes(op.shape), InWorkspace(0)
    q, k, v, y, logs, g = given
    dq, dk, dv = (at_offset(node.outputs[i], view.offset) for i, view in op.results)
    return (
        Task(node, of_queries, (q, k, v, y, g, logs, shares, dq), (), size),
        Task(node, of_keys, (q, k, v, g, logs, shares, dk, dv), (), size),
    )
