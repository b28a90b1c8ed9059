"""Printed kernels of random graphs give the bits of node-by-node evaluation, in every dtype."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from minidnn.fusion.collapse import EVERYWHERE, Strategy
from minidnn.fusion.device import TWO_CORES
from minidnn.fusion.region import FusedSequence
from minidnn.fusion.sequence import Schedule
from minidnn.fusion.target import Target
from minidnn.graph.evaluate import evaluate
from minidnn.graph.ir import Graph
from minidnn.graph.types import rounded_to
from minidnn.passes.infrastructure import Context
from minidnn.passes.pipeline import optimize
from tests.cuda.cards import A100, H200
from tests.cuda.sequences import LAYOUTS, Case, case_of, run_cases
from tests.fusion.graphs import graphs, inputs_for

SETTINGS = settings(
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate],
)


@dataclass(frozen=True)
class Kept(Target):
    """A target that keeps values in some dtype."""

    dtype: str = "float32"

    @property
    def storage(self) -> str:
        return self.dtype


@dataclass
class Collected:
    """Cases of many graphs, which are compiled together: starting a compiler takes most time."""

    cases: list[Case] = field(default_factory=list)

    def add(self, graph: Graph, strategy: Strategy, seed: int, data: st.DataObject) -> None:
        dtype = data.draw(st.sampled_from(("float32", "float32", "float16", "bfloat16")))
        arrays = inputs_for(graph, seed, special=seed % 2 == 0)
        inputs = [rounded_to(dtype, array) for array in arrays]
        device = data.draw(st.sampled_from((H200.device("float32"), TWO_CORES)))
        optimized = optimize(graph, Context(Kept(device, dtype), strategy))
        values: dict[str, np.ndarray] = {}
        evaluate(
            optimized,
            inputs,
            observe=lambda node, results: values.update(
                zip((v.name for v in node.outputs), results, strict=True)
            ),
        )
        values.update(zip((v.name for v in optimized.inputs), inputs, strict=True))
        for node in optimized.nodes:
            if isinstance(node.op, FusedSequence):
                operands = [rounded_to(dtype, values[value.name]) for value in node.inputs]
                self._region(node.op, operands, data)

    def _region(
        self, region: FusedSequence, operands: list[np.ndarray], data: st.DataObject
    ) -> None:
        rows, columns = region.kernel[0].anchor
        schedule = Schedule(rows, columns, 1, data.draw(st.booleans()))
        whole = any(e.scale == 0 for p in region.kernel[0].planes for e in p.owned or ())
        if not whole and data.draw(st.booleans()):
            schedule = Schedule(
                data.draw(st.integers(1, rows)),
                data.draw(st.integers(1, columns)),
                data.draw(st.integers(1, 5)),
                data.draw(st.booleans()),
            )
        layout = data.draw(st.sampled_from(LAYOUTS))
        extra = data.draw(st.sampled_from((0, 0, 1, 4)))
        machine = data.draw(st.sampled_from((A100, H200)))
        own = FusedSequence(region.body, schedule)
        suit = data.draw(st.booleans())
        self.cases.append(case_of(own, operands, layout, machine, extra, suit=suit))


def collect(examples: int, most: int) -> list[Case]:
    collected = Collected()

    @given(
        graph=graphs(most=most),
        strategy=st.sampled_from(EVERYWHERE),
        seed=st.integers(0, 1000),
        data=st.data(),
    )
    @settings(SETTINGS, max_examples=examples)
    def add(graph: Graph, strategy: Strategy, seed: int, data: st.DataObject) -> None:
        collected.add(graph, strategy, seed, data)

    add()
    return collected.cases


@pytest.mark.race
def test_kernels_of_random_graphs(tmp_path: Path) -> None:
    run_cases(collect(examples=12, most=16), tmp_path)


@pytest.mark.full
@pytest.mark.parametrize("part", range(8))
def test_kernels_of_many_random_graphs(tmp_path: Path, part: int) -> None:
    run_cases(collect(examples=40, most=20 + 2 * part), tmp_path)
