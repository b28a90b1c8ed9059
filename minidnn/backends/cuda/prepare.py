"""From tasks to what runs: kernels compiled and loaded, recipes chosen, weights laid down."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from ...errors import OutOfMemoryError, UnsupportedError
from ...graph.ir import Constant, Node, Value
from ...runtime.plan import Plan
from .block import Block, lay_out, spare
from .constants import Constants
from .contraction.choice import Choice, threads
from .contraction.problem import Address, ContractionProblem
from .contraction.recipe import Addresses, Built
from .contraction.tune import Tuning
from .fastest import Fastest
from .functions import LaunchLoader, Loaded, Run
from .kernels import Launch
from .lower import Data, InWorkspace, Pointer, Task, data_of
from .machine import Machine
from .memory import Limit, aligned, release_unused
from .places import ValueAddresses

MOST_WORKSPACE = 1 << 30
"""Bytes that algorithms may take beside their tensors, unless ``memory_limit`` leaves less, or more
lies free among the values meanwhile."""


@dataclass(frozen=True)
class KernelWork:
    """A kernel of ours on its operands, the fastest of so many that were measured, if any, its
    workspace so many bytes behind where the instance's memory begins."""

    loaded: Loaded
    pointers: tuple[Pointer, ...]
    constants: Constants
    measured: int = 0
    workspace: int = 0

    def bind(self, places: ValueAddresses) -> Run:
        given = (places, self.constants, self.workspace)
        return self.loaded.bind([_address(pointer, *given) for pointer in self.pointers])

    def describe(self) -> str:
        text = self.loaded.describe()
        return f"{text}, the fastest of {self.measured} kernels" if self.measured else text


@dataclass(frozen=True)
class ContractionWork:
    """A contraction by its recipe, on its operands, its node's workspace so many bytes behind where
    the instance's memory begins, its own behind what others have ``left`` there."""

    built: Built
    pointers: tuple[Pointer, ...]
    constants: Constants
    workspace: int
    left: int = 0

    def bind(self, places: ValueAddresses) -> Run:
        given = (places, self.constants, self.workspace)
        x, w, y, *rest = (_address(pointer, *given) for pointer in self.pointers)
        problem = self.built.problem
        first = len(problem.others)
        second = first + len(problem.vectors)
        read = (self.pointers[1], *self.pointers[3 + first :])
        at = Addresses(
            *(x, w, y, tuple(rest[:first]), tuple(rest[first:second]), tuple(rest[second:])),
            are_settled=all(isinstance(pointer, Data) for pointer in read),
        )
        return self.built.bind(at, places.block + self.workspace + self.left)

    def describe(self) -> str:
        recipe, problem = self.built.recipe, self.built.problem
        left = len(problem.stages) - recipe.form.stages
        text = ("gathered, " if problem.gather else "") + recipe.algorithm(problem)
        if left:
            text += f", then {left} stage{'s' * (left > 1)} in a kernel"
        if recipe.form.packed:
            text += ", carried into its slice"
        text += f", {self.built.workspace / 1e6:.1f} MB of workspace"
        return "; ".join([text, *self.built.describe_kernels()])


@dataclass(frozen=True)
class Done:
    """A task that can run."""

    node: Node
    work: KernelWork | ContractionWork


@dataclass(frozen=True)
class PreparedPlan:
    """The tasks in order, the memory of an instance, the numbers on the device, and those of them
    that are outputs."""

    tasks: tuple[Done, ...]
    block: Block
    constants: Constants
    outputs: dict[Value, Data]


def prepare(
    plan: Plan,
    tasks: Sequence[Task],
    machine: Machine,
    tune: str,
    limit: Limit | None,
) -> PreparedPlan:
    """Everything that is done once, on the current device.

    OutOfMemoryError if the limit does not suffice, a Shortage if memory runs out.
    """
    short = limit is not None and limit.short
    outputs: dict[Value, Data] = {}
    for value in plan.graph.outputs:
        if isinstance(value, Constant):
            outputs[value] = data_of(value)
    pointers = (*outputs.values(), *(p for task in tasks for p in task.pointers))
    problems = dict.fromkeys(t.work for t in tasks if isinstance(t.work, ContractionProblem))
    launches = [t.work for t in tasks if isinstance(t.work, Launch) and not t.others]
    load = LaunchLoader(machine.arch)
    fastest = Fastest(plan, tasks)
    # Where memory is short, tensors for one timing at a time have to do.
    with threads() as making, threads(*([1] if short else [])) as building:
        constants = Constants((p for p in pointers if isinstance(p, Data)), making)
        workspace_limit = MOST_WORKSPACE
        if limit is not None:
            left = _left(limit, lay_out(plan, {}), constants)
            workspace_limit = min(_power_of_two(left), MOST_WORKSPACE)
        tuning = Tuning(machine, tune, workspace_limit, load, _spare(plan, tasks))
        choice = Choice(list(problems), tuning, building)
        load([*launches, *fastest.launches(), *choice.launches()])
        if not short:
            constants.lay_down()  # while cuDNN builds, before anything is measured
        built = choice.made()
        block = lay_out(plan, _workspaces(tasks, built))
        if limit is not None and constants.bytes + block.own_bytes > limit.bytes:
            # Each workspace is within the limit, but where one lies no input or output can; or an
            # image has to be gathered, whatever that takes.
            tuning = replace(tuning, workspace_limit=0, spare={})
            choice = Choice(list(problems), tuning, building)
            load(choice.launches())
            with suppress(UnsupportedError):  # a contraction has no way without a workspace
                built = choice.made()
                block = lay_out(plan, _workspaces(tasks, built))
            _left(limit, block, constants)
        if short:
            release_unused()
            constants.lay_down()
        fastest.measure(load, constants)
    done = []
    for task in tasks:
        room = block.workspaces.get(task.node, 0)
        if isinstance(task.work, Launch):
            measured = 1 + len(task.others) if task.others else 0
            loaded = load([fastest(task)])[0]
            work: Any = KernelWork(loaded, task.pointers, constants, measured, room)
        else:
            left = aligned(task.workspace_bytes)
            work = ContractionWork(built[task.work], task.pointers, constants, room, left)
        done.append(Done(task.node, work))
    return PreparedPlan(tuple(done), block, constants, outputs)


def _left(limit: Limit, block: Block, constants: Constants) -> int:
    """Bytes that the limit leaves beside weights and block."""
    needed = constants.bytes + block.own_bytes
    if needed > limit.bytes:
        raise OutOfMemoryError(
            f"{limit.said}; weights take {constants.bytes} and values with workspaces "
            f"{block.own_bytes}, so at least {needed} are needed"
        )
    return limit.bytes - needed


def _power_of_two(size: int) -> int:
    """The largest one within ``size``, so that what is chosen is found again where about as much is
    free; 0 within 0."""
    return 1 << size.bit_length() >> 1


def _workspaces(
    tasks: Sequence[Task], built: Mapping[ContractionProblem, Built]
) -> dict[Node, int]:
    """Bytes that each node takes beside its values."""
    found: dict[Node, int] = {}
    for task in tasks:
        size = task.workspace_bytes
        if isinstance(task.work, ContractionProblem):
            size = aligned(size) + built[task.work].workspace
        found[task.node] = max(found.get(task.node, 0), size)
    return found


def _spare(plan: Plan, tasks: Sequence[Task]) -> dict[ContractionProblem, int]:
    """What is free in the arena while each contraction runs, wherever it stands in the plan."""
    nodes: dict[ContractionProblem, list[Node]] = {}
    for task in tasks:
        if isinstance(task.work, ContractionProblem):
            nodes.setdefault(task.work, []).append(task.node)
    room = spare(plan, {node for some in nodes.values() for node in some})
    return {problem: min(room[node] for node in some) for problem, some in nodes.items()}


def _address(pointer: Pointer, places: ValueAddresses, constants: Constants, workspace: int) -> int:
    if isinstance(pointer, Data):
        return constants.address(pointer)
    if isinstance(pointer, InWorkspace):
        return places.block + workspace + pointer.offset
    if isinstance(pointer, Address):
        return places.address(pointer.value) + pointer.bytes
    return places.address(pointer)
