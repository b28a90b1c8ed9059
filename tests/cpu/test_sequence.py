"""Printed sequences, compiled and run, give the reference's results: random graphs, and chains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from minidnn.backends.cpu.backend import CpuBackend
from minidnn.backends.cpu.isa import Isa
from minidnn.backends.cpu.kernels import compile_kernels
from minidnn.backends.cpu.lower import lower_plan
from minidnn.backends.cpu.target import CpuTarget, device_for
from minidnn.fusion.region import Sequence as SequenceRegion
from minidnn.fusion.sequence import Schedule
from minidnn.graph.evaluate import evaluate
from minidnn.graph.ir import Graph
from minidnn.graph.operators import SiLU
from minidnn.passes.infrastructure import Context
from minidnn.passes.pipeline import optimize
from minidnn.runtime.plan import Plan, make_plan
from tests.fusion.graphs import graphs, inputs_for

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
    compile_kernels([t.source for case in cases for t in lower_plan(case.plan, isa)], isa)
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
        if not isinstance(node.op, SequenceRegion):
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
        object.__setattr__(node.op, "schedule", schedule)
        node.op.__dict__.pop("kernel", None)


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


@pytest.mark.parametrize("any_schedule", [False, True], ids=["chosen", "any"])
def test_random_graphs(isa: Isa, any_schedule: bool) -> None:
    check(random_cases(isa, 12, any_schedule), isa)


@pytest.mark.full
@pytest.mark.parametrize("any_schedule", [False, True], ids=["chosen", "any"])
def test_many_random_graphs(isa: Isa, any_schedule: bool) -> None:
    check(random_cases(isa, 300, any_schedule), isa)
