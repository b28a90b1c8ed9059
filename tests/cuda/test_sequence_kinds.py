"""Which kernel a sequence becomes, and what each kind of them computes, in the emulator."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from minidnn import layers as L
from minidnn.backends.codegen.kernel import KernelSource
from minidnn.backends.cuda.kernels import Launch
from minidnn.backends.cuda.sequence.grid import Grid, choose_grid
from minidnn.backends.cuda.sequence.plans import positive_planes
from minidnn.backends.cuda.sequence.printer import print_sequence
from minidnn.backends.cuda.target import CudaTarget
from minidnn.backends.cuda.tensor import tensor_of
from minidnn.errors import GraphError
from minidnn.fusion.region import FusedSequence
from minidnn.fusion.sequence import Schedule
from minidnn.graph.expression import exp, where
from minidnn.graph.ir import Graph
from minidnn.graph.layout import CHANNELS_LAST, PLANAR
from minidnn.graph.types import rounded_to
from minidnn.layers.build import to_graph
from minidnn.passes.fold import FOLD_BATCH_NORM
from minidnn.passes.infrastructure import Context, run_passes
from minidnn.passes.pipeline import PIPELINE, optimize
from tests.cuda.cards import A100, H200
from tests.cuda.emulator.run import Emulated
from tests.cuda.sequences import LAYOUTS, Case, case_of, run_cases

BLOCK = (L.MaxPool2d(3, stride=1, padding=1), L.ReLU())


def graph_of(*layers: L.Layer, shape: tuple[int, ...] = (1, 3, 17, 15)) -> Graph:
    return run_passes(
        to_graph(L.Sequential(*layers), shape),
        PIPELINE[: PIPELINE.index(FOLD_BATCH_NORM)],
        Context(),
    )


def whole(graph: Graph, stage: bool = True) -> FusedSequence:
    _, _, rows, columns = graph.outputs[0].type.plane
    return FusedSequence(graph, Schedule(rows, columns, 1, stage))


def numbers_for(graph: Graph, seed: int = 0) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    arrays = [random.standard_normal(v.shape).astype(np.float32) for v in graph.inputs]
    for array in arrays:
        where_ = random.random(array.shape)
        for i, special in enumerate((np.nan, np.inf, -np.inf, -0.0)):
            array[(where_ > 0.02 * i) & (where_ < 0.02 * (i + 1))] = special
    return arrays


def planar_case(graph: Graph, grid: Grid | None = None, stage: bool = True) -> Case:
    return case_of(whole(graph, stage), numbers_for(graph), PLANAR, mapping=grid)


@pytest.mark.sampled(3)
@pytest.mark.race
@pytest.mark.parametrize("rows", [1, 2, 5])
def test_rectangles_of_any_size(rows: int, tmp_path: Path) -> None:
    """Also those that do not divide the plane, and of several warps."""
    windows = [
        L.MaxPool2d(3, stride=1, padding=1),
        L.AvgPool2d((3, 1), stride=1, padding=(1, 0)),
        L.AvgPool2d(3, stride=1, padding=1, count_include_pad=False),
        L.MaxPool2d((1, 3), stride=1, padding=(0, 1)),
        L.MaxPool2d(3, stride=1, padding=1),
    ]
    cases = []
    for layers in ([*BLOCK * 2], [*windows, L.ReLU(), *windows[:1]]):
        graph = graph_of(*layers)
        for columns in (1, 4, 15):
            grid = Grid(rows, columns, -(-17 // rows), -(-15 // columns))
            cases.append(planar_case(graph, grid, stage=columns != 4))
    run_cases(cases, tmp_path)


@pytest.mark.race
def test_wide_windows_in_registers(tmp_path: Path) -> None:
    graph = graph_of(
        L.MaxPool2d(5, stride=1, padding=2),
        L.ReLU(),
        L.MaxPool2d((4, 1), stride=1, padding=(2, 0)),
        L.MaxPool2d((2, 1), stride=1, padding=(0, 0)),
        L.AvgPool2d((1, 5), stride=1, padding=(0, 2)),
    )
    assert choose_grid(*whole(graph).kernel, _tensors(graph)) is None, "planes differ in size"
    graph = graph_of(
        L.MaxPool2d(5, stride=1, padding=2),
        L.ReLU(),
        L.MaxPool2d(5, stride=1, padding=2),
        L.AvgPool2d((1, 5), stride=1, padding=(0, 2)),
    )
    cases = [planar_case(graph, Grid(r, c, -(-17 // r), -(-15 // c))) for r, c in ((2, 2), (4, 5))]
    run_cases([*cases, planar_case(graph)], tmp_path)


def _tensors(graph: Graph) -> list:  # type: ignore[type-arg]
    _, binding = whole(graph).kernel
    return [tensor_of(s.value.type, PLANAR) for s in (*binding.inputs, *binding.outputs)]


def test_equal_steps_are_a_loop() -> None:
    """Forty blocks take as much text as four, and no more shared memory than a plane."""
    texts = []
    for blocks in (4, 40):
        graph = graph_of(*(L.MaxPool2d(3, 1, 1), L.BatchNorm2d(3), L.ReLU()) * blocks)
        plan, binding = whole(graph).kernel
        launch = print_sequence(plan, binding, *_sides(graph), H200).launch
        assert launch.shared_bytes <= 17 * 15 * 4 + 4096
        texts.append(launch.source.text)
    assert abs(len(texts[1]) - len(texts[0])) < 50
    assert texts[1].count("for (int k = 0; k < 39; k++)") == 1


def _sides(graph: Graph) -> tuple[list, list]:  # type: ignore[type-arg]
    _, binding = whole(graph).kernel
    return (
        [tensor_of(s.value.type, PLANAR) for s in binding.inputs],
        [tensor_of(s.value.type, PLANAR) for s in binding.outputs],
    )


def test_a_users_own_formula_is_a_kernel_like_any_other(tmp_path: Path) -> None:
    own = L.Elementwise(lambda x: where(x > 0.5, x * 2.0, exp(x) - 1.0))
    graph = graph_of(own, L.MaxPool2d(3, 2, 1), own)
    operands = numbers_for(graph)
    cases = [case_of(whole(graph), operands, layout) for layout in (PLANAR, CHANNELS_LAST)]
    alone = graph_of(own)
    cases.append(case_of(whole(alone, False), numbers_for(alone), PLANAR))
    run_cases(cases, tmp_path)


def test_fused_and_unfused_kernels_give_the_same_bits(tmp_path: Path) -> None:
    """Transcendental functions too: step by step, by kernels of their own."""
    layers = [L.SiLU(), L.MaxPool2d(3, 1, 1), L.Tanh(), L.AvgPool2d(2), L.GELU(), L.Sigmoid()]
    graph = graph_of(*layers)
    fused = case_of(whole(graph), numbers_for(graph), PLANAR)
    values = numbers_for(graph)
    for layer in layers:
        single = graph_of(layer, shape=tuple(values[0].shape))
        values = [_emulate(case_of(whole(single, False), values, PLANAR), tmp_path)]
    np.testing.assert_array_equal(_emulate(fused, tmp_path), values[0])


def _emulate(case: Case, folder: Path) -> np.ndarray:
    launch = case.kernel.launch
    (value,) = case.region.body.outputs
    result = np.full(value.shape, np.nan, np.float32)
    vectors = [case.kernel.vectors()] if case.binding.vectors else []
    operands = [np.ascontiguousarray(a) for a in case.operands]
    Emulated([launch.source], folder).launch(launch, [*operands, result, *vectors])
    return result


def test_what_is_never_negative() -> None:
    graph = graph_of(L.ReLU(), L.MaxPool2d(3, 1, 1), L.ReLU6(), L.AvgPool2d(2), L.Hardswish())
    plan, _ = whole(graph, False).kernel
    known = positive_planes(plan)
    first = plan.steps[0].segments[0]
    assert first[0].result in known, "ReLU"
    results = [o.result for step in plan.steps for o in step.segments[0]]
    assert [n in known for n in results] == [True, True, True, False, False]


def test_a_plan_in_place_is_refused() -> None:
    graph = graph_of(*BLOCK)
    plan, binding = FusedSequence(graph, Schedule(17, 15, 1, True, True)).kernel
    with pytest.raises(GraphError, match=r"17x15 staged in place: a GPU computes rows in no order"):
        print_sequence(plan, binding, *_sides(graph), H200)


def test_a_patch_that_does_not_fit_is_refused() -> None:
    graph = graph_of(L.ReLU(), L.MaxPool2d(3, 2, 1), shape=(1, 1, 300, 300))
    plan, binding = whole(graph).kernel
    with pytest.raises(GraphError, match=r"takes 360000 bytes of shared memory; sm_80 has 166912"):
        print_sequence(plan, binding, *_sides(graph), A100)


@pytest.mark.parametrize(
    ("layers", "barrier"),
    [
        ([L.MaxPool2d(3, 1, 1), L.ReLU()], "__syncwarp();"),
        ([L.AvgPool2d(3, 1, 1), L.ReLU()], "md_sync_warp();"),
        ([L.MaxPool2d(3, 1, 1), L.SiLU()], "md_sync_warp();"),
    ],
    ids=["maxima", "averages", "division"],
)
def test_a_warp_that_may_come_apart_is_joined(layers: list[L.Layer], barrier: str) -> None:
    """Where threads may call a function that others do not, the compiler's own is not enough."""
    graph = graph_of(*layers * 2)
    for grid, wanted in ((Grid(3, 8, 6, 2), barrier), (Grid(3, 2, 6, 8), "__syncthreads();")):
        text = planar_case(graph, grid).kernel.launch.source.text
        every = ("__syncwarp();", "md_sync_warp();", "__syncthreads();")
        assert {one for one in every if one in text} == {wanted}


def test_the_emulator_finds_a_missing_barrier(tmp_path: Path) -> None:
    graph = graph_of(*BLOCK * 3)
    case = case_of(whole(graph), numbers_for(graph), PLANAR)
    source = case.kernel.launch.source
    broken = source.text.replace("__syncwarp();", "").replace("__syncthreads();", "")
    assert broken != source.text
    launch = case.kernel.launch
    changed = Launch(
        KernelSource(source.name, broken), launch.grid, launch.block, launch.shared_bytes
    )
    object.__setattr__(case.kernel, "launch", changed)
    emulated = Emulated([changed.source], tmp_path)
    with pytest.raises(AssertionError):
        for backwards in (False, True):
            case.check(emulated, backwards)


def test_the_emulator_finds_writes_beside_shared_memory(tmp_path: Path) -> None:
    text = 'extern "C" __global__ void k(float *y) { MD_SHARED; md_shared[threadIdx.x + 4] = 1; }'
    source = KernelSource("k", text)
    emulated = Emulated([source], tmp_path)
    emulated.launch(Launch(source, (1, 1, 1), (4, 1, 1), 8), [np.zeros(1, np.float32)])
    with pytest.raises(AssertionError, match="written beside shared memory"):
        emulated.launch(Launch(source, (1, 1, 1), (5, 1, 1), 8), [np.zeros(1, np.float32)])


@pytest.mark.sampled(3)
@pytest.mark.race
@pytest.mark.parametrize("pool", [L.AvgPool2d(2), L.MaxPool2d(3, 3, 1), L.AvgPool2d((2, 3), 3)])
def test_what_comes_before_a_window_is_computed_on_its_taps(pool: L.Layer, tmp_path: Path) -> None:
    """Where each element is read once, no plane lies between."""
    graph = graph_of(L.BatchNorm2d(3), L.Sigmoid(), pool)
    cases = [case_of(whole(graph, False), numbers_for(graph), layout) for layout in LAYOUTS]
    cases += [case_of(whole(graph), numbers_for(graph), layout, suit=True) for layout in LAYOUTS]
    assert [case.kernel.launch.shared_bytes for case in cases] == [0, 0, 0, 0]
    overlapping = graph_of(L.BatchNorm2d(3), L.Sigmoid(), L.MaxPool2d(3, 2))
    cases.append(case_of(whole(overlapping, False), numbers_for(overlapping), PLANAR))
    assert cases[-1].kernel.launch.shared_bytes > 0
    run_cases(cases, tmp_path)


PAIRED = (
    (L.MaxPool2d(3, 2, 1),),
    (L.MaxPool2d(2), L.BatchNorm2d(3), L.ReLU()),
    (L.BatchNorm2d(3), L.ReLU(), L.AvgPool2d(2)),
    (L.MaxPool2d(3, 2, 1, dilation=2),),
    (L.AvgPool2d((2, 5), (2, 1), (0, 2)),),
    (L.AvgPool2d((3, 4), 4, 0),),
)


@pytest.mark.sampled(3)
@pytest.mark.race
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("layers", PAIRED)
def test_numbers_of_two_bytes_move_in_pairs(
    layers: tuple[L.Layer, ...], dtype: str, tmp_path: Path
) -> None:
    """Where rows are even, those of the result too: else a thread makes one of its numbers."""
    cases = []
    for shape in ((2, 3, 12, 16), (2, 3, 12, 15), (1, 3, 10, 18)):
        context = Context(CudaTarget(H200.device(dtype), dtype))
        graph = optimize(to_graph(L.Sequential(*layers), shape), context)
        (region,) = (node.op for node in graph.nodes if isinstance(node.op, FusedSequence))
        operands = [rounded_to(dtype, array) for array in numbers_for(region.body)]
        cases.append(case_of(region, operands, PLANAR, suit=True))
    texts = [case.kernel.launch.source.text for case in cases]
    assert "md_of_pairs" in texts[0] and "md_of_pairs" not in texts[1]
    run_cases(cases, tmp_path)
