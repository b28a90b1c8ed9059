"""Kernels of attention and of its gradient, on tensor cores."""

from __future__ import annotations

from collections.abc import Mapping
from math import e, log2, prod
from pathlib import Path

from ....fusion.attention import AttentionGradientShape, AttentionShape, FeatureRows
from ..kernels import Launch
from ..product.batches import unravel
from ..product.fragments import HALVES, kernel_of

_CHUNK = 8
"""Elements of 16 bytes, which are read and written at once."""
_MOST_FEATURES = 128
"""Of a head: of more, threads have no registers."""
_BLOCK = 64
_THREADS = 128
_WIDE = 64
"""Features of a head beside which a tile of as many queries or keys fits registers."""


def why_not_attention(shape: AttentionShape, *others: FeatureRows) -> str | None:
    """Why no kernel computes attention, or its gradient; None if one does."""
    if shape.dtype not in HALVES:
        return f"it is in {shape.dtype}"
    if shape.size % _CHUNK or shape.size > _MOST_FEATURES:
        return (
            f"heads have {shape.size} features; valid are multiples of {_CHUNK} up to "
            f"{_MOST_FEATURES}"
        )
    if 0 in (shape.queries, shape.keys, *shape.batch):
        return "there is nothing to look at"
    for lines in (shape.q, shape.k, shape.v, shape.y, *others):
        if not lines.is_aligned(_CHUNK):
            return "its rows do not begin at multiples of 16 bytes"
    return None


def print_attention(shape: AttentionShape, keeps_logs: bool, tile: int = 64) -> Launch:
    """The kernel; pointers are queries, keys, values, result and logarithms, or anything where
    these are not kept."""
    parts = _steps(shape, {"q": shape.q, "k": shape.k, "v": shape.v, "y": shape.y})
    parts |= {"TILE": tile, "KEEPS_LOGS": int(keeps_logs)}
    stages = 2 if shape.keys > tile else 1
    shared = (_BLOCK + stages * 2 * tile) * _pitch(shape)
    return _launch("attention.cu", shape, parts, shape.queries, shared)


def print_attention_gradient(
    shape: AttentionGradientShape, tile: int | None = None
) -> tuple[Launch, Launch]:
    """The kernel for queries, whose pointers are queries, keys, values, result, its gradient,
    logarithms, what is left for the next kernel (:func:`shares_bytes`), and the queries' gradient;
    and that for keys and values: queries, keys, values, the result's gradient, logarithms, what the
    other one left, and the gradients of keys and of values."""
    inner = shape.attention
    if tile is None:
        tile = 64 if inner.size <= _WIDE else 32
    read = {"q": inner.q, "k": inner.k, "v": inner.v, "g": shape.g}
    parts = _steps(inner, {**read, "y": inner.y, "dq": shape.dq})
    parts |= {"TILE": tile, "FACTOR": _number(shape.factors[0])}
    stages = 2 if inner.keys > tile else 1
    shared = (3 * _BLOCK + stages * 2 * tile) * _pitch(inner)
    first = _launch("attention_queries.cu", inner, parts, inner.queries, shared)
    parts = _steps(inner, {**read, "dk": shape.dk, "dv": shape.dv})
    factors = {"FACTOR": _number(shape.factors[1]), "FACTOR_V": _number(shape.factors[2])}
    parts |= {"TILE": tile, **factors}
    stages = 2 if inner.queries > tile else 1
    shared = 2 * _BLOCK * _pitch(inner) + stages * (2 * tile * _pitch(inner) + 2 * tile * 4)
    return first, _launch("attention_keys.cu", inner, parts, inner.keys, shared)


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
    shared = folder.with_name("shared.cu").read_text().rstrip("\n")
    source = kernel_of(folder.with_name(file), shape.dtype, {"SHARED": shared, **parts, **sizes})
    blocks = -(-rows // _BLOCK) * prod(shape.batch)
    return Launch(source, (blocks, 1, 1), (_THREADS, 1, 1), shared_bytes)


def _pitch(shape: AttentionShape) -> int:
    """Bytes from one row in shared memory to the next."""
    depth = -(-shape.size // 16) * 16
    return (depth // _CHUNK | 1) * 16


def _number(x: float) -> str:
    return repr(float(x))
