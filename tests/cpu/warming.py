"""Compiling the kernels of many graphs at once, so that tests on them find everything cached."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest

from minidnn.backends.codegen.kernel import KernelSource
from minidnn.backends.cpu.backend import CpuBackend
from minidnn.backends.cpu.compilers import kernels
from minidnn.backends.cpu.compilers.library import NativeFunction
from minidnn.backends.cpu.contraction import multiplies_int8
from minidnn.backends.cpu.execution.bind import Task
from minidnn.backends.cpu.isa import Isa, bfloat16_isa, with_int8
from minidnn.backends.cpu.lower import lower_plan
from minidnn.fusion.collapse import check_strategy
from minidnn.graph.ir import Graph
from minidnn.passes.infrastructure import Context
from minidnn.passes.pipeline import optimize
from minidnn.runtime.plan import make_plan


def kernels_of(
    graph: Graph,
    isa: Isa,
    strategy: str = "model",
    stored: bool = False,
    precision: str = "float32",
    threads: int = 2,
) -> list[KernelSource]:
    """What ``md.compile`` would compile for a graph, perhaps with a store."""
    target = CpuBackend().target(precision, {"isa": isa.name, "threads": threads})
    isa = isa if precision == "float32" else bfloat16_isa(isa)
    context = Context(target, check_strategy(strategy), None, stored=stored)
    plan = make_plan(optimize(graph, context), context)
    isa = with_int8(isa) if multiplies_int8(plan.graph) else isa
    return texts_of(lower_plan(plan, isa, threads))


def texts_of(tasks: Iterable[Task]) -> list[KernelSource]:
    """What is compiled of tasks; the runner's own functions are there already."""
    return [task.source for task in tasks if isinstance(task.source, KernelSource)]


def warm(
    graphs: Iterable[tuple[Graph, str]],
    isa: Isa,
    stored: bool = False,
    precision: str = "float32",
    threads: Sequence[int] = (2,),
) -> None:
    """Compiles the kernels of graphs, each under a strategy and for numbers of threads, in one go.

    That the kernels of all of them go together is a test too: equal names mean equal texts.
    """
    compile_together(
        [
            each
            for graph, how in graphs
            for count in threads
            for each in kernels_of(graph, isa, how, stored, precision, count)
        ],
        isa,
    )


def compile_together(sources: Sequence[KernelSource], isa: Isa) -> list[NativeFunction]:
    """As the engine compiles them, but in fewer files."""
    with pytest.MonkeyPatch.context() as patch:
        # ISPC starts less often, for a third less of the processor's time.
        patch.setattr(kernels, "MOST_PER_FILE", 128)
        return kernels.compile_kernels(sources, isa)
