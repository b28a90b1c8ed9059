"""Contractions of bytes on blocks of channels, by tiles and by vectors, to the last bit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minidnn as md
from minidnn.backends.cpu import isa
from minidnn.backends.cpu.contraction.problem import problem_of
from minidnn.backends.cpu.contraction.vnni import VnniScheme, choose_vnni
from minidnn.backends.cpu.tensor import tensor_of
from minidnn.fusion.region import FusedContraction, parts_of
from minidnn.fusion.target import Target
from minidnn.graph import operators as ops
from minidnn.graph.evaluate import evaluate
from minidnn.graph.expression import argument, fma
from minidnn.graph.ir import Graph, Value
from minidnn.graph.layout import PLANAR, Layout, blocked
from minidnn.graph.quantization import Steps
from minidnn.graph.trace import apply, tracing
from minidnn.graph.types import TensorType
from tests.cpu.conftest import multiplying
from tests.cpu.warming import compile_together, kernels_of

pytestmark = pytest.mark.skipif(
    not isa.is_usable(isa.AVX512_VNNI), reason="this processor has no AVX-512 for bytes"
)
RESULT = Steps(0.5, 100, "uint8")
ROUNDED = (Steps(0.5, 0, "uint8"), Steps(0.5, 201, "uint8"), Steps(0.25, -128, "int8"))


@pytest.fixture(params=["tiles", "vectors"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """How the processor multiplies."""
    yield from multiplying(request.param, isa.AMX_INT8, monkeypatch)


@dataclass(frozen=True)
class Problem:
    """A convolution, or a linear layer where there is no kernel."""

    inputs: int
    outputs: int
    kernel: tuple[int, int] | None
    size: tuple[int, int] = (1, 1)
    stride: int = 1
    padding: int = 0
    dilation: int = 1
    groups: int = 1
    batch: int = 1
    dtype: str = "uint8"
    zero: int = 0
    bias: bool = False
    algorithm: str = "int8 dot product"

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.batch, self.inputs, *(self.size if self.kernel else ()))

    @property
    def depth(self) -> int:
        return self.inputs // self.groups * prod(self.kernel or ())

    def x(self) -> np.ndarray:
        bounds = np.iinfo(self.dtype)
        found = np.random.default_rng(1).integers(
            bounds.min, bounds.max, self.shape, np.int64, endpoint=True
        )
        # The largest sums have no room in 16 bits.
        found[:, : self.inputs // 2] = bounds.max
        return found.astype(self.dtype)

    def graph(self) -> Graph:
        """The contraction, whose sums are scaled and rounded to bytes."""
        shape = (self.outputs, self.inputs // self.groups, *(self.kernel or ()))
        random = np.random.default_rng(2)
        weight = random.integers(-128, 127, shape, np.int8, endpoint=True)
        weight[0] = 127
        known = [("w", weight)]
        if self.bias:
            known.append(("b", random.integers(-(10**6), 10**6, (self.outputs,)).astype(np.int32)))
        with tracing("whole") as trace:
            x = trace.input(TensorType(self.shape, self.dtype), "x")
            given = [
                trace.constant(object(), n, TensorType(a.shape, str(a.dtype)), partial(np.array, a))
                for n, a in known
            ]
            op: Any = ops.Linear(self.zero)
            if self.kernel:
                pad = (self.padding, self.padding)
                op = ops.Conv2d(
                    stride=(self.stride, self.stride),
                    padding=(pad, pad),
                    dilation=(self.dilation, self.dilation),
                    groups=self.groups,
                    zero=self.zero,
                )
            return trace.graph(self._results(trace, apply(op, x, *given)))

    def _results(self, trace: Any, sums: Value) -> list[Value]:
        rescale = ops.Formula(
            fma(argument(0), argument(1), argument(2)), 1, 2, title="Rescale", compute="float32"
        )
        random = np.random.default_rng(3)
        vectors = []
        for name, data in (
            ("scale", random.random(self.outputs) / self.depth / 32),
            ("shift", None),
        ):
            array = np.zeros(self.outputs) if data is None else data
            type = TensorType((self.outputs,))
            made = partial(np.array, array.astype(np.float32))
            vectors.append(trace.constant(object(), name, type, made))
        return [apply(RESULT.quantize(), apply(rescale, sums, *vectors))]


PROBLEMS = (
    Problem(64, 48, (1, 1), (9, 5), batch=2),
    Problem(40, 33, (1, 1), (7, 7), zero=11),
    Problem(130, 32, (1, 1), (15, 13), stride=2, zero=255),
    Problem(64, 64, (3, 3), (7, 9), padding=1, batch=3, zero=128),
    Problem(80, 40, (3, 3), (12, 11), stride=2, padding=1, dtype="int8", zero=-5),
    Problem(32, 16, (5, 2), (14, 13), stride=3, padding=2, dilation=2, zero=7),
    Problem(16, 64, (3, 3), (13, 17), padding=1, zero=3, bias=True),
    Problem(3, 20, (7, 7), (31, 33), stride=2, padding=3, zero=114, batch=4),
    Problem(2, 16, (3, 5), (12, 12), padding=2, dilation=2, dtype="int8", zero=9, batch=4),
    Problem(64, 96, (3, 3), (10, 9), padding=1, groups=2, zero=1),
    Problem(256, 16, (3, 1), (1, 1), padding=1, zero=77, batch=4),
    Problem(33, 17, (3, 3), (6, 40), padding=1, zero=200, bias=True),
    Problem(1100, 1000, (1, 1), (2, 3), batch=6, zero=8),
    Problem(70, 45, None, batch=5, zero=90),
    Problem(512, 1000, None, dtype="int8", zero=3, bias=True),
    Problem(24, 24, (3, 3), (9, 10), padding=1, groups=24, zero=120, algorithm="direct"),
    Problem(24, 48, (5, 5), (9, 7), 2, 2, groups=12, dtype="int8", zero=-9, algorithm="direct"),
    Problem(32, 32, (3, 3), (8, 8), padding=1, groups=4, zero=255, batch=2, algorithm="direct"),
)


@cache
def warmed(kind: str) -> None:
    sources = [each for problem in PROBLEMS for each in kernels_of(problem.graph(), isa.AVX512)]
    compile_together(sources, isa.with_int8(isa.AVX512))


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
@pytest.mark.together(2)
def test_sums(problem: Problem, kind: str, warm_cache: Path) -> None:
    """As they are defined, also in memory between guard pages and on several threads."""
    warmed(kind)
    graph, x = problem.graph(), problem.x()
    (wanted,) = evaluate(graph, [x])
    assert len(np.unique(wanted)) > 20
    one, three = (md.compile(graph, device="cpu", threads=n, guarded=True) for n in (1, 3))
    program: Any = one.program
    assert {program.details(n) for n in one.plan.graph.nodes} - {""} == {problem.algorithm}
    for exe in (one, three):
        np.testing.assert_array_equal(exe(x), wanted)


def test_rows_of_a_batch_share_weights() -> None:
    """No cache keeps those of large linear layers: they are read once."""
    assert scheme_of(Problem(25088, 64, None, batch=16), PLANAR, 2).blocks == 1


def test_no_thread_waits_for_images() -> None:
    """Images are computed together where weights are large, but not where threads would idle."""
    large, small = (Problem(n, n, (1, 1), (4, 4), batch=4) for n in (1152, 32))
    assert scheme_of(large, blocked(16), 2).images > 1
    for threads in (1, 2, 4):
        assert scheme_of(small, blocked(16), threads).tasks >= threads


@pytest.mark.parametrize("steps", ROUNDED, ids=str)
@pytest.mark.together
def test_sums_are_rounded_to_even_and_to_bounds(steps: Steps, warm_cache: Path) -> None:
    """Ties, what no byte has, and what is no number."""
    graph = rounded(steps)
    x = np.random.default_rng(0).integers(0, 255, (1, 16, 5, 7), np.uint8, endpoint=True)
    x[0, :, 0, 0] = 0
    (wanted,) = evaluate(graph, [x])
    bounds = np.iinfo(steps.dtype)
    assert {bounds.min, bounds.max} <= set(wanted.ravel()) and len(np.unique(wanted)) > 50
    exe = md.compile(graph, device="cpu", threads=1)
    np.testing.assert_array_equal(exe(x), wanted)


def rounded(steps: Steps) -> Graph:
    """The inputs as sums, each channel times another number, as bytes."""
    scales = np.array([0.25, -0.25, 0.125, 0.5, 1, 2**-6, 1e30, -1e30, np.inf, np.nan] + [0.25] * 6)
    shifts = np.array([0.25] * 2 + [0] * 9 + [-np.inf, np.nan, 1, -7, 0.125])
    with tracing("rounded") as trace:
        x = trace.input(TensorType((1, 16, 5, 7), "uint8"), "x")
        weight = partial(np.reshape, np.eye(16, dtype=np.int8), (16, 16, 1, 1))
        given = trace.constant(object(), "w", TensorType((16, 16, 1, 1), "int8"), weight)
        vectors = [
            trace.constant(
                object(), name, TensorType((16,)), partial(np.array, data.astype(np.float32))
            )
            for name, data in (("scale", scales), ("shift", shifts))
        ]
        rescale = fma(argument(0), argument(1), argument(2))
        sums = apply(ops.Conv2d(), x, given)
        numbers = apply(
            ops.Formula(rescale, 1, 2, title="Rescale", compute="float32"), sums, *vectors
        )
        return trace.graph([apply(steps.quantize(), numbers)])


def scheme_of(problem: Problem, layout: Layout, threads: int) -> VnniScheme:
    """What is chosen for values that lie so."""
    (node, *_) = problem.graph().nodes
    x, y = (tensor_of(value.type, layout) for value in (node.inputs[0], node.output))
    asked = problem_of(parts_of(node), problem.batch, x, (), y)
    return choose_vnni(asked, isa.with_int8(isa.AVX512), threads)


def test_prices_and_reports(warm_cache: Path) -> None:
    """A contraction of bytes is predicted to take less than one of floats, and reports say of what
    it is."""
    exe = md.compile(PROBLEMS[3].graph(), device="cpu", threads=1)
    (node,) = (n for n in exe.plan.graph.nodes if isinstance(n.op, FusedContraction))
    target = exe.plan.target
    assert target.compute_seconds(node) < 0.5 * Target.compute_seconds(target, node)
    assert "3x64x7x9 u8" in exe.explain()


def test_all_choices_give_the_same(warm_cache: Path, tmp_path: Path) -> None:
    """What measuring chooses; and a file has it."""
    problem = PROBLEMS[3]
    graph, x = problem.graph(), problem.x()
    exe = md.compile(graph, device="cpu", threads=1, tune=True)
    (wanted,) = evaluate(graph, [x])
    np.testing.assert_array_equal(exe(x), wanted)
    exe.save(tmp_path / "net.mdx")
    np.testing.assert_array_equal(md.load(tmp_path / "net.mdx")(x), wanted)
