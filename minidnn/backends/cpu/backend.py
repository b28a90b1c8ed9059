"""The CPU backend: plans compiled with ISPC, run by the native runner."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from typing import Any

from minidnn._cached_property import cached_property

from ...cache import building_forbidden
from ...errors import DeviceError, GraphError, UnsupportedError
from ...fusion.region import FusedContraction, FusedSequence, parts_of
from ...fusion.region import Region as FusedRegion
from ...fusion.target import Target
from ...graph import operators as ops
from ...graph.index_map import Indexed
from ...graph.ir import Node
from ...graph.operator import Contraction, Elementwise, Reshaping, Windowed
from ...graph.types import INT8_DTYPES
from ...runtime.agreement import WHY_NO_TIMES, agree_on_sums, sums_over_ranks
from ...runtime.cores import usable_cores, usable_memory
from ...runtime.plan import Plan
from ...runtime.program import WHY_NO_STATES, StoredProgram
from ...runtime.store import Store
from ..codegen.kernel import KernelSource
from ..options import (
    accuracy_option,
    any_size_option,
    check_options,
    memory_limit_option,
    tune_option,
)
from .compilers.kernels import compile_kernels
from .compilers.library import NativeFunction
from .compilers.toolchain import why_unusable
from .contraction import multiplies_int8, refusals, why_unsupported
from .execution.bind import Task, bind
from .execution.buffers import AlignedMemory, Array, Guard
from .execution.native import runner_kernel, why_no_runner
from .execution.packing import PackedConstant, PackedConstants
from .execution.program import HostSum, TableProgram
from .execution.stored import store
from .isa import Isa, best_isa, bfloat16_isa, isa_named, usable_isa, why_no_bfloat16, with_int8
from .lower import lower_plan
from .machine import describe_machine, measured_rates
from .sequences import sequence
from .target import CpuTarget, device_for
from .tuning import Build, tuned_tasks

#: Operators with kernels for floats.
_FLOAT: tuple[type, ...] = (
    *(FusedRegion, Contraction, Windowed, ops.Softmax, ops.LogSoftmax, ops.AdaptiveAvgPool2d),
    *(
        ops.Conv2dInputGradient,
        ops.Conv2dWeightGradient,
        ops.GroupNorm,
        ops.LayerNorm,
        ops.Reorder,
        ops.SumOverRanks,
    ),
)
#: Operators with kernels for every dtype of values.
_ANY = (
    *(Elementwise, Reshaping, Indexed),
    *(ops.ArgMax, ops.Concat, ops.Gather, ops.MatMul, ops.RandomDrop, ops.Reduce, ops.TakeChannels),
)
#: Operators of ``_FLOAT`` that compute with integers as well, as far as their own checks allow.
_WITH_BYTES = (Contraction, FusedContraction, FusedSequence, ops.Reorder, Windowed)
_OTHERS = ("int32", "int64", *INT8_DTYPES, "bool")
#: Operators that add one element after the other, and take no bfloat16: sums would lose digits.
_IN_FULL = (ops.ScatterAdd,)


class CpuBackend:
    """Generated ISPC on the processor's vector units."""

    name = "cpu"
    keeps_states = True
    uses_host_memory = True
    interface = "float32"
    #: The rounding error of Winograd's F(4x4) is small in one result, but training steps add it up.
    training_options: Mapping[str, Any] = {"accuracy": "direct"}
    any_size_options: Mapping[str, Any] = {"any_size": True}

    def unavailable(self) -> str | None:
        try:
            best_isa()
        except DeviceError as error:
            return str(error)
        if (cause := building_forbidden()) is None:
            return why_unusable()
        reason = why_no_runner()
        return None if reason is None else f"{reason}, and {cause} forbids to compile it"

    def precisions(self) -> Sequence[str]:
        return ("float32", "bfloat16")

    def why_not_in(self, precision: str) -> str | None:
        """Why this processor does not compute in one of the precisions; None if it does."""
        return why_no_bfloat16(best_isa()) if precision == "bfloat16" else None

    def target(self, precision: str, options: Mapping[str, Any]) -> Target:
        isa, threads = _isa(options, isa_named), _threads(options)
        if precision == "bfloat16":
            isa = bfloat16_isa(isa)
        device = device_for(isa, threads)
        accuracy, any_size = _accuracy(options, precision), any_size_option(options)
        return CpuTarget(device, isa.lanes, accuracy, precision, any_size)

    def unsupported(self, node: Node, precision: str) -> str | None:
        if not isinstance(node.op, (*_FLOAT, *_ANY, *_IN_FULL)):
            return f"there is no kernel for {node.op.name}"
        floats = tuple(dict.fromkeys(("float32", precision)))
        valid = (*floats, *_OTHERS) if isinstance(node.op, (*_ANY, *_WITH_BYTES)) else floats
        valid = ("float32", *_OTHERS) if isinstance(node.op, _IN_FULL) else valid
        for value in (*node.inputs, *node.outputs):
            if value.dtype not in valid:
                return f"{value!r} is none of {', '.join(valid)}"
        if isinstance(node.op, (Contraction, FusedContraction)):
            return why_unsupported(parts_of(node))
        if isinstance(node.op, FusedSequence):
            return sequence.why_unsupported(node.op)
        return None

    def compile(self, plan: Plan, precision: str, options: Mapping[str, Any]) -> CpuProgram:
        valid = ("threads", "isa", "accuracy", "guarded", "memory_limit", "tune", "any_size")
        check_options("cpu", options, valid)
        guarded = options.get("guarded", False)
        if type(guarded) is not bool:
            raise GraphError(f"guarded={guarded!r}; valid are True (the debug mode) and False")
        accuracy = _accuracy(options, precision)
        isa, threads = _isa(options, usable_isa), _threads(options)
        if precision == "bfloat16":
            isa = bfloat16_isa(isa)
        if multiplies_int8(plan.graph):
            isa = with_int8(isa)
        tune = tune_option(options, "heuristic")
        plan.check_limit(memory_limit_option(options))
        plan.check_fits(usable_memory(), "this process")

        if tune != "heuristic" and sums_over_ranks(plan.graph):
            raise UnsupportedError(
                f"tune={tune!r}: to time programs, each rank would run its own, and they wait for "
                "each other; valid with sums over ranks is 'heuristic'"
            )
        agree_on_sums(plan.graph)
        if tune == "heuristic":
            tasks = lower_plan(plan, isa, threads, accuracy, any_size=any_size_option(options))
        else:
            build = builder(plan, isa, threads, store=Store())
            tasks = tuned_tasks(plan, isa, threads, accuracy, tune, build)
        return builder(plan, isa, threads, guarded)(tasks)


def _accuracy(options: Mapping[str, Any], precision: str) -> str:
    accuracy = accuracy_option(options)
    if accuracy == "high" and precision == "bfloat16":
        raise GraphError(
            "accuracy='high' with precision='bfloat16': no algorithm rounds bfloat16 less; valid "
            "are 'normal' and 'direct', or precision='float32'"
        )
    return accuracy


def builder(
    plan: Plan, isa: Isa, threads: int, guarded: bool = False, store: Store | None = None
) -> Build[CpuProgram]:
    """Returns a function that makes programs of a plan from its tasks.

    States are those of ``store``, if it is given.  Kernels of ``other`` are not compiled again.
    """

    def build(tasks: Sequence[Task], other: CpuProgram | None = None) -> CpuProgram:
        sources = [task.source for task in tasks if isinstance(task.source, KernelSource)]
        known = {} if other is None else other.kernels
        missing = [source for source in sources if source.name not in known]
        compiled = dict(known)
        for source, function in zip(missing, compile_kernels(missing, isa), strict=True):
            compiled[source.name] = function
        kernels: list[NativeFunction] = []
        for task in tasks:
            if isinstance(task.source, str):
                kernels.append(runner_kernel(task.source))
            elif isinstance(task.source, HostSum):
                kernels.append(task.source.function())
            else:
                kernels.append(compiled[task.source.name])
        program = CpuProgram(plan, tasks, kernels, isa, threads, guarded, other)
        if store is not None:
            program.attach(store)
        return program

    return build


def _isa(options: Mapping[str, Any], named: Callable[[str], Isa]) -> Isa:
    return named(options["isa"]) if options.get("isa") is not None else best_isa()


def _threads(options: Mapping[str, Any]) -> int:
    threads = options.get("threads")
    if threads is None:
        return usable_cores()
    if type(threads) is not int or not 1 <= threads <= 1024:
        raise GraphError(f"threads={threads!r}; valid is an int from 1 to 1024")
    return threads


class CpuProgram(TableProgram):
    """A plan as a table of kernel launches.

    The constants are packed when the program is made; those of the graph are not needed any more.

    When ``guarded`` (the debug mode) every run has fresh buffers between guard pages, those of
    inputs and outputs included: an access past the end of a buffer ends the process, in every other
    run one before its start; memory that was never written is NaN; and GraphError names a buffer
    around which something was written, or an input that was overwritten.

    A program may share constants of ``other``, a program of the same plan, as far as the same
    functions pack them.
    """

    def __init__(
        self,
        plan: Plan,
        tasks: Sequence[Task],
        kernels: Sequence[NativeFunction],
        isa: Isa,
        threads: int,
        guarded: bool,
        other: CpuProgram | None = None,
    ) -> None:
        self.plan = plan
        self.tasks = tuple(tasks)
        self.isa = isa
        #: The kernels that were compiled, by name.
        self.kernels = {
            task.source.name: kernel
            for task, kernel in zip(tasks, kernels, strict=True)
            if isinstance(task.source, KernelSource)
        }
        packed = None if other is None else other.constants
        self.constants: PackedConstants = PackedConstants(threads, guarded, packed)
        table, self._names = bind(plan, tasks, kernels, self.constants, guarded)
        self.constants.finish()
        super().__init__(table, threads, guarded=guarded)
        #: The end of all buffers that touches a guard page, which changes from run to run.
        self._guards = cycle((Guard.END, Guard.START))

    def attach(self, store: Store) -> None:
        self.use_states(list(store.hold(self.plan.graph.states).values()), store.lock)

    def of_size(self, plan: Plan) -> CpuProgram:
        """The program of the same plan for other sizes, with the same kernels and constants as far
        as these serve any size."""
        target = plan.target
        assert isinstance(target, CpuTarget) and target.any_size
        plan.check_fits(usable_memory(), "this process")
        tasks = lower_plan(plan, self.isa, self.threads, target.accuracy, any_size=True)
        return builder(plan, self.isa, self.threads, self.guarded)(tasks, self)

    @property
    def constant_bytes(self) -> int:
        """Bytes of its packed constants, including those that other programs share."""
        return self.constants.bytes

    @property
    def shared_constants(self) -> dict[PackedConstant, int]:
        """The bytes of each of its packed constants."""
        return {constant: constant.bytes for constant in self.constants.all}

    def stored(self) -> StoredProgram:
        """The program as a file has it; UnsupportedError if it is guarded or has states."""
        if self.guarded:
            raise UnsupportedError(
                "what is compiled to be debugged (guarded=True) cannot be saved compiled"
            )
        if self.table.states:
            raise UnsupportedError(WHY_NO_STATES)
        packed = [(constant.address, constant.array()) for constant in self.constants.all]
        return store(self.table, packed, self.isa.name, self.threads)

    def seconds(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Array:
        """Computes the outputs; returns the seconds of each of :attr:`tasks`."""
        times: list[Array] = []
        self._run(inputs, outputs, lambda bases: times.append(self._program.run_timed(bases)))
        return times[0]

    def seconds_of_nodes(
        self, inputs: Sequence[Array], outputs: Sequence[Array]
    ) -> dict[Node, float]:
        """Computes the outputs; returns the seconds of each node, of all its kernels together."""
        if sums_over_ranks(self.plan.graph):
            raise UnsupportedError(WHY_NO_TIMES)
        total: dict[Node, float] = {}
        for task, seconds in zip(self.tasks, self.seconds(inputs, outputs), strict=True):
            total[task.node] = total.get(task.node, 0.0) + float(seconds)
        return total

    def details(self, node: Node) -> str:
        """The name of a contraction's algorithm; empty for other nodes."""
        task = self._contractions.get(node)
        return "" if task is None or task.choice is None else task.choice.algorithm.name

    def refusals(self, node: Node) -> dict[str, str]:
        """The algorithms that cannot compute a contraction, and the reason of each."""
        task = self._contractions.get(node)
        return {} if task is None or task.question is None else refusals(task.question)

    def spared_operations(self, node: Node) -> int:
        """The operations of a contraction's definition that its algorithm saves."""
        task = self._contractions.get(node)
        if task is None or task.choice is None or task.question is None:
            return 0
        computed = task.choice.algorithm.operations(task.choice.scheme)
        return task.question.images * (task.question.problem.operations - computed)

    @cached_property
    def _contractions(self) -> dict[Node, Task]:
        """The first kernel of each contraction."""
        return {task.node: task for task in reversed(self.tasks) if task.choice is not None}

    def bound_seconds(self, operations: int, bytes: int, contraction: bool) -> float:
        """The least time that this machine's measured rates allow, on this program's threads.

        Operations of a contraction are multiply-adds; of others each is an instruction.  Bytes that
        fit the L2 caches are read at their rate, others at that of memory.
        """
        machine, rates = describe_machine(), measured_rates()
        threads = min(self.threads, machine.cores)
        has_dot_product = contraction and self.isa.bfloat16_products
        name = self.isa.name if has_dot_product else self.isa.extends or self.isa.name
        peak = rates.peak(name, threads) / (1 if contraction else 2)
        fits_l2 = bytes <= machine.caches.l2 * threads
        rate = rates.l2 * threads / machine.cores if fits_l2 else rates.copy
        return max(operations / peak, bytes / rate)

    def _run(
        self,
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        run: Callable[[list[int]], Any],
    ) -> None:
        if self.guarded:
            with self._lock:
                self._run_guarded(inputs, outputs, run)
        else:
            super()._run(inputs, outputs, run)

    def _run_guarded(
        self,
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        run: Callable[[list[int]], Any],
    ) -> None:
        caller_arrays = (*inputs, *outputs, *self._states)
        guard = next(self._guards)
        memory = [AlignedMemory(array.nbytes, guard) for array in caller_arrays]
        arrays = [b.array(a.dtype, a.shape) for b, a in zip(memory, caller_arrays, strict=True)]
        written = range(len(inputs), len(inputs) + len(outputs))
        for i, (guarded_array, array) in enumerate(zip(arrays, caller_arrays, strict=True)):
            if i not in written:
                guarded_array[...] = array
        buffers = [AlignedMemory(size, guard) for size in self._sizes] + memory
        run([*(buffer.address for buffer in buffers), self._constants_at])
        buffers += [constant.memory for constant in self.constants.all]
        names = self._names + ["the constants"] * (len(buffers) - len(self._names))
        for name, buffer in zip(names, buffers, strict=True):
            if (at := buffer.stray_write()) is not None:
                raise GraphError(
                    f"a kernel wrote outside the {buffer.size} bytes of {name}, at {at}"
                )
        for value, guarded_array, array in zip(
            self.plan.graph.inputs, arrays, inputs, strict=False
        ):
            if guarded_array.tobytes() != array.tobytes():
                raise GraphError(f"a kernel wrote to the input {value.name!r}")
        for guarded_array, array in zip(
            arrays[len(inputs) :], caller_arrays[len(inputs) :], strict=True
        ):
            array[...] = guarded_array
        self._finish(inputs, outputs)
