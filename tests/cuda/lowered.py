"""Plans for a GPU, run by the emulator: every contraction by one of our kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

import minidnn as md
from minidnn.backends.cuda.block import lay_out
from minidnn.backends.cuda.constants import Data
from minidnn.backends.cuda.contraction.config import CudaAlgorithm, prepare_of, workspace_bytes
from minidnn.backends.cuda.contraction.kernel import ContractionKernel
from minidnn.backends.cuda.contraction.problem import Address, ContractionProblem
from minidnn.backends.cuda.kernels import Launch
from minidnn.backends.cuda.lower import lower_plan
from minidnn.backends.cuda.target import CudaTarget
from minidnn.backends.cuda.task import InWorkspace, Pointer, Task
from minidnn.fusion.collapse import Strategy
from minidnn.graph.evaluate import evaluate
from minidnn.graph.ir import Constant, Graph, Node, State
from minidnn.graph.types import rounded_to
from minidnn.layers.build import to_graph
from minidnn.passes.infrastructure import Context
from minidnn.passes.pipeline import optimize
from minidnn.runtime.arrays import from_bits, to_bits
from minidnn.runtime.operand import Operand, resolved
from minidnn.runtime.plan import Plan, make_plan
from minidnn.runtime.slots import Slots

from .arrays import STORED
from .cards import H200
from .contractions import EPSILON, HALO, STREAM, draw_weights
from .emulator.run import Emulated

FEW = replace(H200, multiprocessors=3)
"""Few, so that a block makes several tiles."""

Kernel = tuple[str, Launch, list[int]]
"""The form's core, a launch, and the numbers that it takes."""


def planned(
    network: md.Layer | Graph,
    shape: tuple[int, ...],
    precision: str,
    states: bool = False,
    any_size: bool = False,
) -> Plan:
    """The plan of a network whose parameters are constants, or states, or of a graph; with kernels
    of any size if they are asked for."""
    strategy: Strategy = "contractions" if any_size else "model"
    if isinstance(network, Graph):
        return planned_graph(network, precision, False, strategy, any_size)
    graph = to_graph(network, shape, states=states)
    return planned_graph(graph, precision, states, strategy, any_size)


def planned_graph(
    graph: Graph,
    precision: str,
    states: bool = False,
    strategy: Strategy = "model",
    any_size: bool = False,
) -> Plan:
    target = CudaTarget(H200.device(precision), precision, any_size)
    context = Context(target, strategy, stored=states)
    return make_plan(optimize(graph, context, verify=True), context)


def planned_mixed(graph: Graph, precision: str) -> Plan:
    """That of a graph that says itself which values are in half precision."""
    context = Context(CudaTarget(H200.device(precision), precision), mixed=True)
    return make_plan(optimize(graph, context, verify=True), context)


def problems_of(
    network: md.Layer, shape: tuple[int, ...], precision: str
) -> list[ContractionProblem]:
    return graph_problems(to_graph(network, shape), precision)


def graph_problems(graph: Graph, precision: str) -> list[ContractionProblem]:
    tasks = lower_plan(planned_graph(graph, precision), H200, precision == "tf32")
    return [task.work for task in tasks if isinstance(task.work, ContractionProblem)]


def by_choice(kernel: ContractionKernel, problem: ContractionProblem, choice: int) -> Kernel:
    (launch,) = kernel.launches(problem, choice, FEW)
    return kernel.name, launch, kernel.numbers(problem, choice, FEW)


def by_halo(problem: ContractionProblem) -> Kernel:
    assert HALO.why_not(problem, H200) is None
    return by_choice(HALO, problem, HALO.choices(problem, H200)[0])


def by_stream(problem: ContractionProblem, choice: int = 0) -> Kernel:
    assert STREAM.why_not(problem, H200) is None
    return by_choice(STREAM, problem, STREAM.choices(problem, H200)[choice])


class EmulatedProgram:
    """A plan, its memory full of NaN before each run, laid out as that of an instance."""

    def __init__(
        self,
        network: md.Layer | Graph,
        shape: tuple[int, ...],
        precision: str,
        kernel: Callable[[ContractionProblem], Kernel],
        folder: Path,
        states: bool = False,
        any_size: bool = False,
    ) -> None:
        self.plan = planned(network, shape, precision, states, any_size)
        self.states = {s: _aligned(to_bits(s.data, s.dtype)) for s in self.plan.graph.states}
        self.tasks = lower_plan(self.plan, H200, precision == "tf32", any_size=any_size)
        self.kernels: dict[ContractionProblem, tuple[Kernel, Launch | None]] = {}
        launches = [task.work for task in self.tasks if isinstance(task.work, Launch)]
        workspaces: dict[Node, int] = {}
        for task in self.tasks:
            workspaces[task.node] = task.workspace_bytes
            assert isinstance(task.work, Launch) or not task.workspace_bytes
            if isinstance(task.work, ContractionProblem):
                own = kernel(task.work)
                algorithm = CudaAlgorithm(own[0], len(task.work.stages))
                before = prepare_of(task.work, algorithm, H200)
                workspaces[task.node] = workspace_bytes(task.work, algorithm, 0)
                self.kernels[task.work] = own, before
                launches += [one for one in (own[1], before) if one is not None]
        self.block = lay_out(self.plan, workspaces)
        lies = {value: Operand(0, offset) for value, offset in self.plan.arena.offsets.items()}
        self.slots = Slots(self.plan, lies, 1)
        self._emulated = Emulated([each.source for each in launches], folder, busy=True)
        self._constants: dict[tuple[object, ...], np.ndarray] = {}

    def __call__(self, x: np.ndarray, backwards: bool = False) -> np.ndarray:
        """The only output of the only input."""
        (result,) = self.all([x], backwards)
        return result

    def all(self, inputs: Sequence[np.ndarray], backwards: bool = False) -> list[np.ndarray]:
        """All outputs."""
        plan, block = self.plan, self.block
        memory = _memory(block.own_bytes)
        begin = memory.ctypes.data
        for x, value, source in zip(inputs, plan.graph.inputs, block.inputs, strict=True):
            bits = np.frombuffer(to_bits(x, value.dtype).tobytes(), np.uint8)
            memory[source : source + bits.size] = bits
        bases = [begin, *(begin + place for place in (*block.inputs, *block.outputs))]
        for task in self.tasks:
            workspace = memory[block.workspaces.get(task.node, 0) :]
            self._run(task, bases, memory, workspace, backwards)
        found = []
        for i, (out, place) in enumerate(zip(plan.graph.outputs, block.outputs, strict=True)):
            assert self.slots.source(i) is None
            values = memory[place : place + out.type.bytes].view(STORED[out.dtype])
            found.append(from_bits(values.reshape(out.shape), out.dtype).copy())
        return found

    def _run(
        self,
        task: Task,
        bases: list[int],
        memory: np.ndarray,
        workspace: np.ndarray,
        backwards: bool,
    ) -> None:
        pointers = [
            workspace if isinstance(p, InWorkspace) else self._array(p, bases, memory)
            for p in task.pointers
        ]
        if isinstance(task.work, Launch):
            self._emulated.launch(task.work, pointers, backwards)
            return
        problem = task.work
        assert isinstance(problem, ContractionProblem)
        (_, launch, sizes), before = self.kernels[problem]
        x, w, y, *rest = pointers
        if before is not None:
            self._emulated.launch(before, [x, workspace], backwards)
            x = workspace
        numbers = [np.array([size]) for size in sizes]
        self._emulated.launch(launch, [x, w, *rest, y, *numbers], backwards)

    def _array(self, pointer: Pointer, bases: list[int], memory: np.ndarray) -> np.ndarray:
        """What lies behind a pointer: memory from there on, or the data."""
        if isinstance(pointer, Data):
            if pointer.key not in self._constants:
                self._constants[pointer.key] = _aligned(to_bits(pointer.make(), pointer.dtype))
            return self._constants[pointer.key]
        assert not isinstance(pointer, InWorkspace)
        place = pointer if isinstance(pointer, Address) else Address(pointer, 0)
        root = self.plan.roots.get(place.value, place.value)
        assert not isinstance(root, Constant)
        if isinstance(root, State):
            return self.states[root]
        (address,) = resolved([self.slots.operand(place.value) + place.bytes], bases)
        return memory[address - memory.ctypes.data :]


def _memory(size: int) -> np.ndarray:
    """Bytes of NaN, aligned to 256."""
    whole = np.full(size + 512, 0xFF, np.uint8)
    shift = -whole.ctypes.data % 256
    return whole[shift : shift + size + 256]


def _aligned(array: np.ndarray) -> np.ndarray:
    memory = _memory(array.nbytes)
    memory[: array.nbytes] = np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)
    return memory


def check_numbers(
    network: md.Layer,
    shape: tuple[int, ...],
    precision: str,
    kernel: Callable[[ContractionProblem], Kernel],
    folder: Path,
) -> None:
    """The emulated program is as exact as the precision allows, and gives the same bits whichever
    threads come first."""
    random = np.random.default_rng(0)
    draw_weights(network, random)
    x = rounded_to(precision, random.standard_normal(shape).astype(np.float32)).astype(np.float32)
    (expected,) = evaluate(to_graph(network, shape), [x], "float64")
    run = EmulatedProgram(network, shape, precision, kernel, folder)
    y = run(x)
    assert np.abs(y - expected).max() <= 6 * EPSILON[precision] * np.abs(expected).max()
    np.testing.assert_array_equal(run(x, backwards=True), y)
