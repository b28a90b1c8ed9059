"""Which arguments are the addresses of inputs and outputs, and where something else takes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest

import minidnn as md
from minidnn import layers as L
from minidnn.backends.cuda.functions import KernelRun, LibraryRun, Run, in_turn
from minidnn.backends.cuda.kernels import Launch
from minidnn.backends.cuda.lower import Pointer, lower_plan
from minidnn.backends.cuda.places import ValueAddresses
from minidnn.backends.cuda.sites import Site, sites_of_ends
from minidnn.graph.ir import Value
from minidnn.runtime.plan import Plan
from tests.cuda.cards import H200

from .lowered import planned

SHAPE = (2, 16, 6, 8)
IN, OUT, BLOCK = 0x10000, 0x20000, 0x100000

Starts = Callable[[Sequence[int]], Run]


def kernel(*arguments: int) -> KernelRun:
    return KernelRun(None, arguments)  # type: ignore[arg-type]  # nobody launches it


def twice(at: Sequence[int]) -> KernelRun:
    return kernel(*at, *at)


def library(*addresses: int) -> LibraryRun:
    return LibraryRun(lambda: None, addresses)


@dataclass(frozen=True)
class FakeWork:
    """A task that starts something with the addresses of its values, in their order."""

    pointers: Sequence[Pointer]
    starts: Starts

    def bind(self, places: ValueAddresses) -> Run:
        values = [pointer for pointer in self.pointers if isinstance(pointer, Value)]
        return self.starts([places.address(value) for value in values])


def graph_of(outputs: int = 1) -> Plan:
    """Of one sequence in float16, whose result is given so many times."""
    x = md.Input(SHAPE[1:])
    y = L.MaxPool2d(3, 1, 1)(x)
    return planned(md.Model(x, (y,) * outputs if outputs > 1 else y), SHAPE, "float16")


def found(plan: Plan, works: Sequence[FakeWork]) -> list[tuple[Site, ...]]:
    outputs = [OUT + 0x1000 * i for i in range(len(plan.graph.outputs))]
    places = ValueAddresses(plan, BLOCK, [IN], outputs)
    return sites_of_ends(plan, works, [work.bind(places) for work in works], places)


def test_a_task_of_one_kernel() -> None:
    plan = graph_of()
    (task,) = lower_plan(plan, H200, tf32=False)
    work = FakeWork(task.pointers, lambda at: kernel(*at))
    assert found(plan, [work]) == [(Site(0, 0, 0),), (Site(0, 1, 0),)]


def test_kernels_of_several_tasks_are_counted() -> None:
    """An address may stand twice, behind others, and with an offset."""
    plan = graph_of()
    x, y = plan.graph.inputs[0], plan.graph.outputs[0]
    works = [
        FakeWork([], lambda at: in_turn([kernel(7), library(8)])),
        FakeWork([x], lambda at: in_turn([kernel(9, at[0] + 64), in_turn([kernel(5), twice(at)])])),
        FakeWork([y, x], lambda at: in_turn([library(1, 2), kernel(at[0], 3)])),
    ]
    inputs, outputs = found(plan, works)
    assert inputs == (Site(2, 1, 64), Site(4, 0, 0), Site(4, 1, 0))
    assert outputs == (Site(6, 0, 0),)


def test_what_a_library_takes_has_none() -> None:
    plan = graph_of()
    x, y = plan.graph.inputs[0], plan.graph.outputs[0]
    works = [
        FakeWork([x], lambda at: kernel(*at)),
        FakeWork([x, y], lambda at: in_turn([library(at[0], 4), kernel(at[1])])),
    ]
    assert found(plan, works) == [(), (Site(2, 0, 0),)]


def test_outputs_that_are_copied_have_none() -> None:
    plan = graph_of(outputs=2)
    (task,) = lower_plan(plan, H200, tf32=False)
    work = FakeWork(task.pointers, lambda at: kernel(*at))
    assert found(plan, [work]) == [(Site(0, 0, 0),), (), ()]


def test_an_input_that_is_an_output_has_none() -> None:
    x = md.Input(SHAPE[1:])
    plan = planned(md.Model(x, (L.MaxPool2d(3, 1, 1)(x), x)), SHAPE, "float16")
    (task,) = lower_plan(plan, H200, tf32=False)
    work = FakeWork(task.pointers, lambda at: kernel(*at))
    assert found(plan, [work]) == [(), (Site(0, 1, 0),), ()]


@pytest.mark.parametrize("precision", ["float16", "bfloat16", "tf32"])
def test_kernels_of_ours_are_at_both_ends_of_parts_on_tensor_cores(precision: str) -> None:
    """What lies between a part and PyTorch is NCHW, and moved by kernels that work in place."""
    net = L.Sequential(L.Conv2d(64, 64, 3, padding=1), L.ReLU(), L.Conv2d(64, 64, 1))
    plan = planned(net, (2, 64, 8, 8), precision)
    tasks = lower_plan(plan, H200, precision == "tf32")
    for value in (*plan.graph.inputs, *plan.graph.outputs):
        root = plan.roots.get(value, value)
        (task,) = (task for task in tasks if root in task.pointers)
        assert isinstance(task.work, Launch)
