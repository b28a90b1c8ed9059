"""Planes in registers: how they are spread over threads, and several channels a block."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from minidnn.backends.cuda.kernels import Launch
from minidnn.backends.cuda.machine import Machine
from minidnn.backends.cuda.sequence import grid as grids_module
from minidnn.backends.cuda.sequence import mapping
from minidnn.backends.cuda.sequence.grid import Grid, grids
from minidnn.backends.cuda.sequence.reschedule import print_region
from minidnn.backends.cuda.target import CudaTarget
from minidnn.backends.cuda.tensor import tensor_of
from minidnn.fusion.region import FusedSequence
from minidnn.fusion.sequence import Schedule
from minidnn.gradients.reverse import pullback
from minidnn.graph import operators as ops
from minidnn.graph.ir import Graph, Node, Value
from minidnn.graph.layout import PLANAR
from minidnn.graph.types import TensorType, rounded_to
from minidnn.layers.build import to_graph
from minidnn.passes.infrastructure import Context
from minidnn.passes.pipeline import optimize
from tests.cuda.cards import A100, H200, RTX_3090, on_each
from tests.cuda.sequences import case_of, run_cases
from tests.sampling import IS_FULL, every, some

from .test_sequence_kinds import numbers_for


def joined() -> md.Layer:
    """Two branches of other widths, side by side."""
    x = md.Input((12, 9, 7))
    left = L.BatchNorm2d(12)(L.MaxPool2d(3, 1, 1)(x))
    both = L.Concat(1)(left, L.ReLU()(x), L.AvgPool2d(3, 1, 1)(x))
    return md.Model(x, L.ReLU()(L.MaxPool2d(3, 1, 1)(both)))


def residual() -> md.Layer:
    x = md.Input((12, 9, 7))
    return md.Model(x, L.BatchNorm2d(12)(L.MaxPool2d((3, 1), 1, (1, 0))(x) + x))


NETWORKS = {
    "chain": L.Sequential(
        *(L.MaxPool2d(3, 1, 1), L.BatchNorm2d(12), L.ReLU()) * 3, L.AvgPool2d((1, 3), 1, (0, 1))
    ),
    "lone window": L.MaxPool2d(3, 1, 1),
    "segments": joined(),
    "residual": residual(),
}


def region_of(network: md.Layer, shape: tuple[int, ...], dtype: str) -> FusedSequence:
    context = Context(CudaTarget(H200.device(dtype), dtype))
    graph = optimize(to_graph(network, shape), context)
    (region,) = (node.op for node in graph.nodes if isinstance(node.op, FusedSequence))
    rows, columns = region.body.outputs[0].type.plane[2:]
    return FusedSequence(region.body, Schedule(rows, columns))


def grids_of(region: FusedSequence) -> list[Grid]:
    plan, binding = region.kernel
    return grids(plan, binding, [tensor_of(slot.value.type, PLANAR) for slot in binding.slots])


@pytest.fixture
def in_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several channels a block though there are few blocks."""
    monkeypatch.setattr(grids_module, "BLOCKS_OF_SEVERAL", 1)


@pytest.mark.sampled(3)
@pytest.mark.race
@pytest.mark.usefixtures("in_small")
@pytest.mark.parametrize("dtype", every(3, ["float16", "bfloat16", "float32"]))
@pytest.mark.parametrize("name", NETWORKS)
def test_several_channels_a_block(name: str, dtype: str, tmp_path: Path) -> None:
    """Of one warp and of several, with threads that have nothing to do and without."""
    region = region_of(NETWORKS[name], (2, 12, 9, 7), dtype)
    found = grids_of(region)
    counts = {one.channels for one in found}
    assert len(counts) > 3, "divisors of what the segments begin and end with"
    operands = [rounded_to(dtype, array) for array in numbers_for(region.body)]
    cases = []
    for i, count in enumerate(sorted(counts)):
        such = [one for one in found if one.channels == count]
        for grid in (such[0], such[-1]) if IS_FULL else (such[-(i % 2)],):
            cases.append(case_of(region, operands, PLANAR, extra=count % 2 * 4, mapping=grid))
    assert len({case.kernel.launch.grid for case in cases}) == len(counts)
    run_cases(cases, tmp_path)


TRAINED: dict[str, list[md.Layer]] = {
    "chain": [L.MaxPool2d(3, 1, 1), L.BatchNorm2d(3), L.ReLU()] * 2,
    "columns": [L.MaxPool2d((3, 1), 1, (1, 0)), L.ReLU()],
    "rows": [L.ReLU(), L.MaxPool2d((1, 5), 1, (0, 2))],
    "average": [L.AvgPool2d(3, 1, 1), L.ReLU(), L.MaxPool2d(5, 1, 2)],
}


def regions_of_step(layers: list[md.Layer], dtype: str) -> list[FusedSequence]:
    """The sequences of a network and its gradient, each over whole planes."""
    forward = to_graph(L.Sequential(*layers), (2, 3, 11, 9))
    graph = pullback(forward, forward.inputs)
    graph = Graph(graph.inputs, (*forward.outputs, *graph.outputs), graph.nodes)
    graph = optimize(graph, Context(CudaTarget(H200.device(dtype), dtype)))
    bodies = [node.op.body for node in graph.nodes if isinstance(node.op, FusedSequence)]
    return [FusedSequence(body, Schedule(11, 9)) for body in bodies]


@pytest.mark.sampled(3)
@pytest.mark.race
@pytest.mark.parametrize(
    ("name", "dtype"), [*((name, "float32") for name in TRAINED), ("chain", "bfloat16")]
)
def test_windows_that_compute_what_they_join(name: str, dtype: str, tmp_path: Path) -> None:
    """Places of maxima, and gradients of pooling: of equal numbers, NaN and infinities, too."""
    cases = []
    random = np.random.default_rng(0)
    for region in regions_of_step(TRAINED[name], dtype):
        operands = [random.integers(-3, 4, v.shape).astype(np.float32) for v in region.body.inputs]
        for array in operands:
            array.flat[::7] = np.resize([np.nan, np.inf, -np.inf, -0.0], array.flat[::7].shape)
        found = grids_of(region)
        for extra, grid in ((0, found[0]), (1, found[-1])):
            cases.append(case_of(region, operands, PLANAR, extra=extra, mapping=grid))
    assert cases and all("edges[" in case.kernel.launch.source.text for case in cases)
    run_cases(cases, tmp_path)


def test_numbers_for_a_whole_plane(tmp_path: Path) -> None:
    """They are read where they lie."""
    x, mean = (Value(TensorType(s), n) for s, n in (((2, 4, 6, 5), "x"), ((1, 4, 1, 1), "mean")))
    less = Node(ops.Sub(), [x, mean], "less")
    pooled = Node(ops.MaxPool2d((3, 3), (1, 1), (1, 1)), [less.output], "pooled")
    more = Node(ops.Add(), [pooled.output, mean], "more")
    body = Graph([x, mean], [more.output], [less, pooled, more])
    region = FusedSequence(body, Schedule(6, 5))
    operands = numbers_for(body)
    found = grids_of(region)
    assert found
    run_cases([case_of(region, operands, PLANAR, mapping=grid) for grid in found[:3]], tmp_path)


@pytest.mark.sampled(3)
@pytest.mark.race
@pytest.mark.usefixtures("in_small")
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_planes_begin_anywhere(dtype: str, tmp_path: Path) -> None:
    """At every distance from a multiple of 16 bytes, and ends as well; less than a word, too."""
    cases = []
    for rows, columns in ((9, 7), (5, 3), (11, 13), (1, 3), (7, 10)):
        layers = L.Sequential(L.MaxPool2d(3, 1, 1), L.BatchNorm2d(6), L.AvgPool2d(3, 1, 1))
        region = region_of(layers, (3, 6, rows, columns), dtype)
        operands = [rounded_to(dtype, array) for array in numbers_for(region.body)]
        found = grids_of(region)
        for count in {one.channels for one in found}:
            grid = next(one for one in found if one.channels == count)
            for extra in (0, 1):
                cases.append(case_of(region, operands, PLANAR, extra=extra, mapping=grid))
    assert sum("const int s0 = " in case.kernel.launch.source.text for case in cases) > 10
    run_cases(some(cases, 3), tmp_path)


@pytest.mark.sampled(3)
@pytest.mark.race
@pytest.mark.usefixtures("in_small")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_rows_of_halves_move_by_words(dtype: str, tmp_path: Path) -> None:
    """Where rectangles may begin at odd places: of every width, with whole rectangles in a row and
    without, of planes that begin anywhere."""
    cases, by_words = [], []
    for rows, columns in ((6, 8), (5, 7), (4, 9), (7, 6)):
        for layers in ([L.MaxPool2d(3, 1, 1)], [L.AvgPool2d(3, 1, 1), L.ReLU()]):
            region = region_of(L.Sequential(*layers), (2, 4, rows, columns), dtype)
            operands = [rounded_to(dtype, array) for array in numbers_for(region.body)]
            for across in (1, 2, 3, columns - 1, columns):
                for channels, extra in ((1, 0), (4, 1)):
                    grid = Grid(3, across, -(-rows // 3), -(-columns // across), channels)
                    cases.append(case_of(region, operands, PLANAR, extra=extra, mapping=grid))
                    text = cases[-1].kernel.launch.source.text
                    assert ("md_load_row(" in text) == ("md_store_row(" in text)
                    by_words.append(("md_load_row(" in text, columns, across))
    assert (True, 7, 2) in by_words and (True, 8, 3) in by_words
    assert (False, 8, 2) in by_words and (False, 7, 1) in by_words
    run_cases(some(cases, 3), tmp_path)


def test_rectangles_of_halves_meet_in_few_banks() -> None:
    """What was measured to be fast; over 35x35 the cheapest else has 7x9 of eight channels, whose
    threads are as many, but only two blocks of them fit."""
    for size, channels, expected in (
        ((35, 35), 288, Grid(7, 7, 5, 5, 6)),
        ((56, 56), 64, Grid(7, 14, 8, 4, 1)),
        ((28, 28), 256, Grid(7, 14, 4, 2, 4)),
        ((97, 131), 64, Grid(7, 12, 14, 11, 1)),
    ):
        for window in (L.MaxPool2d(3, 1, 1), L.AvgPool2d(3, 1, 1)):
            region = region_of(window, (128, channels, *size), "float16")
            assert grids_of(region)[0] == expected, size
    conflicts = grids_module._conflicts
    assert conflicts(Grid(1, 2, 16, 2), 16, 4) == 1.0  # 32 words side by side
    assert conflicts(Grid(1, 64, 32, 1), 32, 64) == 32.0  # each a multiple of 32 words on


def test_small_planes_share_a_block_where_there_are_many() -> None:
    """A block of a plane of 14 x 14 is started as slowly as three of them are computed."""
    window = L.MaxPool2d(3, 1, 1)
    assert grids_of(region_of(window, (128, 512, 14, 14), "float16"))[0].channels > 8
    assert grids_of(region_of(window, (1, 512, 14, 14), "float16"))[0].channels == 1
    large = [one.channels for one in grids_of(region_of(window, (128, 64, 112, 112), "float16"))]
    assert set(large) == {1}


@pytest.mark.usefixtures("in_small")
def test_segments_begin_with_a_block() -> None:
    region = region_of(NETWORKS["segments"], (2, 12, 9, 7), "float32")
    _, binding = region.kernel
    assert binding.segments == ((0, 12), (12, 24), (24, 36))
    assert {one.channels for one in grids_of(region)} <= {1, 2, 3, 4, 6, 12}


def test_what_is_one_number_for_all_channels_has_blocks_of_one(in_small: None) -> None:
    x, one = md.Input((12, 9, 7)), md.Input((1, 9, 7))
    network = md.Model([x, one], L.MaxPool2d(3, 1, 1)(x + one))
    graph = optimize(to_graph(network, [(2, 12, 9, 7), (2, 1, 9, 7)]), Context())
    (region,) = (node.op for node in graph.nodes if isinstance(node.op, FusedSequence))
    found = grids_of(FusedSequence(region.body, Schedule(9, 7)))
    assert found and {one.channels for one in found} == {1}


def test_small_planes_of_halves_stay_in_registers_and_others_are_read_by_units() -> None:
    window = L.MaxPool2d(3, 1, 1)
    for dtype, size, is_direct in (
        ("float16", 56, False),
        ("float16", 112, True),
        ("float32", 56, True),
    ):
        region = region_of(window, (8, 64, size, size), dtype)
        launch = print_region(region, lambda v: tensor_of(v.type, PLANAR), H200).kernel.launch
        assert (launch.shared_bytes == 0) is is_direct, (dtype, size)


def test_many_sums_over_large_planes_pass_through_shared_memory() -> None:
    """Two planes of it; not where they are small, few, of halves by themselves, or do not fit."""

    def shared(layers: list[L.Layer], size: int, dtype: str = "float32") -> int:
        region = region_of(L.Sequential(*layers), (8, 8, size, size), dtype)
        launch = print_region(region, lambda v: tensor_of(v.type, PLANAR), H200).kernel.launch
        return launch.shared_bytes

    average, largest = L.AvgPool2d(3, 1, 1), L.MaxPool2d(3, 1, 1)
    plane = 56 * 56 * 4
    assert shared([average, L.ReLU()] * 4, 56) == 2 * plane
    assert shared([average, *[largest] * 3], 56) == plane
    assert shared([average] * 4, 28) < 2 * 28 * 28 * 4
    assert shared([average], 56, "float16") < plane
    assert shared([average] * 4, 180) < 2 * 180 * 180 * 4


def test_a_lone_sum_over_a_large_plane_copies_patches(tmp_path: Path) -> None:
    """Eight of them fit a multiprocessor; other windows, and halves, take whole planes."""
    average = L.AvgPool2d(3, 1, 1)

    def printed(window: L.Layer, batch: int = 64, dtype: str = "float32") -> Launch:
        region = region_of(window, (batch, 64, 97, 131), dtype)
        return print_region(region, lambda v: tensor_of(v.type, PLANAR), H200).kernel.launch

    large = printed(average)
    assert (large.grid[0], large.block[0], large.shared_bytes) == (64 * 64 * 3, 256, 18352)
    assert printed(average, batch=1).grid[0] == 64 * 11, "patches of nine rows"
    assert printed(L.MaxPool2d(3, 1, 1)).grid[0] == 64 * 64
    assert printed(average, dtype="float16").grid[0] == 64 * 64
    cases = []
    for size in ((97, 131), (50, 51), (131, 97)):
        region = region_of(average, (1, 2, *size), "float32")
        cases.append(case_of(region, numbers_for(region.body), PLANAR, suit=True))
    run_cases(cases, tmp_path)


@pytest.mark.sampled(3)
@on_each(A100, RTX_3090, H200)
@pytest.mark.parametrize(
    ("kernel", "shape"),
    [
        ((3, 3), (1, 1, 3, 19001)),
        ((1, 3), (1, 1, 1, 70001)),
        ((7, 7), (1, 1, 20, 9001)),
        ((31, 31), (2, 1, 1081, 1921)),
        ((51, 51), (1, 1, 721, 1441)),
        ((127, 127), (1, 8, 257, 513)),
        ((1, 127), (1, 8, 60, 131)),
        ((127, 1), (1, 8, 131, 60)),
    ],
)
def test_sums_over_wide_planes_and_by_tall_windows_fit(
    kernel: tuple[int, int], shape: tuple[int, ...], machine: Machine
) -> None:
    """Where whole rows are too long, or too many of them are read, patches have columns as well."""
    region = region_of(L.AvgPool2d(kernel, 1, (kernel[0] // 2, kernel[1] // 2)), shape, "float32")
    launch = print_region(region, lambda v: tensor_of(v.type, PLANAR), machine).kernel.launch
    assert launch.shared_bytes <= machine.shared_bytes


def test_numbers_of_wide_planes_and_tall_windows(tmp_path: Path) -> None:
    cases = []
    for kernel, size in (((3, 3), (5, 701)), ((7, 7), (20, 181)), ((25, 1), (60, 45))):
        window = L.AvgPool2d(kernel, 1, (kernel[0] // 2, kernel[1] // 2))
        region = region_of(window, (1, 2, *size), "float32")
        cases.append(case_of(region, numbers_for(region.body), PLANAR, suit=True))
    run_cases(cases, tmp_path)


@pytest.mark.parametrize(
    ("sizes", "group"), [([256], 64), ([288], 96), ([160], 80), ([224, 32], 64), ([480, 32], 80)]
)
def test_groups_of_channels_come_out_even(sizes: list[int], group: int) -> None:
    """Of halves in NHWC, over all segments; they are whole sectors."""
    assert mapping._channel_group(sizes, 784, 8, 2) == group
