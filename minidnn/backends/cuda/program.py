"""A compiled plan on a GPU: prepares itself, then runs, and reports how and how fast it runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

from ...errors import UnsupportedError
from ...gpu import cupy
from ...graph.ir import Node
from ...runtime.agreement import WHY_NO_TIMES, sums_over_ranks
from ...runtime.plan import Plan
from ...runtime.program import WHY_NO_STATES, DonatedLayout, StoredProgram
from ...runtime.store import Store
from .arrays import ArraySlot
from .block import lay_out
from .captured import CapturedProgram, on_device
from .contraction.kernel_registry import refusals
from .instance import Instance
from .machine import Machine, machine_of
from .memory import Limit, make_within, told
from .prepare import ContractionWork, PreparedPlan, prepare
from .states import OrderedStates
from .target import CudaTarget
from .task import Task


class CudaProgram(CapturedProgram):
    """A compiled plan.  One without states is prepared when it is made; one with states when it is
    attached to the store whose memory holds them.

    Args:
        plan: the plan.
        tasks: its tasks.
        device: the index of the GPU.
        machine: the GPU's properties.
        tune: "heuristic", "quick" or "exhaustive".
        memory_limit: bytes of device memory that it may take; None for all that is free.
        lower: lowers the same plan for other sizes to tasks.
        other: the prepared plan of another size, whose kernels and constants are used again.
    """

    def __init__(
        self,
        plan: Plan,
        tasks: Sequence[Task],
        device: int,
        machine: Machine,
        tune: str,
        memory_limit: int | None,
        lower: Callable[[Plan], Sequence[Task]] | None = None,
        other: PreparedPlan | None = None,
    ) -> None:
        self.plan = plan
        self._lower = lower
        graph = plan.graph
        inputs = [ArraySlot.of(f"input {v.name!r}", v.type) for v in graph.inputs]
        outputs = [ArraySlot.of(f"out[{i}]", v.type) for i, v in enumerate(graph.outputs)]
        super().__init__(device, inputs, outputs)
        self._machine = machine
        self._prepare = partial(prepare, plan, tasks, machine, tune, other=other)
        self._memory_limit = memory_limit
        if not graph.states:
            self._make()

    def attach(self, store: Store) -> None:
        """Finds its states in a store, or puts them there, and prepares the plan."""
        with told():
            self._states = OrderedStates(self.plan.graph, store, self.device)
        with self._states.unchanged():
            self._make()

    def _make(self) -> None:
        """Prepares the plan and makes the first instance, within the memory limit."""
        limit_bytes, state_bytes = self._memory_limit, self._states.bytes if self._states else 0
        limit = None
        if limit_bytes is not None:
            states = f", of which states take {state_bytes}" if state_bytes else ""
            limit = Limit(limit_bytes - state_bytes, f"memory_limit={limit_bytes} bytes{states}")

        target = self.plan.target
        # Most programs of a plan for any size never run, so the first call makes their instance.
        is_lazy = isinstance(target, CudaTarget) and target.any_size

        def make(limit: Limit | None) -> tuple[Limit | None, PreparedPlan, Instance | None]:
            prepared = self._prepare(limit)
            if is_lazy:
                return limit, prepared, None
            return limit, prepared, self.instance(prepared.table, prepared.constants.address)

        with on_device(self.device):
            self._limit, self.prepared, instance = make_within(limit, make)
        self.use(self.prepared.table, self.prepared.constants, instance)

    def _donated_layout(self, inputs: Sequence[int]) -> DonatedLayout:
        block = lay_out(self.plan, self.prepared.workspaces, frozenset(inputs))
        return DonatedLayout(block.own_bytes, tuple(block.inputs[index] for index in inputs))

    def of_size(self, plan: Plan) -> CudaProgram:
        """The program of the same plan for other sizes, which uses again the kernels and constants
        that do not depend on sizes."""
        target = plan.target
        assert isinstance(target, CudaTarget) and target.any_size and self._lower is not None
        with told(), on_device(self.device):
            _, memory = cupy().cuda.runtime.memGetInfo()
            plan.check_fits(memory, self._machine.name)
            arguments = (self.device, self._machine, "heuristic", self._memory_limit, self._lower)
            return CudaProgram(plan, self._lower(plan), *arguments, self.prepared)

    def stored(self) -> StoredProgram:
        """Returns what a file holds of the program; UnsupportedError if it has states."""
        from .stored import store

        if self._states is not None:
            raise UnsupportedError(WHY_NO_STATES)
        constants = self.prepared.constants
        with on_device(self.device):
            return store(self.table, constants.copied(), machine_of(self.device))

    def details(self, node: Node) -> str:
        """One line on how a node is computed: algorithms, kernels and what they take."""
        with on_device(self.device):
            lines = [t.work.describe() for t in self.prepared.tasks if t.node is node]
        return "; ".join(dict.fromkeys(lines))

    def refusals(self, node: Node) -> dict[str, str]:
        """The generated kernels that cannot compute a node's contraction, each with the reason."""
        works = (done.work for done in self.prepared.tasks if done.node is node)
        problems = [work.built.problem for work in works if isinstance(work, ContractionWork)]
        return refusals(problems[0], machine_of(self.device)) if problems else {}

    def seconds_of_nodes(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> dict[Node, float]:
        """Computes the outputs and returns the seconds of each node, by events around its kernels.

        The kernels run once more for this, and states keep the values of the first run.
        """
        if sums_over_ranks(self.plan.graph):
            raise UnsupportedError(WHY_NO_TIMES)
        from .timing import seconds_of_tasks

        instance, _ = self._computed(inputs, None, in_place=False)
        unchanged = self._states.unchanged() if self._states else nullcontext()
        with unchanged, on_device(self.device), instance.lock:
            times = seconds_of_tasks(instance)
        total: dict[Node, float] = {}
        for done, seconds in zip(self.prepared.tasks, times, strict=True):
            total[done.node] = total.get(done.node, 0.0) + seconds
        return total

    def bound_seconds(self, operations: int, bytes: int, contraction: bool) -> float:
        """The least time in seconds for so many operations and bytes moved, by the device's
        figures."""
        target = self.plan.target
        assert isinstance(target, CudaTarget)
        device = target.device
        peak = device.contraction_operations if contraction else device.operations
        return max(operations / peak, bytes / device.bandwidth)
