"""The table of launches: what is told of addresses in slots, and what becomes of them in a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

import minidnn as md
from minidnn import layers as L
from minidnn.backends.cuda.block import Block
from minidnn.backends.cuda.functions import KernelRun
from minidnn.backends.cuda.kernels import Launch
from minidnn.backends.cuda.lower import lower_plan
from minidnn.backends.cuda.table import CudaTable, KernelRow, LibraryRow, Row, Site
from minidnn.runtime.operand import KernelArgument, Operand
from minidnn.runtime.plan import Plan
from minidnn.runtime.slots import Slots
from tests.cuda.cards import H200

from .lowered import planned

SHAPE = (2, 16, 6, 8)
IN, OUT = Operand(1), Operand(2)


class FakeLoaded:
    def bind(self, pointers: Sequence[int]) -> KernelRun:
        return KernelRun(None, tuple(pointers))  # type: ignore[arg-type]  # nobody launches it


@dataclass
class FakeCall:
    """Keeps where it was bound."""

    bound: tuple[int, ...] = ()

    def bind(self, addresses: Sequence[int]) -> Any:
        self.bound = tuple(addresses)
        return lambda: None


def kernel(*arguments: KernelArgument) -> KernelRow:
    return KernelRow(FakeLoaded(), arguments)  # type: ignore[arg-type]


def library(*arguments: KernelArgument) -> LibraryRow:
    return LibraryRow(FakeCall(), arguments)


def table(*tasks: Sequence[Row], copies: Sequence[tuple[Operand, Operand, int]] = ()) -> CudaTable:
    block = Block(0, 0, (), (), {})
    return CudaTable(tuple(map(tuple, tasks)), block, (0,), (0,), tuple(copies))


def test_addresses_are_those_of_a_run() -> None:
    bases = (0x1000, 0x2000, 0x3000, 0x4000)
    run = kernel(Operand(1, 16), 7, Operand(0), Operand(3, 1)).bind(bases)
    assert isinstance(run, KernelRun) and run.arguments == (0x2010, 7, 0x1000, 0x4001)
    row = library(OUT, 0)
    row.bind(bases)
    assert isinstance(row.call, FakeCall) and row.call.bound == (0x3000, 0)


def test_rows_of_all_tasks_are_counted() -> None:
    """An address may stand twice, behind others, and with an offset."""
    made = table(
        [kernel(7), library(8)],
        [kernel(9, IN + 64), kernel(5), kernel(IN, IN)],
        [library(Operand(0), Operand(3)), kernel(OUT, 1)],
    )
    assert made.sites(1) == (Site(2, 1, 64), Site(4, 0, 0), Site(4, 1, 0))
    assert made.sites(2) == (Site(6, 0, 0),)


def test_what_a_library_takes_has_no_site() -> None:
    made = table([kernel(IN)], [library(IN, 4), kernel(OUT)])
    assert made.sites(1) == () and made.sites(2) == (Site(2, 0, 0),)


def test_what_is_copied_has_no_site() -> None:
    made = table([kernel(IN, OUT)], copies=[(Operand(3), OUT, 8)])
    assert made.sites(1) == (Site(0, 0, 0),) and made.sites(2) == made.sites(3) == ()


def slots_of(plan: Plan) -> Slots:
    return Slots(plan, {value: Operand(0, at) for value, at in plan.arena.offsets.items()}, 1)


def test_outputs_that_no_kernel_writes_are_copied() -> None:
    x = md.Input((3, 4, 4))
    y = L.ReLU()(x)
    plan = planned(md.Model(x, (y, x, y)), (2, 3, 4, 4), "float32")
    slots = slots_of(plan)
    first, given, _ = plan.graph.outputs
    assert slots.operand(given) == Operand(1) and slots.operand(first) == Operand(2)
    assert [slots.source(i) for i in range(3)] == [None, Operand(1), Operand(2)]
    assert (slots.outputs, slots.states, slots.constants) == (2, 5, 5)


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
