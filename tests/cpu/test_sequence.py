"""Printed sequences, compiled and run, give the reference's results: random graphs, and chains."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import minidnn as md
from minidnn import layers as L
from minidnn.backends.cpu.backend import CpuBackend, CpuProgram
from minidnn.backends.cpu.isa import ISAS, Isa
from minidnn.backends.cpu.lower import lower_plan
from minidnn.backends.cpu.sequences.sequence import STREAMED_BYTES
from minidnn.backends.cpu.target import CpuTarget, device_for
from minidnn.fusion.region import FusedSequence
from minidnn.fusion.sequence import Schedule
from minidnn.graph.evaluate import evaluate
from minidnn.graph.ir import Graph
from minidnn.graph.operators import AvgPool2d, MaxPool2d, Mul, ReLU, SiLU
from minidnn.graph.trace import apply, tracing
from minidnn.graph.types import TensorType
from minidnn.layers.build import to_graph
from minidnn.passes.infrastructure import Context
from minidnn.passes.pipeline import optimize
from minidnn.runtime.plan import Plan, make_plan
from tests.fusion.graphs import graphs, inputs_for
from tests.sampling import IS_FULL, each_on_one, on

from .warming import compile_together, texts_of, warm

THREADS = 2


@dataclass
class Case:
    """A graph, its plan, and inputs."""

    graph: Graph
    plan: Plan
    seed: int
    special: bool


def planned(graph: Graph, isa: Isa, strategy: str = "model") -> Plan:
    context = Context(CpuTarget(device_for(isa, THREADS), isa.lanes), strategy)  # type: ignore[arg-type]
    return make_plan(optimize(graph, context), context)


def same(a: np.ndarray, b: np.ndarray, exact: bool = True) -> bool:
    """Equal bits, except that any NaN equals any other, and that ReLU keeps minus zero where NumPy
    does not; near, if the exponential function, which NumPy rounds otherwise, is used."""
    if not exact:
        return a.shape == b.shape and np.allclose(a, b, 1e-5, 1e-5, equal_nan=True)
    nan = np.isnan(a) & np.isnan(b)
    return a.shape == b.shape and bool((nan | (a == b)).all())


def check(cases: Sequence[Case], isa: Isa) -> None:
    """Compiles the kernels of all cases together, and compares every case with the reference."""
    # At once, so that they are few files; then each program finds its kernels in the cache.
    compile_together([t for c in cases for t in texts_of(lower_plan(c.plan, isa, 2))], isa)
    options = {"isa": isa.name, "threads": THREADS, "guarded": True}
    for case in cases:
        program = CpuBackend().compile(case.plan, "float32", options)
        inputs = inputs_for(case.graph, case.seed, case.special)
        outputs = [np.full(v.shape, np.nan, np.float32) for v in case.graph.outputs]
        program.run(inputs, outputs)
        exact = not any(isinstance(node.op, SiLU) for node in case.graph.nodes)
        for got, expected in zip(outputs, evaluate(case.plan.graph, inputs), strict=True):
            if not same(got, expected, exact):
                where = np.argwhere(~((got == expected) | (np.isnan(got) & np.isnan(expected))))
                schedules = [str(getattr(n.op, "schedule", n.op)) for n in case.plan.graph.nodes]
                raise AssertionError(
                    f"{len(where)} of {got.size} differ, at {where[:3]}: {schedules}\n{case.graph}"
                )


def reschedule(plan: Plan, data: st.DataObject) -> None:
    """Gives the sequences of a plan any schedule that suits them."""
    for node in plan.graph.nodes:
        if not isinstance(node.op, FusedSequence):
            continue
        kernel, _ = node.op.kernel
        rows, columns = kernel.anchor
        whole = any(e.scale == 0 for p in kernel.planes for e in p.owned or ())
        schedule = Schedule(
            rows if whole else data.draw(st.integers(1, rows)),
            columns if whole else data.draw(st.integers(1, columns)),
            1 if whole else data.draw(st.integers(1, 5)),
            True,
            data.draw(st.booleans()),
        )
        give(node.op, schedule)


def give(region: FusedSequence, schedule: Schedule) -> None:
    """Gives a sequence a schedule."""
    object.__setattr__(region, "schedule", schedule)
    region.__dict__.pop("kernel", None)


@cache  # a test that asks for its kernels first is run twice
def random_cases(isa: Isa, count: int, any_schedule: bool) -> list[Case]:
    found: list[Case] = []

    @given(
        graph=graphs(3, 16, convolutions=False),
        strategy=st.sampled_from(("model", "model", "layers", "unrestricted")),
        seed=st.integers(0, 1000),
        special=st.booleans(),
        data=st.data(),
    )
    @settings(
        max_examples=count,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    def draw(graph: Graph, strategy: str, seed: int, special: bool, data: st.DataObject) -> None:
        plan = planned(graph, isa, strategy)
        if any_schedule:
            reschedule(plan, data)
        found.append(Case(graph, plan, seed, special))

    draw()
    return found


@pytest.mark.sampled(3)
@pytest.mark.parametrize("any_schedule", [False, True], ids=["chosen", "any"])
@pytest.mark.together
def test_random_graphs(isa: Isa, any_schedule: bool) -> None:
    check(random_cases(isa, 12, any_schedule), isa)


SHAPES = {"whole blocks": (2, 32, 13, 19), "partial block": (1, 21, 14, 40)}


def statistics(net: L.Layer, seed: int) -> L.Layer:
    """The network with random statistics; half of the factors are negative."""
    random = np.random.default_rng(seed)
    state = {}
    for key, value in net.state_dict().items():
        if "num_batches" in key:
            state[key] = value
        elif key.endswith("running_var"):
            state[key] = random.uniform(0.5, 1.5, value.shape).astype(np.float32)
        elif key.endswith("weight"):
            sign = np.where(np.arange(value.size) % 2, -1.0, 1.0).reshape(value.shape)
            state[key] = (random.uniform(0.5, 1.5, value.shape) * sign).astype(np.float32)
        else:
            state[key] = (random.standard_normal(value.shape) * 0.1).astype(np.float32)
    net.load_state_dict(state)
    return net


def block(channels: int, pool: L.Layer) -> L.Layer:
    return L.Sequential(pool, L.BatchNorm2d(channels), L.ReLU())


class Residual(L.Layer):
    """``ReLU(x + block(x))``."""

    def __init__(self, channels: int) -> None:
        self.block = L.Sequential(L.MaxPool2d(3, 1, 1), L.BatchNorm2d(channels))
        self.relu = L.ReLU()

    def forward(self, x: Any) -> Any:
        return self.relu(x + self.block(x))


CHAINS = {
    "paper": lambda c: L.Sequential(*(block(c, L.MaxPool2d(3, 1, 1)) for _ in range(5))),
    "stride 2": lambda c: L.Sequential(
        block(c, L.MaxPool2d(3, 2, 1)), block(c, L.MaxPool2d(3, 1, 1)), block(c, L.MaxPool2d(2, 2))
    ),
    "average": lambda c: L.Sequential(
        block(c, L.AvgPool2d(3, 1, 1)),
        block(c, L.AvgPool2d(3, 1, 1, count_include_pad=False)),
        block(c, L.AvgPool2d(2, 2)),
    ),
    "ceil_mode": lambda c: L.Sequential(
        block(c, L.MaxPool2d(3, 2, ceil_mode=True)),
        block(c, L.MaxPool2d(3, 1, 1)),
        block(c, L.AvgPool2d(3, 2, 1, ceil_mode=True)),
    ),
    "residual": lambda c: L.Sequential(
        block(c, L.MaxPool2d(3, 1, 1)), Residual(c), block(c, L.MaxPool2d(3, 1, 1))
    ),
    "both kinds": lambda c: L.Sequential(
        block(c, L.MaxPool2d(3, 1, 1)),
        block(c, L.AvgPool2d(3, 1, 1)),
        L.MaxPool2d((1, 5), 1, (0, 2)),
    ),
    "dilated": lambda c: block(c, L.MaxPool2d(3, 1, 1, dilation=2)),
    "wide": lambda c: L.Sequential(L.MaxPool2d(9, 1, 4), L.AvgPool2d(9, 1, 4), L.ReLU()),
}


def chain(name: str, channels: int, shape: tuple[int, ...]) -> Graph:
    return to_graph(statistics(CHAINS[name](channels), 1), shape)


#: In CI one size of each chain, by turns.
ALL_CHAINS = [
    (name, size)
    for i, name in enumerate(CHAINS)
    for j, size in enumerate(SHAPES)
    if IS_FULL or i % len(SHAPES) == j
]


@cache
def chains_of(isa_name: str) -> dict[tuple[str, str], Graph]:
    """The graphs of all chains, their kernels compiled together."""
    found = {
        (name, size): chain(name, SHAPES[size][1], SHAPES[size])
        for name, size in on(ALL_CHAINS, ISAS, isa_name)
    }
    strategies = ("model", "layers")
    warm([(g, how) for g in found.values() for how in strategies], ISAS[isa_name])
    return found


@pytest.mark.sampled(3)
@each_on_one(ALL_CHAINS, ISAS)
def test_chains(case: tuple[str, str], isa: Isa) -> None:
    """One kernel without conversions; as the reference, and as layer by layer to the last bit."""
    graph = chains_of(isa.name)[case]
    options: dict[str, Any] = {"isa": isa.name, "threads": THREADS, "guarded": True}
    fused = md.compile(graph, device="cpu", **options)
    layered = md.compile(graph, device="cpu", strategy="layers", **options)
    if case[0] != "wide":
        assert [type(node.op) for node in fused.plan.graph.nodes] == [FusedSequence]
    meant = planned(graph, isa).graph  # the program's own has let go of its constants
    for special in (False, True):
        (x,) = inputs_for(graph, 3, special)
        y = fused(x)
        assert same(y, evaluate(meant, [x])[0])
        expected = layered(x)
        nan = np.isnan(y) & np.isnan(expected)
        assert (nan | (y.view(np.int32) == expected.view(np.int32))).all()


@pytest.mark.together
def test_numbers_that_overflow_within_a_chain(isa: Isa) -> None:
    """Large finite inputs become infinite, then NaN, after some layers: maxima must keep those."""
    shape = SHAPES["whole blocks"]
    net = CHAINS["paper"](shape[1])
    state = statistics(net, 2).state_dict()
    first, *_, last = (key for key in state if key.endswith("weight"))
    state[first] = np.full_like(state[first], 2.0)
    state[last] = np.zeros_like(state[last])  # infinity times zero
    net.load_state_dict(state)
    graph = to_graph(L.Sequential(net, L.MaxPool2d(3, 2, 1)), shape)
    (x,) = inputs_for(graph, 3, False)
    x[0, 3, 4, 5] = 3e38
    x[1, 30, 12, 18] = 3e38
    y = md.compile(graph, device="cpu", isa=isa.name, guarded=True)(x)
    with np.errstate(all="ignore"):
        expected = evaluate(planned(graph, isa).graph, [x])[0]
    assert np.isnan(expected).any() and not np.isnan(expected).all()
    assert same(y, expected)


@cache
def in_tiles(blocks: int, padding: int, isa: Isa) -> Case:
    """A long chain as one kernel over patches of 16 x 16, with halos that are computed again."""
    net = L.Sequential(*(block(16, L.MaxPool2d(3, 1, padding)) for _ in range(blocks)))
    size = 37 + 2 * blocks * (1 - padding)
    graph = to_graph(statistics(net, 1), (1, 16, size, size))
    plan = planned(graph, isa, "unrestricted")
    (node,) = plan.graph.nodes
    assert isinstance(node.op, FusedSequence)
    give(node.op, Schedule(16, 16, 1, True, True))
    return Case(graph, plan, 3, True)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "padding, blocks, most",
    [(1, 40, 1800), (0, 20, 20_000)],
    ids=["planes of one size", "planes that shrink"],
)
@pytest.mark.together
def test_long_chains_in_tiles(padding: int, blocks: int, most: int, isa: Isa) -> None:
    """A block adds the same text however many there are (on planes of one size the functions are
    shared), and no call lies in ever more calls, for which ISPC would need minutes: such chains
    compile in seconds, to the right bits."""
    half = blocks // 2
    cases = [in_tiles(n, padding, isa) for n in (half, half + half // 2, blocks)]
    sources = [texts_of(lower_plan(c.plan, isa, 2))[0] for c in cases]
    short, middle, long = ("".join((*s.shared, s.text)) for s in sources)
    added = len(middle) - len(short), len(long) - len(middle)
    assert added[1] / (half // 2) < most and added[1] < 1.1 * added[0]
    assert max(line.count("(") for line in long.splitlines()) < 20
    begin = sum(os.times()[:4])
    check(cases[-1:], isa)
    assert sum(os.times()[:4]) - begin < 100  # 5 to 10 of the processor's and the compiler's


@pytest.mark.together(3)
def test_large_outputs_are_streamed(isa: Isa) -> None:
    """Past the caches, whole lines at a time, where rows are aligned and where they are not."""
    shapes: tuple[tuple[int, ...], ...] = (
        (1, 128, 128, 132),
        (1, 125, 128, 136),
        (1, 128, 131, 131),
    )
    net = L.Sequential(L.MaxPool2d(3, 1, 1), L.ReLU())
    graphs = [to_graph(net, shape) for shape in shapes]
    # All before the first one runs, as they ask for their kernels one after the other.
    compiled = [md.compile(graph, device="cpu", isa=isa.name) for graph in graphs]
    for shape, graph, exe in zip(shapes, graphs, compiled, strict=True):
        assert np.prod(shape) * 4 >= STREAMED_BYTES
        assert isinstance(exe.program, CpuProgram)
        text = "".join(texts_of(exe.program.tasks)[0].shared)
        assert ("streaming_store" in text) == (shape[2:] != (131, 131))
        lines = [*map(int, re.findall(r"streaming_store\(\(y.*?\) \+ (\d+), ", text))]
        assert lines == list(range(0, 16, isa.lanes)) * (len(lines) * isa.lanes // 16)
        (x,) = inputs_for(graph, 1, False)
        expected = evaluate(graph, [x])[0]
        out, source = (np.empty(x.size + 32, np.float32) for _ in range(2))
        for shift in (0, 1, 4, 8, 12):
            here, there = (a[shift : shift + x.size].reshape(shape) for a in (out, source))
            there[:] = x
            out[shift + x.size :] = 7.0
            exe(there, out=here)
            assert same(here, expected)
            assert (out[shift + x.size :] == 7.0).all()


@pytest.mark.parametrize("channels", [2, 16])
@pytest.mark.together
def test_outputs_that_later_steps_read(channels: int, isa: Isa) -> None:
    """The step that computes an output writes it; a window that reads it afterwards does not."""
    with tracing("outputs") as trace:
        x = trace.input(TensorType((2, channels, 2, 5)), "x")
        average = apply(AvgPool2d((1, 2), (3, 3)), x)
        positive = apply(ReLU(), average)
        largest = apply(MaxPool2d((2, 4), (2, 2), (1, 2), (2, 1)), positive)
        graph = trace.graph([average, positive, largest])
    plan = planned(graph, isa, "unrestricted")
    (node,) = plan.graph.nodes
    assert isinstance(node.op, FusedSequence)
    check([Case(graph, plan, seed, False) for seed in range(3)], isa)


@pytest.mark.together
def test_not_finite_where_inputs_are_read_in_two_ways(isa: Isa) -> None:
    """A step that transposes one input and reads another, which it repeats for all channels, notes
    the largest magnitude of both: each may be what a maximum must not lose."""
    with tracing("two ways") as trace:
        x = trace.input(TensorType((2, 15, 10, 3)), "x")
        factor = trace.input(TensorType((2, 1, 10, 3)), "factor")
        graph = trace.graph([apply(MaxPool2d((2, 1), (1, 1)), apply(Mul(), x, factor))])
    plan = planned(graph, isa)
    (node,) = plan.graph.nodes
    assert isinstance(node.op, FusedSequence)
    program = CpuBackend().compile(plan, "float32", {"isa": isa.name, "threads": 1})
    for number in (np.nan, np.inf, -np.inf):
        for which in (0, 1):
            inputs = inputs_for(graph, 1, False)
            inputs[which][:, ::2, 3, 1] = number
            inputs[1 - which][:, :, 3:5, :] = 0.0
            (out,) = (np.full(v.shape, 7.0, np.float32) for v in graph.outputs)
            program.run(inputs, [out])
            (expected,) = evaluate(graph, inputs)
            assert np.isnan(expected).any() and same(out, expected)


@pytest.mark.full
@pytest.mark.parametrize("any_schedule", [False, True], ids=["chosen", "any"])
def test_many_random_graphs(isa: Isa, any_schedule: bool) -> None:
    check(random_cases(isa, 300, any_schedule), isa)
