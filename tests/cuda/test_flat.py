"""Sequences without windows, element after element: how threads share packs and vectors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from minidnn.backends.cuda.sequence.flat import choose_flat
from minidnn.backends.cuda.tensor import tensor_of
from minidnn.fusion.region import FusedSequence
from minidnn.fusion.sequence import Schedule
from minidnn.graph import operators as ops
from minidnn.graph.expression import argument, maximum
from minidnn.graph.layout import CHANNELS_LAST
from minidnn.graph.trace import apply, tracing
from minidnn.graph.types import TensorType, rounded_to
from tests.cuda.sequences import LAYOUTS, case_of, run_cases

SHAPES = [(2, 24, 7, 5), (3, 72, 13, 11), (1, 40, 17, 9), (2, 2056, 2, 2), (2, 27, 6, 5)]
SHAPES += [(4, 8, 33, 31), (2, 1152, 3, 3)]


def region_of(shape: tuple[int, ...], dtype: str, few: bool = False) -> FusedSequence:
    """What reads three vectors and numbers of planes, of two dtypes, or one vector alone."""
    x, y, p, q, *vectors = map(argument, range(7))
    body = maximum(x * vectors[0], p) * vectors[1] - y * q * vectors[2]
    op = ops.Formula(body, 4, 3, "Several", dtype, "float32")
    narrow, number = TensorType(shape, dtype), (*shape[:2], 1, 1)
    types = [narrow, narrow, TensorType(number, dtype), TensorType(number, "float32")]
    types += [TensorType(shape[1:2])] * 3
    if few:
        op = ops.Formula(argument(0) * argument(1), 1, 1, "Scaled", dtype, "float32")
        types = [narrow, types[-1]]
    with tracing("flat") as trace:
        inputs = [trace.input(type, f"x{i}") for i, type in enumerate(types)]
        made = apply(op, *inputs)
    return FusedSequence(trace.graph([made]), Schedule(shape[2], shape[3]))


def operands_of(region: FusedSequence) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    found: list[np.ndarray] = []
    for value in region.body.inputs:
        array = random.standard_normal(value.shape).astype(np.float32)
        array.flat[:: max(1, array.size // 3)] = (np.nan, np.inf, -np.inf, 0.0)[len(found) % 4]
        found.append(rounded_to(value.dtype, array))
    return found


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_numbers(dtype: str, tmp_path: Path) -> None:
    """In both layouts, dense and in slices."""
    cases = []
    for shape in SHAPES:
        region = region_of(shape, dtype)
        for layout in LAYOUTS:
            for extra in (0, 4):
                with np.errstate(all="ignore"):
                    cases.append(case_of(region, operands_of(region), layout, extra=extra))
    run_cases(cases, tmp_path)


def test_threads_have_packs_of_the_same_channels_where_there_are_many_vectors() -> None:
    def chosen(shape: tuple[int, ...], dtype: str = "bfloat16", few: bool = False):  # type: ignore[no-untyped-def]
        plan, binding = region_of(shape, dtype, few).kernel
        lie = [tensor_of(slot.value.type, CHANNELS_LAST) for slot in binding.slots]
        return choose_flat(plan, binding, lie)

    for shape in ((3, 72, 13, 11), (2, 1152, 3, 3)):
        flat = chosen(shape)
        assert flat.rounds > 1 and flat.threads * flat.pack % shape[1] == 0
    for shape in ((2, 2056, 2, 2), (2, 27, 6, 5)):
        flat = chosen(shape)
        assert flat.pack == (8 if shape[1] % 8 == 0 else 1)
    assert chosen((2, 2056, 2, 2)).rounds == 1
    assert chosen((3, 72, 13, 11), few=True).rounds == 1
    assert chosen((3, 72, 13, 11), "float32").rounds == 1
