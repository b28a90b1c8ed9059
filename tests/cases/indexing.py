"""Cases of graph/operators/indexing.py: nothing is computed, so every bit must be kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from minidnn import layers as L
from minidnn.graph import operators as ops
from minidnn.graph.expression import argument
from minidnn.graph.operator import Operator
from minidnn.graph.trace import apply
from minidnn.layers.activations import OperatorLayer
from tests.cases.record import Case, Shape


def _moved(
    name: str, op: Operator, numpy: Callable[..., Any], *shapes: Shape, torch: Any = None
) -> Case:
    return Case(
        name=name,
        layer=lambda: OperatorLayer(op),
        torch=lambda: torch or (lambda x: _torch(numpy, x)),
        formula=numpy,
        shapes=tuple((shape,) for shape in shapes),
        ulps=0,
    )


def _torch(function: Callable[..., Any], x: Any) -> Any:
    """PyTorch has no negative steps and no lists of pads like these: NumPy on its tensor."""
    import torch

    return torch.from_numpy(np.ascontiguousarray(function(x.numpy())))


def _permuted(*dims: int) -> Callable[..., Any]:
    return lambda x: x.permute(dims)


class _At(L.Layer):
    """An operator at indices that the second input gives as floating-point numbers."""

    def __init__(self, op: Operator, dtype: str) -> None:
        self.op = op
        self.dtype = dtype

    def forward(self, x: Any, places: Any) -> Any:
        whole = apply(ops.Formula(argument(0), dtype=self.dtype), places)
        return apply(self.op, x, whole)


def _gather(axis: int, dtype: str, *shapes: tuple[Shape, Shape]) -> Case:
    def by_torch(x: Any, places: Any) -> Any:
        whole = places.long() % x.shape[axis]
        picked = x.index_select(axis, whole.flatten())
        at = axis % x.ndim
        return picked.reshape(*x.shape[:at], *places.shape, *x.shape[at + 1 :])

    return _at(
        f"gather-{axis}-{dtype}",
        *(ops.Gather(axis), dtype, by_torch),
        lambda x, places: np.take(x, places.astype(int), axis),
        *shapes,
    )


def _gather_in_batches(axis: int, *shapes: tuple[Shape, Shape]) -> Case:
    """Each of the first axis has indices of its own."""

    def by_torch(x: Any, places: Any) -> Any:
        import torch

        pairs = zip(x, places.long() % x.shape[axis], strict=True)
        one = [each.index_select(axis - 1, at.flatten()) for each, at in pairs]
        return torch.stack(one).reshape(*x.shape[:axis], *places.shape[1:], *x.shape[axis + 1 :])

    def by_numpy(x: np.ndarray, places: np.ndarray) -> np.ndarray:
        pairs = zip(x, places.astype(int), strict=True)
        return np.stack([np.take(each, at, axis - 1) for each, at in pairs])

    op = ops.Gather(axis, 1)
    return _at(f"gather-{axis}-in-batches", op, "int64", by_torch, by_numpy, *shapes)


def _scatter_add(
    size: int, axis: int, batch: int, dtype: str, *shapes: tuple[Shape, Shape]
) -> Case:
    """Sums are of small integers, which every dtype has all digits of."""

    def shape_of(x: Any, places: Any) -> tuple[int, ...]:
        return (*x.shape[:axis], size, *x.shape[axis + places.ndim - batch :])

    def by_torch(x: Any, places: Any) -> Any:
        import torch

        shape = shape_of(x, places)
        found = torch.zeros(shape, dtype=x.dtype)
        whole = places.long() % size
        if not batch:
            flat = x.reshape(*shape[:axis], -1, *shape[axis + 1 :])
            return found.index_add(axis, whole.flatten(), flat)
        flat = x.reshape(*shape[:axis], -1, *shape[axis + 1 :])
        parts = zip(found, whole.flatten(1), flat, strict=True)
        return torch.stack([zero.index_add(axis - 1, at, one) for zero, at, one in parts])

    def by_numpy(x: np.ndarray, places: np.ndarray) -> np.ndarray:
        shape = shape_of(x, places)
        flat = x.reshape(*shape[:axis], -1, *shape[axis + 1 :])
        whole = places.astype(int) % size
        chosen = np.arange(size)[:, None] == whole.reshape(*whole.shape[:batch], 1, -1)
        first = np.moveaxis(flat, axis, batch)  # the batch, what is added up, all else
        kept = first.shape[batch + 1 :]
        sums = chosen.astype(float) @ first.reshape(*first.shape[: batch + 1], -1)
        return np.moveaxis(sums.reshape(*sums.shape[: batch + 1], *kept), batch, axis)

    op = ops.ScatterAdd(size, axis, batch)
    return _at(f"scatter_add-{axis}-{batch}-{dtype}", op, dtype, by_torch, by_numpy, *shapes)


def _at(
    name: str,
    op: Operator,
    dtype: str,
    torch: Callable[..., Any],
    numpy: Callable[..., np.ndarray],
    *shapes: tuple[Shape, Shape],
) -> Case:
    return Case(
        name=name,
        layer=lambda: _At(op, dtype),
        torch=lambda: torch,
        formula=numpy,
        shapes=shapes,
        ulps=0,
        special=False,
        draw=lambda random, shape: random.integers(-3, 3, shape).astype(float),
    )


_PAD = ((0, 0), (1, 0), (2, 1), (1, 3))
CASES: tuple[Case, ...] = (
    _moved(
        "transpose",
        ops.Transpose((0, 2, 3, 1)),
        lambda x: x.transpose(0, 2, 3, 1),
        (2, 3, 5, 7),
        (1, 33, 20, 17),
        torch=_permuted(0, 2, 3, 1),
    ),
    _moved("transpose-batch", ops.Transpose((1, 0)), np.transpose, (3, 5), torch=_permuted(1, 0)),
    _moved(  # of rows so short that they are moved many at a time
        "transpose-thin",
        ops.Transpose((0, 2, 1)),
        lambda x: x.transpose(0, 2, 1),
        (2, 3, 4100),
        (1, 2, 4099),
        torch=_permuted(0, 2, 1),
    ),
    _moved(
        "transpose-shuffle",
        ops.Transpose((0, 2, 1, 3, 4)),
        lambda x: x.transpose(0, 2, 1, 3, 4),
        (2, 3, 4, 5, 7),
        torch=_permuted(0, 2, 1, 3, 4),
    ),
    _moved(
        "slice",
        ops.Slice((0, 1, 4, 1), (2, 2, 3, 3), (1, 1, -2, 2)),
        lambda x: x[:2, 1:3, 4::-2, 1:7:2],
        (2, 3, 5, 7),
    ),
    _moved(
        "slice-channels",
        ops.Slice((0, 1, 0), (1, 3, 2), (1, 1, 1)),
        lambda x: x[:, 1:4],
        (1, 5, 2),
    ),
    _moved(
        "expand",
        ops.Expand((2, 3, 4, 5)),
        lambda x: np.broadcast_to(x, (2, 3, 4, 5)),
        (2, 1, 4, 1),
        (3, 1, 5),
        torch=lambda x: x.expand(2, 3, 4, 5),
    ),
    *(
        _moved(
            f"pad-{mode}",
            ops.Pad(tuple(b for b, _ in _PAD), tuple(a for _, a in _PAD), mode),
            lambda x, mode=mode: np.pad(x, _PAD, mode),
            (2, 3, 5, 7),
        )
        for mode in ("constant", "edge", "reflect", "wrap")
    ),
    _moved(
        "pad-value",
        ops.Pad((0, 1), (0, 2), value=-1.5),
        lambda x: np.pad(x, ((0, 0), (1, 2)), constant_values=-1.5),
        (3, 5),
    ),
    _moved(
        "take",
        ops.Take((None, (2, 0, 2), None, (0, 0, 1, 1, 2, 2))),
        lambda x: x[:, [2, 0, 2]][..., [0, 0, 1, 1, 2, 2]],
        (2, 3, 5, 7),
    ),
    _moved(
        "take-outside",
        ops.Take((None, (-1, 0, -1, 1, -1)), 2.0),
        lambda x: (
            np.stack([x[:, 0] * 0 + 2, x[:, 0], x[:, 0] * 0 + 2, x[:, 1], x[:, 0] * 0 + 2], 1)
            if np.isfinite(x).all()
            else np.insert(x[:, :2], [0, 1, 2], 2.0, axis=1)
        ),
        (3, 2),
    ),
    _moved(
        "unfold",
        ops.Unfold2d((3, 2), (2, 1), (1, 2)),
        lambda x: np.stack(
            [np.stack([x[:, :, y : y + 3 : 2, z : z + 5] for z in (0, 2)], 2) for y in range(3)],
            2,
        ),
        (2, 3, 5, 7),
    ),
    _gather(1, "int64", ((2, 3, 5, 7), (2, 2))),
    _gather(-1, "int32", ((2, 5, 3), (4,)), ((1, 3), (1,))),
    _gather(1, "int32", ((2, 3, 19), (4,))),
    _gather_in_batches(2, ((2, 3, 5), (2, 4)), ((3, 1, 4, 17), (3, 2, 3))),
    _gather_in_batches(1, ((1, 3, 2), (1, 1)), ((2, 6), (2, 5))),
)

#: Of what training alone takes, and files of ONNX have not.
SUMS: tuple[Case, ...] = (
    _scatter_add(3, 0, 0, "int64", ((2, 3, 5), (2,)), ((7, 70), (7,)), ((4, 3, 2), (4, 3))),
    _scatter_add(5, 2, 1, "int32", ((2, 3, 4), (2, 4)), ((1, 1, 2, 3, 2), (1, 2, 3))),
    _scatter_add(4, 1, 1, "int64", ((3, 5, 9), (3, 5))),
)
