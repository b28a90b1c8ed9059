"""Attention in one kernel, and its gradient in two, on tensor cores.

Scores and softmax weights stay in registers: a block has some rows of queries, or of keys and
values, and loops over tiles of the others in shared memory.  Kernels of the gradient compute the
weights again from the logarithms of the rows' sums of exponentials.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import e, log2, prod

from ....fusion.attention import (
    AttentionGradientShape,
    AttentionShape,
    FeatureRows,
    FusedAttention,
    FusedAttentionGradient,
)
from ....graph.ir import Node
from ....graph.types import HALF_DTYPES
from ..kernels import Launch
from ..task import InWorkspace, Pointer, Task, at_offset
from .fragments import kernel_of, template, unravel

_CHUNK = 8
"""Elements in 16 bytes, the width of one memory access."""
_MOST_FEATURES = 128
"""Features of the largest head whose fragments and sums fit the registers."""
_BLOCK = 64
"""Rows of a head (queries, or keys) that a thread block computes: 16 for each of its warps."""
_THREADS = 128
"""Threads of a block: four warps."""


@dataclass(frozen=True)
class Passing:
    """How a block of a gradient's kernel loops over the rows that are not its own.

    Attributes:
        tile: rows in one step of the loop.
        beside: blocks that have to fit a multiprocessor, which bounds the registers of a thread.
        again: whether the block loads its own rows from shared memory in each step, where they do
            not fit its registers from one step to the next.
    """

    tile: int
    beside: int
    again: bool = False


def passing_of(size: int) -> tuple[Passing, Passing]:
    """The loops of the gradient's kernels for heads of ``size`` features: that of the kernel for
    queries, and that of the kernel for keys and values.  Larger tiles would not fit the registers.
    """
    if size <= 64:
        return Passing(64, 3), Passing(32, 3)
    return Passing(32, 2), Passing(32, 2, again=True)


def why_not_attention(shape: AttentionShape, *others: FeatureRows) -> str | None:
    """Why no kernel computes attention, or its gradient; None if one does.

    ``others`` are the views of the gradients that are read and written as well.
    """
    if shape.dtype not in HALF_DTYPES:
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
    """The kernel of attention.

    Its pointers are queries, keys, values, the result, and the logarithms of the rows' sums of
    exponentials, which it writes if ``keeps_logs``; else that pointer is not used.
    """
    tile = 64
    parameters = _steps(shape, {"q": shape.q, "k": shape.k, "v": shape.v, "y": shape.y})
    parameters |= {"TILE": tile, "KEEPS_LOGS": int(keeps_logs), "LOG_SCALE": _number(shape.factor)}
    stages = 2 if shape.keys > tile else 1
    shared = (_BLOCK + stages * 2 * tile) * _pitch(shape)
    return _launch("attention.cu", shape, parameters, shape.queries, shared)


def print_attention_gradient(shape: AttentionGradientShape) -> tuple[Launch, Launch]:
    """The two kernels of the gradient of attention, in the order in which they run.

    The first computes the gradient of the queries.  Its pointers are queries, keys, values, the
    result, the result's gradient, logarithms, shares (see :func:`shares_bytes`), which it writes,
    and the queries' gradient.  The second computes the gradients of keys and values.  Its pointers
    are queries, keys, values, the result's gradient, logarithms, shares, which it reads, and the
    gradients of keys and of values.
    """
    attention = shape.attention
    of_queries, of_keys = passing_of(attention.size)
    read = {"q": attention.q, "k": attention.k, "v": attention.v, "g": shape.g}
    parameters = _steps(attention, {**read, "y": attention.y, "dq": shape.dq}) | _passes(of_queries)
    parameters["FACTOR"] = _number(attention.factor)
    stages = 2 if attention.keys > of_queries.tile else 1
    shared = (3 * _BLOCK + stages * 2 * of_queries.tile) * _pitch(attention)
    first = _launch("attention_queries.cu", attention, parameters, attention.queries, shared)
    parameters = _steps(attention, {**read, "dk": shape.dk, "dv": shape.dv}) | _passes(of_keys)
    parameters["FACTOR"] = _number(attention.factor)
    stages = 2 if attention.queries > of_keys.tile else 1
    shared = (2 * _BLOCK + stages * 2 * of_keys.tile) * _pitch(attention)
    shared += stages * 2 * of_keys.tile * 4
    return first, _launch("attention_keys.cu", attention, parameters, attention.keys, shared)


def _passes(passing: Passing) -> dict[str, object]:
    """The template's parameters for the loop of a gradient's kernel."""
    return {"TILE": passing.tile, "BESIDE": passing.beside, "AGAIN": int(passing.again)}


def shares_bytes(shape: AttentionGradientShape) -> int:
    """Bytes of the shares that the gradient's first kernel leaves for the second one: for each
    query a float32, the dot product of the result's row and its gradient, which softmax subtracts
    from the gradients of that row's scores."""
    return 4 * shape.attention.queries * prod(shape.attention.batch)


def _steps(shape: AttentionShape, views: Mapping[str, FeatureRows]) -> dict[str, object]:
    """The template's parameters for the layout of each tensor: the stride of its rows in elements,
    and the code that moves the pointers to the block's head."""
    parameters: dict[str, object] = {
        f"STEP_{name.upper()}": view.rows for name, view in views.items()
    }
    batches = {name: view.batch for name, view in views.items()}
    parameters["UNRAVEL"] = unravel("head", shape.batch, batches)
    return parameters


def _launch(
    file: str, shape: AttentionShape, parameters: Mapping[str, object], rows: int, shared_bytes: int
) -> Launch:
    """The launch of a template's kernel, where each block computes ``_BLOCK`` of the ``rows`` of a
    head."""
    sizes = {
        "QUERIES": shape.queries,
        "KEYS": shape.keys,
        "SIZE": shape.size,
        "SCALE": _number(shape.factor * log2(e)),
    }
    # It comes first, as it has names of the others.
    shared = {"SHARED": template("attention_shared.cu")}
    source = kernel_of(file, shape.dtype, {**shared, **parameters, **sizes})
    blocks = -(-rows // _BLOCK) * prod(shape.batch)
    return Launch(source, (blocks, 1, 1), (_THREADS, 1, 1), shared_bytes)


def _pitch(shape: AttentionShape) -> int:
    """Bytes from one row in shared memory to the next: an odd number of 16-byte units, so that
    neighbouring rows begin in different banks."""
    depth = -(-shape.size // 16) * 16
    return (depth // _CHUNK | 1) * 16


def _number(x: float) -> str:
    """A float as a template takes it, without a suffix."""
    return repr(float(x))


def attention_tasks(node: Node) -> Sequence[Task]:
    """The launches that compute attention or its gradient, with their pointers."""
    op = node.op
    assert isinstance(op, (FusedAttention, FusedAttentionGradient))
    operands: list[Pointer] = [at_offset(node.inputs[i], view.offset) for i, view in op.given]
    if isinstance(op, FusedAttention):
        launch = print_attention(op.shape, keeps_logs=len(node.outputs) > 1)
        index, view = op.written(op.core.outputs[0])
        result = at_offset(node.outputs[index], view.offset)
        return (Task(node, launch, (*operands, result, node.outputs[-1])),)
    of_queries, of_keys = print_attention_gradient(op.shape)
    size, shares = shares_bytes(op.shape), InWorkspace(0)
    q, k, v, y, logs, g = operands
    dq, dk, dv = (at_offset(node.outputs[i], view.offset) for i, view in op.results)
    return (
        Task(node, of_queries, (q, k, v, y, g, logs, shares, dq), (), size),
        Task(node, of_keys, (q, k, v, g, logs, shares, dk, dv), (), size),
    )
