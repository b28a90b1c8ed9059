"""Runs printed contractions on guarded buffers, and says what they should give."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from minidnn.backends.cpu.compilers.library import NativeFunction
from minidnn.backends.cpu.contraction import print_contraction
from minidnn.backends.cpu.contraction.algorithms import ALGORITHMS
from minidnn.backends.cpu.contraction.choose import Algorithm
from minidnn.backends.cpu.execution.buffers import AlignedMemory, Guard
from minidnn.backends.cpu.execution.program import BoundKernel, NativeProgram, shared_pool
from minidnn.backends.cpu.isa import Isa
from minidnn.backends.cpu.stage import PrintedContraction, Workspace
from minidnn.backends.cpu.tensor import Tensor, tensor_of
from minidnn.fusion.operations import operation_of
from minidnn.fusion.region import Parts
from minidnn.graph.ir import Constant, Node, Value
from minidnn.graph.layout import PLANAR, blocked
from minidnn.graph.operator import Elementwise, Operator
from minidnn.graph.operators import Conv2d, Linear
from minidnn.graph.types import TensorType
from minidnn.runtime.operand import Operand
from tests.cpu.warming import compile_together

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Case:
    """A contraction with what it absorbed.

    ``before`` and ``after`` are element-wise operators; an operand beside the chain is a vector
    over channels, or a tensor of the result's shape.  ``layouts`` says whether source and result
    are blocked ("b") or planar ("p"); ``slack`` channels lie between images, as in a slice.
    """

    name: str
    shape: Shape
    outputs: int
    kernel: tuple[int, int] = (1, 1)
    op: Operator = field(default_factory=Conv2d)
    bias: bool = True
    before: tuple[Elementwise, ...] = ()
    after: tuple[Elementwise, ...] = ()
    layouts: str = "bb"
    slack: int = 0
    repeats: Shape | None = None
    algorithm: str = "direct"

    def __str__(self) -> str:
        return self.name


@dataclass
class Built:
    """A case as parts, with its kernel and how its tensors lie."""

    case: Case
    parts: Parts
    kernel: PrintedContraction
    tensors: list[Tensor]
    values: list[Value]


def constant(rng: np.random.Generator, *shape: int, scale: float = 1.0) -> Constant:
    data = (rng.standard_normal(shape) * scale).astype(np.float32)
    return Constant(TensorType(shape), "constant", data)


def build(case: Case, isa: Isa, threads: int = 1) -> Built:
    rng = np.random.default_rng(len(case.name))
    source = Value(TensorType(case.shape), "x")
    before, value = _chain(case.before, source, rng, None)
    if isinstance(case.op, Linear):
        depth = case.shape[-1]
        weight = constant(rng, case.outputs, depth, scale=depth**-0.5)
    else:
        assert isinstance(case.op, Conv2d)
        inputs = case.shape[1] // case.op.groups
        scale = (inputs * case.kernel[0] * case.kernel[1]) ** -0.5
        weight = constant(rng, case.outputs, inputs, *case.kernel, scale=scale)
    bias = [constant(rng, case.outputs)] if case.bias else []
    node = Node(case.op, [value, weight, *bias], "conv")
    after, _ = _chain(case.after, node.output, rng, case.repeats)
    parts = Parts(
        node, tuple(operation_of(n, 0) for n in before), tuple(operation_of(n, 0) for n in after)
    )
    values = [source, *parts.others, parts.result]
    layouts = [case.layouts[0]] + [case.layouts[1]] * (len(values) - 1)
    tensors = []
    for value, layout in zip(values, layouts, strict=True):
        shape = value.type.shape
        wide = shape if len(shape) < 2 else (shape[0], shape[1] + case.slack, *shape[2:])
        chosen = blocked(isa.lanes) if layout == "b" else PLANAR
        tensors.append(tensor_of(value.type, chosen, TensorType(wide)))
    kernel = print_contraction(
        parts,
        source.type.plane[0],
        tensors[0],
        tuple(tensors[1:-1]),
        tensors[-1],
        isa,
        threads,
        algorithm=algorithm_named(case.algorithm),
    )
    return Built(case, parts, kernel, tensors, values)


def algorithm_named(name: str) -> Algorithm:
    (found,) = (a for a in ALGORITHMS if a.name == name)
    return found


def _chain(
    operators: Sequence[Elementwise], value: Value, rng: np.random.Generator, repeats: Shape | None
) -> tuple[list[Node], Value]:
    nodes: list[Node] = []
    for operator in operators:
        operands = [value]
        for index in range(1, operator.arity):
            vector = index >= operator.arity - operator.channel_count
            if vector:
                operands.append(constant(rng, value.shape[1]))
            else:
                operands.append(Value(TensorType(repeats or value.shape), f"z{len(nodes)}"))
        nodes.append(Node(operator, operands, f"n{len(nodes)}"))
        value = nodes[-1].output
    return nodes, value


def compile_all(built: Sequence[Built], isa: Isa) -> list[list[NativeFunction]]:
    """The kernels of the stages of each."""
    kernels = iter(compile_together([s.source for b in built for s in b.kernel.stages], isa))
    return [[next(kernels) for _ in b.kernel.stages] for b in built]


def inputs_of(built: Built, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(v.shape).astype(np.float32) for v in built.values[:-1]]


def reference(built: Built, inputs: Sequence[np.ndarray]) -> np.ndarray:
    """In float64."""
    parts = built.parts
    known = {v: x.astype(np.float64) for v, x in zip(built.values[:-1], inputs, strict=True)}
    nodes = [o.output.producer for o in parts.prologue] + [parts.node]
    for node in nodes + [o.output.producer for o in parts.epilogue]:
        assert node is not None
        operands = [
            v.data.astype(np.float64) if isinstance(v, Constant) else known[v] for v in node.inputs
        ]
        known[node.output] = node.op.reference(*operands)[0]
    return known[parts.result]


def place(value: np.ndarray, tensor: Tensor, guard: Guard, fill: float = np.nan) -> AlignedMemory:
    """A buffer that ends or begins at a guard page, and holds a value as ``tensor`` says."""
    view = _plane(value)
    size = (view.shape[0] - 1) * tensor.image + tensor.blocks * tensor.plane
    buffer = AlignedMemory(4 * size, guard)
    flat = buffer.array("f4", (size,))
    flat[:] = fill
    flat[_index(view.shape, tensor)] = view
    return buffer


def read(buffer: AlignedMemory, shape: Shape, tensor: Tensor) -> np.ndarray:
    flat = buffer.array("f4", (buffer.size // 4,))
    plane = _plane(np.empty(shape, np.float32)).shape
    return np.array(flat[_index(plane, tensor)]).reshape(shape)


def _plane(value: np.ndarray) -> np.ndarray:
    return value.reshape(TensorType(value.shape).plane)


def _index(shape: tuple[int, ...], tensor: Tensor) -> np.ndarray:
    n, c, y, x = np.ogrid[tuple(slice(size) for size in shape)]
    block = tensor.block
    return (
        n * tensor.image + c // block * tensor.plane + (y * tensor.columns + x) * block + c % block
    )


def run(
    built: Built,
    kernels: Sequence[NativeFunction],
    inputs: Sequence[np.ndarray],
    threads: int = 1,
    guard: Guard = Guard.END,
    grain: int | None = None,
) -> np.ndarray:
    """The result, computed on guarded buffers; fails if anything beside the result is written."""
    buffers = [place(x, t, guard) for x, t in zip(inputs, built.tensors, strict=False)]
    shape = built.values[-1].shape
    buffers.append(place(np.full(shape, np.nan, np.float32), built.tensors[-1], guard))
    buffers.append(AlignedMemory(built.kernel.workspace_bytes, guard))
    workspace = len(buffers) - 1
    regions = []
    for stage, kernel in zip(built.kernel.stages, kernels, strict=True):
        operands = []
        for pointer in stage.pointers:
            if isinstance(pointer, int):
                operands.append(Operand(pointer))
            elif isinstance(pointer, Workspace):
                operands.append(Operand(workspace, pointer.offset))
            else:
                operands.append(Operand(len(buffers)))
                data = pointer()
                assert data.dtype == np.float32 and data.ndim == 1
                buffers.append(AlignedMemory(data.nbytes, guard))
                buffers[-1].array("f4", data.shape)[:] = data
        regions.append(BoundKernel(kernel, tuple(operands), stage.tasks, grain or stage.grain))
    scratch = max(stage.scratch_bytes for stage in built.kernel.stages)
    program = NativeProgram(regions, len(buffers), scratch, shared_pool(threads), guarded=True)
    before = [b.array("u4", (b.size // 4,)).copy() for b in buffers]
    program.run([buffer.address for buffer in buffers])
    place_of_result = len(inputs)
    for i, buffer in enumerate(buffers):
        assert buffer.stray_write() is None, f"operand {i}: written beside it"
        now = buffer.array("u4", (buffer.size // 4,))
        if i not in (place_of_result, workspace):
            assert np.array_equal(now, before[i]), f"operand {i} was changed"
    _check_untouched(buffers[place_of_result], before[place_of_result], shape, built.tensors[-1])
    return read(buffers[place_of_result], shape, built.tensors[-1])


def _check_untouched(
    buffer: AlignedMemory, before: np.ndarray, shape: Shape, tensor: Tensor
) -> None:
    """Only the value's own elements, and the lanes that fill up its last block, were written."""
    own = np.zeros(buffer.size // 4, bool)
    plane = TensorType(shape).plane
    filled = -(-plane[1] // tensor.block) * tensor.block
    own[_index((plane[0], filled, *plane[2:]), tensor)] = True
    now = buffer.array("u4", (buffer.size // 4,))
    assert np.array_equal(now[~own], before[~own]), "written beside the result"


def largest_error(result: np.ndarray, wanted: np.ndarray) -> float:
    """The largest error over the largest value."""
    if not wanted.size:
        return 0.0
    return float(np.abs(result - wanted).max() / max(1e-30, np.abs(wanted).max()))
