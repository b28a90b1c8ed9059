"""Contractions in bfloat16 by bfloat16 dot product, of tiles and of vectors, beside float64."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from minidnn import models
from minidnn.backends.cpu import isa
from minidnn.executable import Executable
from minidnn.fusion.region import FusedContraction
from minidnn.graph.ir import Graph
from minidnn.graph.types import rounded_to
from minidnn.layers.build import to_graph
from tests.cpu.warming import warm

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(
    isa.why_no_bfloat16(isa.AVX512) is not None, reason=str(isa.why_no_bfloat16(isa.AVX512))
)
THREADS = (1, 3)


@dataclass(frozen=True)
class Problem:
    """A convolution, perhaps with something absorbed before or after it."""

    inputs: int
    outputs: int
    kernel: tuple[int, int]
    size: tuple[int, int]
    stride: int = 1
    padding: int = 0
    dilation: int = 1
    groups: int = 1
    batch: int = 1
    before: bool = False

    def layer(self) -> L.Conv2d:
        made = L.Conv2d(
            self.inputs,
            self.outputs,
            self.kernel,
            stride=self.stride,
            padding=self.padding,
            dilation=self.dilation,
            groups=self.groups,
        )
        random = np.random.default_rng(1)
        state = {
            name: rounded_to("bfloat16", random.standard_normal(array.shape).astype(np.float32))
            for name, array in made.state_dict().items()
        }
        made.load_state_dict(state)
        return made

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.batch, self.inputs, *self.size)

    def x(self) -> np.ndarray:
        given = np.random.default_rng(2).standard_normal(self.shape).astype(np.float32)
        return rounded_to("bfloat16", given)

    def expected(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The result in float64, and the sum of the magnitudes of its terms."""
        state = self.layer().state_dict()
        given = torch.from_numpy(x).double()
        if self.before:
            given = given.relu()
        weight, bias = (torch.from_numpy(state[n]).double() for n in ("weight", "bias"))
        rest = (self.stride, self.padding, self.dilation, self.groups)
        found = torch.nn.functional.conv2d(given, weight, bias, *rest)
        size = torch.nn.functional.conv2d(given.abs(), weight.abs(), bias.abs(), *rest)
        return found.numpy(), size.numpy()


PROBLEMS = (
    Problem(64, 48, (1, 1), (9, 5), batch=2),
    Problem(48, 33, (1, 1), (7, 7), before=True),
    Problem(64, 32, (1, 1), (15, 13), stride=2),
    Problem(64, 64, (3, 3), (7, 9), padding=1, batch=3),
    Problem(80, 40, (3, 3), (12, 11), stride=2, padding=1),
    Problem(32, 16, (5, 2), (14, 13), stride=3, padding=2, dilation=2),
    Problem(16, 64, (3, 3), (13, 17), padding=1),
    Problem(3, 20, (7, 7), (31, 33), stride=2, padding=3),
    Problem(1, 16, (3, 5), (12, 12), padding=2, dilation=2),
    Problem(64, 96, (3, 3), (10, 9), padding=1, groups=2),
    Problem(256, 16, (3, 1), (1, 1), padding=1),
    Problem(33, 17, (3, 3), (6, 40), padding=1),
    Problem(32, 32, (3, 3), (9, 11), padding=1, groups=4, batch=2),
    Problem(96, 48, (3, 3), (8, 7), stride=2, padding=1, groups=24),
    Problem(64, 64, (1, 1), (6, 7), groups=4),
    Problem(64, 32, (1, 3), (1, 900), stride=2, padding=1),
    Problem(3, 24, (3, 3), (40, 70), padding=1),
    Problem(2, 16, (4, 4), (17, 19), stride=4),
    Problem(512, 160, (3, 3), (7, 7), padding=1, batch=6),
    Problem(3, 32, (1, 1), (32, 32), stride=4, batch=2),
    Problem(4, 24, (1, 1), (1, 1), padding=1, batch=8),
)


@cache
def graph_of(problem: Problem) -> Graph:
    conv = problem.layer()
    return to_graph(md.Sequential(L.ReLU(), conv) if problem.before else conv, problem.shape)


@cache
def warmed(kind: str) -> None:
    graphs = [(graph_of(problem), "model") for problem in PROBLEMS]
    warm(graphs, isa.AVX512, precision="bfloat16", threads=THREADS)


def compiled(problem: Problem, threads: int) -> Executable:
    options: dict[str, Any] = {"isa": "avx512", "threads": threads, "guarded": True}
    return md.compile(graph_of(problem), device="cpu", precision="bfloat16", **options)


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_sums(problem: Problem, kind: str) -> None:
    """Within one rounding of the result and float32's of the sum; NaN and infinity reach what reads
    them and nothing else; and the same bits on any number of threads."""
    warmed(kind)
    x = problem.x()
    one, three = (compiled(problem, threads) for threads in THREADS)
    program: Any = one.program
    algorithms = {program.details(node) for node in one.plan.graph.nodes} - {""}
    assert len(algorithms) == 1 and algorithms <= {"bfloat16 dot product", "direct"}
    actual = one(x)
    expected, size = problem.expected(x)
    allowed = np.abs(expected) * 2.0**-8 + size * 2.0**-20
    assert (np.abs(actual - expected) <= allowed).all()
    np.testing.assert_array_equal(actual, three(x))
    x[0, 0, 0, 0], x[-1, -1, -1, -1] = np.inf, np.nan
    expected, _ = problem.expected(x)
    actual = one(x)
    np.testing.assert_array_equal(np.isfinite(actual), np.isfinite(expected))
    np.testing.assert_array_equal(np.isnan(actual), np.isnan(expected))
    np.testing.assert_array_equal(actual, three(x))


def test_what_comes_before_makes_nothing_of_channels_that_fill_up(kind: str) -> None:
    """Their zeros would become infinities, and those times weights of zero NaN."""
    x = md.Input((33, 4, 9))
    net = md.Model(x, L.Conv2d(33, 24, 1)(1.0 / x))
    given = np.random.default_rng(3).uniform(0.5, 2.0, (2, 33, 4, 9)).astype(np.float32)
    exe = md.compile(net, given.shape, device="cpu", precision="bfloat16", isa="avx512")
    assert any(isinstance(node.op, FusedContraction) for node in exe.plan.graph.nodes)
    right = md.compile(net, given.shape, device="reference")(given)
    np.testing.assert_allclose(exe(given), right, 0, 2.0**-5)


def test_what_fills_up_blocks_of_channels_may_be_anything(kind: str) -> None:
    """Groups that end within a block write no more: NaN there would be NaN, times weights of 0."""
    net = L.Sequential(L.Conv2d(64, 56, 1, groups=2), L.Conv2d(56, 16, 3, padding=1))
    x = np.random.default_rng(4).standard_normal((2, 64, 6, 5)).astype(np.float32)
    options: dict[str, Any] = {"isa": "avx512", "guarded": True}
    found = md.compile(net, x.shape, device="cpu", precision="bfloat16", **options)(x)
    right = md.compile(net, x.shape, device="reference")(x)
    np.testing.assert_allclose(found, right, 0, 2.0**-5)


@pytest.mark.parametrize(
    ("name", "size"),
    [("squeezenet1_1", 64), pytest.param("resnet18", 96, marks=pytest.mark.full)],
)
def test_errors_of_networks_are_those_of_pytorch(name: str, size: int) -> None:
    """Both beside float32, of all numbers together."""
    vision = pytest.importorskip("tests.oracles.torchvision_models").models
    net = getattr(models, name)(num_classes=50)
    module = getattr(vision, name)(num_classes=50).eval()
    module.load_state_dict({n: torch.from_numpy(a) for n, a in net.state_dict().items()})
    x = np.random.default_rng(0).standard_normal((1, 3, size, size)).astype(np.float32)
    with torch.no_grad():
        full = module(torch.from_numpy(x)).numpy()
        theirs = module.bfloat16()(torch.from_numpy(x).bfloat16()).float().numpy()
    ours = md.compile(net, x.shape, device="cpu", precision="bfloat16")(x)
    assert 0 < np.linalg.norm(ours - full) <= np.linalg.norm(theirs - full)
