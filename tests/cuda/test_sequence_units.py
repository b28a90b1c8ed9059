"""Lone windows over planes, which read and write units of a row, in the emulator."""

from __future__ import annotations

from pathlib import Path

import pytest

from minidnn import layers as L
from minidnn.backends.cuda.sequence import mapping
from minidnn.backends.cuda.target import CudaTarget
from minidnn.fusion.plan import roundings
from minidnn.fusion.region import FusedSequence
from minidnn.graph.expression import maximum
from minidnn.graph.layout import CHANNELS_LAST, PLANAR
from minidnn.graph.types import rounded_to
from minidnn.layers.build import to_graph
from minidnn.passes.infrastructure import Context
from minidnn.passes.pipeline import optimize
from tests.cuda.cards import H200
from tests.cuda.sequences import Case, case_of, run_cases
from tests.cuda.test_sequence_kinds import numbers_for


class Residual(L.Layer):
    """What its layer gives, and what that reads."""

    def __init__(self, inner: L.Layer) -> None:
        self.inner = inner

    def forward(self, x):  # type: ignore[no-untyped-def]
        return self.inner(x) + x


WINDOWS = (
    (L.MaxPool2d(3, 1, 1),),
    (L.AvgPool2d(3, 1, 1),),
    (L.AvgPool2d(3, 1, 1, count_include_pad=False), L.BatchNorm2d(4), L.ReLU()),
    (L.MaxPool2d(5, 1, 2), L.BatchNorm2d(4), L.Sigmoid()),
    (L.AvgPool2d((1, 4), 1, 0),),
    (L.AvgPool2d((3, 1), (2, 1), (1, 0)),),
    (L.MaxPool2d((3, 5), 1, (1, 2), dilation=(2, 2)), L.ReLU6()),
    (Residual(L.MaxPool2d(3, 1, 1)), L.ReLU()),
)
SHAPES = ((2, 4, 9, 16), (1, 4, 8, 24), (1, 4, 6, 12), (1, 4, 5, 10))


@pytest.fixture(autouse=True)
def as_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planes of halves are taken as if they were too large for few threads' registers."""
    monkeypatch.setattr(mapping, "SMALL_PLANE", 0)


def region_of(layers: tuple[L.Layer, ...], shape: tuple[int, ...], dtype: str) -> FusedSequence:
    context = Context(CudaTarget(H200.device(dtype), dtype))
    graph = optimize(to_graph(L.Sequential(*layers), shape), context)
    (region,) = (node.op for node in graph.nodes if isinstance(node.op, FusedSequence))
    return region


def planar_case(region: FusedSequence, dtype: str, extra: int = 0) -> Case:
    operands = [rounded_to(dtype, array) for array in numbers_for(region.body)]
    return case_of(region, operands, PLANAR, extra=extra, suit=True)


@pytest.mark.race
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_lone_windows_read_and_write_units(dtype: str, tmp_path: Path) -> None:
    """Also where rows are units of four or of two numbers, in buffers that are wider."""
    cases = []
    for layers in WINDOWS:
        for extra, shape in zip((0, 1, 0, 1), SHAPES, strict=True):
            cases.append(planar_case(region_of(layers, shape, dtype), dtype, extra))
    run_cases(cases, tmp_path)


def test_the_widest_unit_is_moved_at_once() -> None:
    sizes = []
    for columns in (16, 12, 10, 9):
        region = region_of(WINDOWS[0], (2, 4, 9, columns), "float16")
        launch = planar_case(region, "float16").kernel.launch
        text = launch.source.text
        wide = [n for n in (8, 4) if f"[{n // 2}];" in text and f"[{n}] = " in text]
        sizes.append((wide, launch.shared_bytes > 0))
    assert sizes == [([8], False), ([4], False), ([], True), ([], True)]


def test_a_stored_unit_is_one_access_of_certainty() -> None:
    """Tensors are written by ``md_write``; buffers, which lie in shared memory, are not."""
    layers = (L.MaxPool2d(2), L.MaxPool2d(3, 2, 1))
    for layer, stores in ((layers[:1], 0), (layers, 1)):
        region = region_of(layer, (2, 64, 16, 16), "float16")
        operands = [rounded_to("float16", array) for array in numbers_for(region.body)]
        text = case_of(region, operands, CHANNELS_LAST, suit=True).kernel.launch.source.text
        assert "md_write(" in text
        assert ("md_store(" in text) == bool(stores)


def test_what_is_rounded_before_it_is_read() -> None:
    """Not what is only stored, nor what is only chosen among, nor what is chosen from that."""

    def found(*layers: L.Layer, dtype: str = "float16") -> list[bool]:
        plan, _ = region_of(layers, (1, 3, 9, 9), dtype).kernel
        operations = [o for step in plan.steps for o in step.segments[0]]
        dtypes = roundings(operations, plan.planes)
        return [dtypes[o.result] != "float32" for o in operations][-len(layers) :]

    assert found(L.BatchNorm2d(3), L.ReLU()) == [False, False]
    assert found(L.ReLU(), L.BatchNorm2d(3)) == [False, False]
    assert found(L.BatchNorm2d(3), L.ReLU(), L.Tanh()) == [True, False, False]
    several = found(L.MaxPool2d(3, 1, 1), L.Sigmoid(), L.ReLU6(), L.Tanh(), L.ReLU())
    assert several == [False, True, False, False, False]
    assert found(L.ReLU(), L.Sigmoid(), L.Tanh()) == [False, True, False]
    assert found(L.AvgPool2d(3, 1, 1), L.ReLU(), L.MaxPool2d(3, 1, 1)) == [True, False, False]
    assert found(L.BatchNorm2d(3), L.Sigmoid(), dtype="float32") == [False, False]
    # 0.1 is no number of float16, of which 0.5 is one.
    for least, rounded in ((0.1, True), (0.5, False)):
        clamp = L.Elementwise(lambda x, least=least: maximum(x, least))
        assert found(L.Sigmoid(), clamp, L.Tanh()) == [True, rounded, False]
        assert found(L.Sigmoid(), clamp) == [rounded, False]
