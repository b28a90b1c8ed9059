"""Every node of a compiled graph beside its own operator, over what the kernels before it gave.

A network's rounding errors grow from layer to layer, so that a bound of its results says little.
A node's do not: it may differ from float64 by some roundings of its dtypes, whatever came before.
Programs are guarded, so that each value has memory of its own and is there after a run.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from minidnn.backends.cpu.backend import CpuProgram
from minidnn.backends.cpu.execution.bind import _Operands
from minidnn.executable import Executable
from minidnn.fusion.region import FusedSequence, Region
from minidnn.graph.ir import Constant, Graph, Node, Value
from minidnn.graph.types import rounded_to
from minidnn.runtime.arrays import from_bits, to_bits

#: How NumPy holds what it has no dtype for.
STORED = {"bfloat16": np.uint16, "bool": np.uint8}
#: Errors of a value's norm: of one that is rounded to bfloat16, or of whose parts some are, and of
#: others, which is less than one such rounding.
NARROW, WIDE = 2.0**-8, 2.0**-12
#: Sums that cancel have no size of their own.
LEAST = 1e-2

Values = dict[Value, np.ndarray]


def kept(*_: Any) -> None:
    """For ``observe``: what is compiled with it keeps the arrays of its constants."""


def computed(exe: Executable, inputs: Sequence[np.ndarray]) -> tuple[Values, list[np.ndarray]]:
    """Runs a guarded program: what its kernels gave, as far as it is there at the end, and its
    results."""
    program: Any = exe.program
    assert isinstance(program, CpuProgram) and program.guarded
    graph = program.plan.graph
    arrays = [_bits(value, array) for value, array in zip(graph.inputs, inputs, strict=True)]
    results = [np.empty(value.shape, _dtype(value)) for value in graph.outputs]
    found: Values = {}

    def run(bases: list[int]) -> None:
        program._program.run(bases)
        found.update(_read(program, bases))

    program._run(arrays, results, run)
    numbers = [from_bits(a, v.dtype) for a, v in zip(results, graph.outputs, strict=True)]
    return found, numbers


def in_float64(graph: Graph, known: Values, given: Values | None = None) -> Values:
    """All values of a graph, computed in float64 and rounded to their dtypes.

    known: inputs and states.
    given: what nodes read in place of what this gives for it.
    """
    made = dict(known)
    for node in graph.nodes:
        operands = [_operand(v, (given or {}).get(v, made.get(v))) for v in node.inputs]
        made.update(zip(node.outputs, _results(node, operands), strict=True))
    return made


def errors(exe: Executable, inputs: Sequence[np.ndarray]) -> tuple[list[str], list[np.ndarray]]:
    """What is wrong with the values of a guarded program, and its results."""
    graph = exe.graph
    known = states_and_inputs(exe, inputs)
    if not graph.updates:  # with pages behind all buffers, and then with pages before them
        computed(exe, inputs)
    found, results = computed(exe, inputs)
    expected = in_float64(graph, known, found)
    wrong = []
    for node in graph.nodes:
        for value in node.outputs:
            if value in found and (what := _away(node, value, found[value], expected[value])):
                operands = ", ".join(map(repr, node.inputs))
                wrong.append(f"{value!r} of {node.op!s:.200} of {operands}: {what}")
    return wrong, results


def states_and_inputs(exe: Executable, inputs: Sequence[np.ndarray]) -> Values:
    """The values that no node gives, as a run begins."""
    graph, store = exe.graph, exe.store
    known = {v: rounded(v, array) for v, array in zip(graph.inputs, inputs, strict=True)}
    if store is not None:
        known |= {state: rounded(state, np.array(store[state.name])) for state in graph.states}
    return known


def rounded(value: Value, array: np.ndarray) -> np.ndarray:
    """Numbers that a value can have."""
    if "float" not in value.dtype:
        return np.asarray(array)
    with np.errstate(over="ignore"):
        return rounded_to(value.dtype, np.asarray(array)).astype(np.float64)


def _operand(value: Value, array: np.ndarray | None) -> np.ndarray:
    array = value.data if isinstance(value, Constant) else array
    assert array is not None, value
    return rounded(value, array)


def _results(node: Node, operands: Sequence[np.ndarray]) -> list[np.ndarray]:
    op = node.op
    found: Sequence[np.ndarray]
    if isinstance(op, Region):
        body = in_float64(op.body, dict(zip(op.body.inputs, operands, strict=True)))
        found = [_operand(value, body.get(value)) for value in op.body.outputs]
        if isinstance(op, FusedSequence):
            found = op._added(found)
    else:
        with np.errstate(all="ignore"):
            found = op.reference(*operands)
    return [rounded(value, array) for value, array in zip(node.outputs, found, strict=True)]


def _away(node: Node, value: Value, actual: np.ndarray, expected: np.ndarray) -> str:
    """What is wrong with a value; "" if nothing is."""
    if "float" not in value.dtype:
        share = float((actual != expected).mean())
        return f"{share} of it is wrong" if share > 0.01 else ""
    finite = np.isfinite(expected)
    if not np.array_equal(actual[~finite], expected[~finite], equal_nan=True):
        return "it has other numbers where NaN or infinities should be"
    if not np.isfinite(actual[finite]).all():
        return "it is not finite where it should be"
    inner = node.op.body.values if isinstance(node.op, Region) else ()
    narrow = any(each.dtype == "bfloat16" for each in (value, *inner))
    with np.errstate(invalid="ignore"):
        away = float(np.linalg.norm((actual - expected)[finite]))
    size = max(float(np.linalg.norm(expected[finite])), LEAST)
    allowed = NARROW if narrow else WIDE
    return f"{away / size:.3g}, allowed is {allowed:.3g}" if not away <= allowed * size else ""


def _dtype(value: Value) -> np.dtype:
    return np.dtype(STORED.get(value.dtype, value.dtype))


def _bits(value: Value, array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(to_bits(array, value.dtype), _dtype(value))


def _read(program: CpuProgram, bases: Sequence[int]) -> Iterator[tuple[Value, np.ndarray]]:
    """The values in memory, but for those that each thread has for itself, and views of states,
    which the run has changed."""
    plan = program.plan
    workspace = max((task.workspace_bytes for task in program.tasks), default=0)
    operands = _Operands(plan, workspace, guarded=True)
    for value in [value for node in plan.graph.nodes for value in node.outputs]:
        operand = operands.slots.operand(value)
        if operand.thread_stride or plan.roots.get(value, value) in plan.graph.states:
            continue
        place = plan.annotations.within(value)
        address = bases[operand.slot] + operand.offset
        whole, block = place.buffer.type, plan.layout(value).block
        shape, blocked = whole.shape, value.type.rank == 4 and block > 1
        if blocked:
            shape = (shape[0], -(-shape[1] // block), *shape[2:], block)
        dtype = _dtype(value)
        count = int(np.prod(shape)) * dtype.itemsize
        array = np.frombuffer(ctypes.string_at(address, count), dtype).reshape(shape)
        if blocked:
            array = array.transpose(0, 1, 4, 2, 3).reshape(shape[0], -1, *shape[2:4])
        if value.type.rank > 1:
            array = array[:, place.channel : place.channel + value.shape[1]]
        numbers = from_bits(np.ascontiguousarray(array), value.dtype).reshape(value.shape)
        yield value, rounded(value, numbers)
