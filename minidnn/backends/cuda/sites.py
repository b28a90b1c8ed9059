"""Where the addresses of inputs and outputs stand among the arguments of a plan's kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...graph.ir import Value
from ...runtime.plan import Plan
from .contraction.problem import Address
from .functions import KernelRun, LibraryRun, Run, parts_of
from .lower import Pointer
from .places import TaskWork, ValueAddresses

_AWAY = 1 << 32
"""Bytes between two addresses of which an argument tells which one it was made of."""


@dataclass(frozen=True)
class Site:
    """An argument: of which of the things that a plan starts, which one, and how many bytes behind
    the address."""

    part: int
    argument: int
    offset: int


def sites_of_ends(
    plan: Plan, works: Sequence[TaskWork], runs: Sequence[Run], places: ValueAddresses
) -> list[tuple[Site, ...]]:
    """For each input and then each output, every argument that is made of its address.

    None where a library takes it, which may keep it where nobody sees it, and where what lies
    there is also copied to another output.

    runs: of the works, on ``places``.
    """
    copied = {root for _, root, _ in places.copies}
    own = [*places.inputs, *places.outputs]
    found: list[tuple[Site, ...]] = []
    for place, value in enumerate((*plan.graph.inputs, *plan.graph.outputs)):
        root = plan.roots.get(value, value)
        if root in copied:
            found.append(())
            continue
        moved = [at + _AWAY * (number == place) for number, at in enumerate(own)]
        inputs, outputs = moved[: len(places.inputs)], moved[len(places.inputs) :]
        elsewhere = ValueAddresses(plan, places.block, inputs, outputs, places.states)
        found.append(_sites(root, own[place], plan, works, runs, elsewhere))
    return found


def _sites(
    storage: Value,
    address: int,
    plan: Plan,
    works: Sequence[TaskWork],
    runs: Sequence[Run],
    elsewhere: ValueAddresses,
) -> tuple[Site, ...]:
    """Those of one storage, which alone lies elsewhere than for ``runs``."""
    found: list[Site] = []
    first = 0
    for work, run in zip(works, runs, strict=True):
        parts = parts_of(run)
        if any(_storage(plan, pointer) is storage for pointer in work.pointers):
            moved = parts_of(work.bind(elsewhere))
            for part, (one, other) in enumerate(zip(parts, moved, strict=True), first):
                here, there = _arguments(one), _arguments(other)
                changed = [i for i, value in enumerate(here) if there[i] != value]
                if changed and isinstance(one, LibraryRun):
                    return ()
                assert all(there[i] - here[i] == _AWAY for i in changed)
                found += [Site(part, i, here[i] - address) for i in changed]
        first += len(parts)
    return tuple(found)


def _storage(plan: Plan, pointer: Pointer) -> Value | None:
    value = pointer.value if isinstance(pointer, Address) else pointer
    return plan.roots.get(value, value) if isinstance(value, Value) else None


def _arguments(run: Run) -> tuple[int, ...]:
    if isinstance(run, LibraryRun):
        return run.addresses
    assert isinstance(run, KernelRun), f"nothing is known of what {run} takes"
    return run.arguments
