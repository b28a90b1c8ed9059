"""From tasks to a table that runs: kernels compiled, algorithms chosen, weights copied to the GPU.

Each task becomes *work*, which knows its kernel or its library call with all choices made, and
work becomes the rows of a :class:`CudaTable`, whose addresses are offsets in slots.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from ...cudnn.errors import NoAlgorithmError
from ...errors import OutOfMemoryError, UnsupportedError
from ...graph.ir import Constant, Node
from ...runtime.operand import Operand
from ...runtime.plan import Plan
from ...runtime.slots import Slots
from .block import Block, lay_out, spare
from .constants import Constants, Data
from .contraction.choice import Choice, threads
from .contraction.config import AlgorithmConfig, ContractionExecutable
from .contraction.fixed_function import FixedConvolution
from .contraction.problem import Address, Addresses, ContractionProblem
from .contraction.tune import Tuning
from .fastest import Fastest
from .functions import LaunchLoader, Loaded
from .kernels import Launch
from .library.call import FunctionCall
from .library.convolution import LayerConvolution, chosen
from .machine import Machine
from .memory import Limit, aligned, release_unused
from .rank_sums import RankSum, RankSums
from .table import CudaTable, KernelRow, LibraryRow, Row
from .task import InWorkspace, Pointer, Task, data_of

MOST_WORKSPACE = 1 << 30
"""Bytes of workspace that an algorithm may take, unless ``memory_limit`` leaves less, or the arena
of values has a larger gap while it runs."""


@dataclass(frozen=True)
class NodeOperands:
    """Maps the pointers of a node's tasks to operands: offsets in the slots of a table.

    Attributes:
        slots: the slot and offset of each value.
        constants: the offset of each constant.
        workspace: the offset of the node's workspace in an instance's memory, in bytes.
    """

    slots: Slots
    constants: Constants
    workspace: int

    def __call__(self, pointer: Pointer) -> Operand:
        if isinstance(pointer, Data):
            return Operand(self.slots.constants, self.constants.offset(pointer))
        if isinstance(pointer, InWorkspace):
            return Operand(0, self.workspace + pointer.offset)
        if isinstance(pointer, Address):
            return self.slots.operand(pointer.value) + pointer.bytes
        return self.slots.operand(pointer)


@dataclass(frozen=True)
class KernelWork:
    """A generated kernel.

    Attributes:
        loaded: the kernel on the device, with its launch.
        measured: how many kernels it was the fastest of; 0 if none was measured.
    """

    loaded: Loaded
    measured: int = 0

    def rows(self, pointers: Sequence[Pointer], operands: NodeOperands) -> list[Row]:
        """The rows of the table that start it on its operands."""
        return [KernelRow.of(self.loaded, list(map(operands, pointers)))]

    def describe(self) -> str:
        text = self.loaded.describe()
        return f"{text}, the fastest of {self.measured} kernels" if self.measured else text


@dataclass(frozen=True)
class ContractionWork:
    """A contraction with its chosen configuration.

    Attributes:
        built: the executable: kernels and library plans.
        left: the offset of its workspace in the node's, in bytes: before it is what the node's
            other tasks leave there, such as a packed filter.
    """

    built: ContractionExecutable
    left: int = 0

    def rows(self, pointers: Sequence[Pointer], operands: NodeOperands) -> list[Row]:
        """The rows of the table that start it on its operands."""
        x, w, y, *rest = map(operands, pointers)
        problem = self.built.problem
        others_end = len(problem.others)
        vectors_end = others_end + len(problem.vectors)
        before_end = vectors_end + len(problem.before_vectors)
        front_end = before_end + (0 if problem.producer is None else len(problem.producer.read))
        read = (pointers[1], *pointers[3 + others_end : 3 + before_end])
        addresses = Addresses(
            *(x, w, y, tuple(rest[:others_end]), tuple(rest[others_end:vectors_end])),
            before=tuple(rest[vectors_end:before_end]),
            producer=tuple(rest[before_end:front_end]),
            reduction=tuple(rest[front_end:]),
            are_settled=all(isinstance(pointer, Data) for pointer in read),
        )
        return self.built.rows(addresses, operands(InWorkspace(self.left)))

    def describe(self) -> str:
        config, problem = self.built.config, self.built.problem
        unfused = len(problem.stages) - config.algorithm.stages
        text = ("gathered, " if problem.gather else "") + config.algorithm_name(problem)
        if unfused:
            text += f", then {unfused} stage{'s' * (unfused > 1)} in a kernel"
        if config.algorithm.packed:
            text += ", carried into its slice"
        text += f", {self.built.workspace / 1e6:.1f} MB of workspace"
        return "; ".join([text, *self.built.describe_kernels()])


@dataclass(frozen=True)
class RankWork:
    """A sum over ranks that NCCL computes, or the wait for one."""

    work: RankSum
    sums: RankSums

    def rows(self, pointers: Sequence[Pointer], operands: NodeOperands) -> list[Row]:
        """The rows of the table that start it on its operands."""
        return [self.sums.row(self.work, list(map(operands, pointers)))]

    def describe(self) -> str:
        return f"NCCL, {len(self.work.types)} values" if self.work.begins else "waited for"


@dataclass(frozen=True)
class FunctionWork:
    """A call of a function of cuDNN."""

    call: FunctionCall

    def rows(self, pointers: Sequence[Pointer], operands: NodeOperands) -> list[Row]:
        """The rows of the table that start it on its operands."""
        return [LibraryRow(self.call, tuple(map(operands, pointers)))]

    def describe(self) -> str:
        return self.call.describe()


@dataclass(frozen=True)
class ConvolutionWork:
    """A convolution of cuDNN, or a gradient of one, with its algorithm."""

    layer: LayerConvolution
    call: FixedConvolution

    def rows(self, pointers: Sequence[Pointer], operands: NodeOperands) -> list[Row]:
        """The rows of the table that start it on its operands."""
        x, w, y = (operands(pointers[i]) for i in self.layer.order)
        workspace = operands(InWorkspace(0)) if self.call.workspace else 0
        return [LibraryRow(self.call, (x, w, y, 0, 0, workspace))]

    def describe(self) -> str:
        problem = self.call.descriptors
        name = problem.functions.algorithm(self.call.algorithm).name
        return f"{problem.functions.run}, {name}, {self.call.workspace / 1e6:.1f} MB of workspace"


Work = KernelWork | ContractionWork | RankWork | FunctionWork | ConvolutionWork


@dataclass(frozen=True)
class PreparedTask:
    """A node and the work of one of its tasks."""

    node: Node
    work: Work


@dataclass(frozen=True)
class PreparedPlan:
    """A plan that can run.

    Attributes:
        tasks: the work of each task, in order.
        table: the launches that they become.
        slots: the slot and offset of each value.
        constants: the weights on the device.
        load: the loader that has the plan's kernels.
        workspaces: the workspace of each node, in bytes.
    """

    tasks: tuple[PreparedTask, ...]
    table: CudaTable
    slots: Slots
    constants: Constants
    load: LaunchLoader
    workspaces: Mapping[Node, int]


def prepare(
    plan: Plan,
    tasks: Sequence[Task],
    machine: Machine,
    tune: str,
    limit: Limit | None,
    other: PreparedPlan | None = None,
) -> PreparedPlan:
    """Prepares the tasks of a plan on the current device: compiles and loads kernels, chooses
    algorithms, copies weights, and lays out memory.

    Args:
        plan: the plan.
        tasks: its tasks, in order.
        machine: the device's properties.
        tune: "heuristic", "quick" or "exhaustive".
        limit: the memory that the program may take.
        other: the prepared plan of the same network for another size, whose kernels, configurations
            and constants are used again.

    Raises:
        OutOfMemoryError: the limit does not suffice, or as a Shortage, the device's memory.
    """
    short = limit is not None and limit.short
    outputs = {v: data_of(v) for v in plan.graph.outputs if isinstance(v, Constant)}
    pointers = (*outputs.values(), *(p for task in tasks for p in task.pointers))
    problems = [t.work for t in tasks if isinstance(t.work, ContractionProblem)]
    launches = [t.work for t in tasks if isinstance(t.work, Launch) and not t.others]
    load = LaunchLoader(machine.arch, None if other is None else other.load)
    fastest = Fastest(plan, tasks)
    # Where memory is short, one thread builds, so that tensors for one timing exist at a time.
    with threads() as make_pool, threads(*([1] if short else [])) as build_pool:
        data = (p for p in pointers if isinstance(p, Data))
        constants = Constants(data, make_pool, None if other is None else other.constants)
        workspace_limit = MOST_WORKSPACE
        if limit is not None:
            free_bytes = _left(limit, lay_out(plan, {}), constants)
            workspace_limit = min(_power_of_two(free_bytes), MOST_WORKSPACE)
        known = {} if other is None else _taken(tasks, other)
        tuning = Tuning(machine, tune, workspace_limit, load, _spare(plan, tasks), known)
        choice = Choice(problems, tuning, build_pool)
        load([*launches, *fastest.launches(), *choice.launches()])
        if not short:
            constants.upload()  # while cuDNN builds, before anything is measured
        built = choice.made()
        convolutions = _chosen(tasks, tune, workspace_limit)
        workspaces = _workspaces(tasks, built, convolutions)
        block = lay_out(plan, workspaces)
        if limit is not None and constants.bytes + block.own_bytes > limit.bytes:
            # Each workspace is within the limit, but inputs and outputs cannot share its memory;
            # or an image has to be gathered, whatever workspace that takes.
            tuning = replace(tuning, workspace_limit=0, spare={})
            choice = Choice(problems, tuning, build_pool)
            load(choice.launches())
            # Some contraction may have no algorithm without a workspace.
            with suppress(UnsupportedError, NoAlgorithmError):
                built, convolutions = choice.made(), _chosen(tasks, tune, 0)
                workspaces = _workspaces(tasks, built, convolutions)
                block = lay_out(plan, workspaces)
            _left(limit, block, constants)
        if short:
            release_unused()
            constants.upload()
        fastest.measure(load, constants)
    slots = Slots(plan, {value: Operand(0, at) for value, at in plan.arena.offsets.items()}, 1)
    works, rows, sums = [], [], RankSums()
    for task in tasks:
        work: Work
        if isinstance(task.work, RankSum):
            work = RankWork(task.work, sums)
        elif isinstance(task.work, Launch):
            measured = 1 + len(task.others) if task.others else 0
            work = KernelWork(load([fastest(task)])[0], measured)
        elif isinstance(task.work, FunctionCall):
            work = FunctionWork(task.work)
        elif isinstance(task.work, LayerConvolution):
            work = ConvolutionWork(task.work, convolutions[task.work])
        else:
            work = ContractionWork(built[task.work], aligned(task.workspace_bytes))
        operands = NodeOperands(slots, constants, block.workspaces.get(task.node, 0))
        rows.append(tuple(work.rows(task.pointers, operands)))
        works.append(PreparedTask(task.node, work))
    copies = []
    for i, value in enumerate(plan.graph.outputs):
        if (source := slots.source(i)) is not None:
            if isinstance(source, Constant):
                source = Operand(slots.constants, constants.offset(outputs[source]))
            copies.append((Operand(slots.outputs + i), source, value.type.bytes))
    table = CudaTable(
        tuple(rows),
        block,
        tuple(value.type.bytes for value in plan.graph.inputs),
        tuple(value.type.bytes for value in plan.graph.outputs),
        tuple(copies),
    )
    return PreparedPlan(tuple(works), table, slots, constants, load, workspaces)


def _taken(tasks: Sequence[Task], other: PreparedPlan) -> dict[ContractionProblem, AlgorithmConfig]:
    """The configurations of the same contractions in another program of the network."""
    if len(tasks) != len(other.tasks):
        return {}
    return {
        task.work: done.work.built.config
        for task, done in zip(tasks, other.tasks, strict=True)
        if isinstance(task.work, ContractionProblem) and isinstance(done.work, ContractionWork)
    }


def _left(limit: Limit, block: Block, constants: Constants) -> int:
    """Bytes that the limit leaves beside weights and an instance; OutOfMemoryError if these do not
    fit."""
    needed = constants.bytes + block.own_bytes
    if needed > limit.bytes:
        raise OutOfMemoryError(
            f"{limit.said}; weights take {constants.bytes} and values with workspaces "
            f"{block.own_bytes}, so at least {needed} are needed"
        )
    return limit.bytes - needed


def _power_of_two(size: int) -> int:
    """The largest power of two up to ``size`` (0 for 0).  As a limit it is the same for about as
    much free memory, so that choices under it are found in the cache again."""
    return 1 << size.bit_length() >> 1


def _chosen(
    tasks: Sequence[Task], tune: str, workspace_limit: int
) -> dict[LayerConvolution, FixedConvolution]:
    """The algorithms of the convolutions that are single calls of cuDNN."""
    layers = dict.fromkeys(t.work for t in tasks if isinstance(t.work, LayerConvolution))
    return {layer: chosen(layer, tune, workspace_limit) for layer in layers}


def _workspaces(
    tasks: Sequence[Task],
    built: Mapping[ContractionProblem, ContractionExecutable],
    convolutions: Mapping[LayerConvolution, FixedConvolution],
) -> dict[Node, int]:
    """The workspace of each node, in bytes: the largest of its tasks."""
    workspaces: dict[Node, int] = {}
    for task in tasks:
        size = task.workspace_bytes
        if isinstance(task.work, ContractionProblem):
            size = aligned(size) + built[task.work].workspace
        elif isinstance(task.work, LayerConvolution):
            size = convolutions[task.work].workspace
        workspaces[task.node] = max(workspaces.get(task.node, 0), size)
    return workspaces


def _spare(plan: Plan, tasks: Sequence[Task]) -> dict[ContractionProblem, int]:
    """Bytes of the largest gap in the arena while each contraction runs: the least of them, where a
    contraction occurs several times in the plan."""
    nodes: dict[ContractionProblem, list[Node]] = {}
    for task in tasks:
        if isinstance(task.work, ContractionProblem):
            nodes.setdefault(task.work, []).append(task.node)
    room = spare(plan, {node for some in nodes.values() for node in some})
    return {problem: min(room[node] for node in some) for problem, some in nodes.items()}
