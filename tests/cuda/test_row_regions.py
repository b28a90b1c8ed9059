"""Regions over rows: their kernels in the emulator, and what they take of a card."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from minidnn.backends.cuda.functions import compile_kernels
from minidnn.backends.cuda.kernels import Launch
from minidnn.backends.cuda.regions import tasks_of_rows
from minidnn.backends.cuda.row_region import why_not_rows
from minidnn.backends.cuda.row_tiles import RowTile, tiles
from minidnn.backends.cuda.target import CudaTarget
from minidnn.backends.cuda.task import InWorkspace, Task
from minidnn.fusion.rows import FusedRows
from minidnn.graph import operators as ops
from minidnn.graph.evaluate import evaluate
from minidnn.graph.ir import Graph, Node, Value
from minidnn.graph.trace import apply, tracing
from minidnn.graph.types import TensorType
from minidnn.passes.fuse_rows import FUSE_ROWS
from minidnn.passes.infrastructure import Context
from minidnn.runtime.arrays import from_bits, to_bits
from tests.cuda.cards import A100, H200

from .arrays import STORED
from .emulator.run import Emulated, guarded
from .row_graphs import CASES, RowCase, layer_norm_gradient

EPSILON = {"float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
SHAPES = (
    *((1, 2), (3, 7), (33, 10), (5, 1, 3, 32), (130, 96), (2, 3, 100), (9, 197), (70, 384)),
    *((2, 2, 2, 768), (3, 1000), (2, 2050), (1, 4101)),
)
RUNS = [
    (case, shape, dtype)
    for case in CASES
    for i, shape in enumerate(SHAPES)
    for dtype in (("float32", "bfloat16", "float16")[:: 1 if i % 3 == 0 else 2])
    if dtype == "float32" or case.halves
]


def region_of(graph: Graph) -> Node:
    """The one node that passes leave of a graph, with views around it."""
    found = FUSE_ROWS.run(graph, Context(CudaTarget()))
    (node,) = (node for node in found.nodes if isinstance(node.op, FusedRows))
    return node


def tasks_of(graph: Graph, tile: RowTile | None = None) -> tuple[Node, Sequence[Task]]:
    node = region_of(graph)
    assert isinstance(node.op, FusedRows)
    return node, tasks_of_rows(node, node.op, node.inputs, node.outputs, tile)


def run(
    tasks: Sequence[Task],
    kernels: Emulated,
    given: dict[Value, np.ndarray],
    node: Node,
    backwards: bool = False,
) -> list[np.ndarray]:
    """The results of a region's tasks, around which nothing may be written."""
    memory = {v: to_bits(x, v.dtype).ravel() for v, x in given.items()}
    wholes = []
    for value in node.outputs:
        whole, memory[value] = guarded(value.type.size, STORED[value.dtype])
        wholes.append((whole, memory[value]))
    room = np.full(tasks[0].workspace_bytes // 4 + 1, np.nan, np.float32)
    for task in tasks:
        assert isinstance(task.work, Launch)
        pointers = [room if isinstance(p, InWorkspace) else memory[p] for p in task.pointers]  # type: ignore[index]
        kernels.launch(task.work, pointers, backwards)
    return [from_bits(memory[v].reshape(v.shape), v.dtype) for v in node.outputs]


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Emulated:
    tasks = [task for case, shape, dtype in RUNS for task in tasks_of(case.graph(shape, dtype))[1]]
    sources = [task.work.source for task in tasks if isinstance(task.work, Launch)]
    return Emulated(sources, tmp_path_factory.mktemp("rows"))


@pytest.mark.sampled(4)
@pytest.mark.race
@pytest.mark.parametrize(("case", "shape", "dtype"), RUNS, ids=str)
def test_results_are_those_of_the_graph(
    case: RowCase, shape: tuple[int, ...], dtype: str, kernels: Emulated
) -> None:
    graph = case.graph(shape, dtype)
    node, tasks = tasks_of(graph)
    given = dict(zip(graph.inputs, case.inputs(shape, dtype), strict=True))
    found = run(tasks, kernels, given, node)
    again = run(tasks, kernels, given, node, backwards=True)
    operands = [given[value] for value in node.inputs]
    exact, rounded = (evaluate(body_of(node), operands, d) for d in ("float64", None))
    for y, back, right, near in zip(found, again, exact, rounded, strict=True):
        np.testing.assert_array_equal(y, back)
        scale = EPSILON[dtype] * (np.abs(right).max() + 1)
        np.testing.assert_allclose(y, right, rtol=0, atol=8 * scale)
        # What lies between is rounded as in the graph; sums have an order of their own.
        assert np.abs(y - near).mean() <= (0.1 if dtype != "float32" else 1.0) * scale


@pytest.mark.parametrize("case", CASES, ids=str)
def test_special_values_are_those_of_the_graph(case: RowCase, kernels: Emulated) -> None:
    """In some rows; the others' numbers stay what they are."""
    shape = (33, 10)
    graph = case.graph(shape)
    node, tasks = tasks_of(graph)
    given = dict(zip(graph.inputs, case.inputs(shape), strict=True))
    x = given[graph.inputs[0]]
    x[3, 2], x[5, 0], x[7, 9], x[8] = np.nan, np.inf, -np.inf, 0.0
    found = run(tasks, kernels, given, node)
    right = evaluate(body_of(node), [given[value] for value in node.inputs], "float64")
    for y, expected in zip(found, right, strict=True):
        np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)


def test_quotients_are_exact(tmp_path: Path) -> None:
    """Of numbers of all magnitudes, and of those where threads divide one by one."""
    random = np.random.default_rng(0)
    shape = (4096, 64)
    with tracing("g") as trace:
        x = trace.input(TensorType(shape), "x")
        d = trace.input(TensorType((shape[0], 1)), "d")
        over = x / d
        outputs = [over, apply(ops.Reduce("max", (1,), keepdim=True), over)]
    node, tasks = tasks_of(trace.graph(outputs))
    bits = random.integers(0, 1 << 32, shape, dtype=np.uint32)
    usual = bits >> 2 | np.uint32(1 << 29) * random.integers(0, 2, shape, dtype=np.uint32)
    bits[::2] = (usual & np.uint32(0x0FFFFFFF) | np.uint32(0x38000000))[::2]
    bits[:, 0] &= np.uint32(1 << 31)  # zeros of both signs
    divisors = np.abs(random.standard_normal((shape[0], 1))).astype(np.float32)
    divisors[1::16] = random.integers(0, 1 << 32, (shape[0] // 16, 1), dtype=np.uint32).view("f")
    given = dict(zip(node.inputs, (bits.view(np.float32), divisors), strict=True))
    sources = [task.work.source for task in tasks if isinstance(task.work, Launch)]
    found = run(tasks, Emulated(sources, tmp_path), given, node)
    with np.errstate(all="ignore"):
        expected = given[node.inputs[0]] / divisors
    (y,) = (one for one in found if one.shape == shape)
    there = ~np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(y), ~there)
    np.testing.assert_array_equal(y[there].view(np.uint32), expected[there].view(np.uint32))


def body_of(node: Node) -> Graph:
    assert isinstance(node.op, FusedRows)
    return node.op.body


def every_tile() -> list[tuple[tuple[int, ...], RowTile]]:
    """Some of each number of threads and packs; with an odd number of rows behind each other."""
    found: dict[tuple[int, bool, bool], tuple[tuple[int, ...], RowTile]] = {}
    for tile in tiles(24, (4,), 2):
        found.setdefault((tile.lanes, tile.pack > 1, tile.is_full), ((131, 24), tile))
    wide = [RowTile(200, 2, 64, 2), RowTile(200, 1, 128, 2), RowTile(256, 4, 64, 1)]
    return [*found.values(), *(((5, tile.length), tile) for tile in wide)]


def test_every_tile_gives_the_same_numbers(tmp_path: Path) -> None:
    """Rows of parts of warps, of warps, and of blocks; full or not."""
    case = RowCase(layer_norm_gradient, 2, 1)
    computed = [(shape, tile, *tasks_of(case.graph(shape), tile)) for shape, tile in every_tile()]
    assert {tile.lanes for _, tile, _, _ in computed} >= {1, 8, 32, 64, 128}
    sources = [t.work.source for _, _, _, ts in computed for t in ts if isinstance(t.work, Launch)]
    emulated = Emulated(sources, tmp_path)
    for shape, tile, node, tasks in computed:
        given = dict(zip(node.inputs, case.inputs(shape), strict=True))
        right = evaluate(body_of(node), list(given.values()), "float64")
        for y, expected in zip(run(tasks, emulated, given, node), right, strict=True):
            scale = np.abs(expected).max()
            np.testing.assert_allclose(y, expected, rtol=0, atol=2e-6 * scale, err_msg=str(tile))


def test_long_rows_are_refused() -> None:
    case = RowCase(layer_norm_gradient, 2, 1)
    short = region_of(case.graph((2, 4096))).op
    assert isinstance(short, FusedRows) and why_not_rows(short) is None
    context = Context(CudaTarget())
    found = FUSE_ROWS.run(case.graph((2, 1 << 20)), context)
    assert not any(isinstance(node.op, FusedRows) for node in found.nodes)
    assert "do not stay in registers" in " ".join(context.notes.values())


@pytest.mark.sampled(3)
@pytest.mark.parametrize("arch", [A100.arch, H200.arch])
def test_kernels_keep_to_their_budget(arch: str) -> None:
    launches = []
    for length in (96, 384, 768, 1000, 4096):
        for case in CASES[:2]:
            _, tasks = tasks_of(case.graph((100352, length), "bfloat16"))
            launches += [task.work for task in tasks if isinstance(task.work, Launch)]
    for launch, kernel in zip(
        launches, compile_kernels([x.source for x in launches], arch), strict=True
    ):
        taken = kernel.resources
        assert taken.spill_bytes == taken.stack_bytes == 0, launch.source.text
        assert taken.registers * launch.block[0] <= 65536 // 2, launch.source.text
        assert launch.shared_bytes <= 48 << 10
