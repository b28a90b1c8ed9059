"""Kernels of planes of any size: case records between guard pages, and one text for all sizes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import minidnn as md
import models
from minidnn import compiler
from minidnn import layers as L
from minidnn.backends.codegen.kernel import KernelSource
from minidnn.backends.cpu.backend import CpuBackend
from minidnn.backends.cpu.contraction import numbers
from minidnn.backends.cpu.contraction.numbers import Numbers
from minidnn.backends.cpu.execution.bind import Task
from minidnn.backends.cpu.isa import (
    AVX512,
    BFLOAT16_ISAS,
    INT8_ISAS,
    Isa,
    best_isa,
    bfloat16_isa,
    why_no_bfloat16,
)
from minidnn.backends.cpu.lower import lower_plan
from minidnn.errors import GraphError
from minidnn.executable import Executable
from minidnn.graph.ir import Graph
from minidnn.layers.build import to_graph
from minidnn.passes.infrastructure import Context
from minidnn.passes.pipeline import optimize
from minidnn.runtime.plan import make_plan
from tests import cases
from tests.cases import Case, check
from tests.cases.record import Shape
from tests.cuda.precisions import EPSILON, assert_near, rounded
from tests.dynamic.test_planes import quantized

from .warming import compile_together, texts_of

#: Those that have kernels of their own for any size; those that need no more than one are few.
OWN = (*cases.contraction.CASES, *cases.movement.CASES, *cases.pooling.CASES)
SHOWN = OWN[::7]

NO_BFLOAT16 = pytest.mark.skipif(
    why_no_bfloat16(AVX512) is not None, reason=str(why_no_bfloat16(AVX512))
)


def kernels_of(graph: Graph, isa: Isa, precision: str = "float32") -> list[KernelSource]:
    options = {"isa": isa.name, "threads": 2, "any_size": True}
    context = Context(CpuBackend().target(precision, options), "contractions")
    plan = make_plan(optimize(graph, context), context)
    isa = isa if precision == "float32" else bfloat16_isa(isa)
    return texts_of(lower_plan(plan, isa, 2, any_size=True))


def lowered(network: Any, size: tuple[int, int], isa: Isa, precision: str) -> list[Any]:
    """Of each kernel its name, what a run of it takes, and the numbers that it reads."""
    options = {"isa": isa.extends, "threads": 2, "any_size": True}
    context = Context(CpuBackend().target(precision, options), "contractions")
    plan = make_plan(optimize(compiler.graph_of(network, (1, 3, *size)), context), context)
    return [
        (task.source.name, task.tasks, task.grain, task.scratch_bytes, numbers_of(task))
        for task in lower_plan(plan, isa, 2, any_size=True)
        if isinstance(task.source, KernelSource)
    ]


def numbers_of(task: Task) -> list[int]:
    packs = [p for p in task.pointers if isinstance(getattr(p, "__self__", None), Numbers)]
    return [int(n) for pack in packs for n in cast(Any, pack)().view(np.int32)]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("kind", "isa"),
    [
        *(pytest.param("bfloat16", isa, marks=NO_BFLOAT16) for isa in BFLOAT16_ISAS["avx512"]),
        *(("bytes", isa) for isa in INT8_ISAS["avx512"]),
    ],
    ids=lambda each: each.name if isinstance(each, Isa) else each,
)
def test_what_was_printed_for_other_sizes_is_what_would_be(
    kind: str, isa: Isa, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planes that fill blocks and others, of one row, one column and one pixel."""
    is_whole = kind == "bytes"
    network: Any = quantized(tmp_path / "net.onnx") if is_whole else pictures()
    precision = "float32" if is_whole else "bfloat16"
    sizes = [(90, 90), (57, 41), (33, 90), (9, 64), (2, 90), (10, 11), (3, 3), (90, 5)]
    known = [lowered(network, size, isa, precision) for size in sizes]
    assert sum(len(names) > 0 and bool(names[-1]) for names in known[0]) >= 5
    for size, before in zip(sizes, known, strict=True):
        monkeypatch.setattr(numbers, "_texts", {})
        assert lowered(network, size, isa, precision) == before, size


class Residual(L.Layer):
    """A convolution, and plus what it reads."""

    def __init__(self, channels: int, kernel: int) -> None:
        super().__init__()
        self.convolution = L.Conv2d(channels, channels, kernel, padding=kernel // 2)

    def forward(self, x: Any) -> Any:
        return self.convolution(x) + x


def pictures() -> L.Sequential:
    """Contractions of pairs: few channels, whole blocks, strides, padding, groups, and others that
    read further tensors."""
    return md.Sequential(
        Residual(3, 3),
        L.Conv2d(3, 20, 3, stride=2, padding=1),
        L.ReLU(),
        L.Conv2d(20, 32, 1),
        Residual(32, 1),
        L.Conv2d(32, 64, 1, stride=2),
        Residual(64, 3),
        L.Conv2d(64, 64, 3, padding=(1, 2), groups=4),
        L.Conv2d(64, 48, 5, dilation=2, padding=(4, 3)),
        L.Conv2d(48, 40, 3, stride=4, padding=1),
    )


@cache
def graph_of(case: Case, shapes: tuple[Shape, ...]) -> Graph:
    return case.graph(shapes)


@cache
def warm(tested: tuple[Case, ...], isa: Isa, precision: str = "float32") -> None:
    graphs = [graph_of(case, shapes) for case in tested for shapes in case.shapes]
    compile_together([each for graph in graphs for each in kernels_of(graph, isa, precision)], isa)


@cache
def compiled(graph: Graph, isa_name: str, precision: str = "float32") -> Executable:
    options: dict[str, Any] = {"isa": isa_name, "threads": 2, "guarded": True, "any_size": True}
    options |= {"precision": precision}
    return md.compile(graph, device="cpu", strategy="contractions", **options)


def check_case(case: Case, isa: Isa) -> None:
    def run(graph: Graph, inputs: Sequence[np.ndarray], dtype: str) -> Sequence[np.ndarray]:
        result = compiled(graph_of(case, tuple(x.shape for x in inputs)), isa.name)(*inputs)
        return result if isinstance(result, tuple) else (result,)

    check(case, "float32", run, by_torch=False)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("case", SHOWN, ids=str)
def test_cases(case: Case, own_cache: None) -> None:
    warm(SHOWN, best_isa())
    check_case(case, best_isa())


def check_in_bfloat16(case: Case) -> None:
    for shapes in case.shapes:
        exe = compiled(graph_of(case, shapes), AVX512.name, "bfloat16")
        for special in (False, True) if case.special else (False,):
            given = rounded(case.inputs(shapes, "float32", special=special), "bfloat16")
            actual = np.asarray(exe(*given))
            what = f"{case}{' special' if special else ''}"
            assert_near(case, "bfloat16", EPSILON["bfloat16"], given, actual, what)


@NO_BFLOAT16
@pytest.mark.parametrize("case", SHOWN[::3], ids=str)
def test_cases_in_bfloat16(case: Case, own_cache: None) -> None:
    warm(SHOWN[::3], AVX512, "bfloat16")
    check_in_bfloat16(case)


@NO_BFLOAT16
@pytest.mark.full
@pytest.mark.parametrize("case", OWN, ids=str)
def test_all_own_cases_in_bfloat16(case: Case, own_cache: None) -> None:
    warm(OWN, AVX512, "bfloat16")
    check_in_bfloat16(case)


@pytest.mark.full
@pytest.mark.parametrize("case", cases.CASES, ids=str)
def test_all_cases(case: Case, isa: Isa, own_cache: None) -> None:
    warm(cases.CASES, isa)
    check_case(case, isa)


@pytest.mark.parametrize("precision", ["float32", pytest.param("bfloat16", marks=NO_BFLOAT16)])
@pytest.mark.parametrize(
    "name", ["squeezenet1_1", pytest.param("densenet121", marks=pytest.mark.full)]
)
def test_kernels_of_networks_are_the_same_for_all_sizes(name: str, precision: str) -> None:
    """Of planes that end in several pixels: one pixel lies in memory as a vector does."""
    net = getattr(models, name)()

    def names(batch: int, rows: int, columns: int) -> set[str]:
        sources = kernels_of(to_graph(net, (batch, 3, rows, columns)), best_isa(), precision)
        return {source.name for source in sources}

    known = names(1, 512, 512)
    for size in [(1, 64, 64), (3, 224, 193), (2, 97, 640)]:
        assert names(*size) <= known, size


def test_bad_options() -> None:
    with pytest.raises(GraphError, match="any_size=1; valid are True and False"):
        md.compile(md.layers.ReLU(), (1, 2), device="cpu", any_size=1)
