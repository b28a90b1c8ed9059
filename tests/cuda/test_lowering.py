"""Plans for a GPU, without one: layouts, fusion, forms of contractions, addresses, errors."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from minidnn import models
from minidnn.backends.backend import get_backend
from minidnn.backends.cuda import backend, captured
from minidnn.backends.cuda.arrays import ArraySlot, read
from minidnn.backends.cuda.backend import CudaBackend
from minidnn.backends.cuda.contraction.algorithms import algorithms_for, least_milliseconds
from minidnn.backends.cuda.contraction.config import (
    FIXED,
    CudaAlgorithm,
    finish_of,
    target,
    used,
)
from minidnn.backends.cuda.contraction.graphs import PRODUCT, graph_of
from minidnn.backends.cuda.contraction.halo import HALOS
from minidnn.backends.cuda.contraction.kernel_registry import KERNELS
from minidnn.backends.cuda.contraction.problem import ContractionProblem
from minidnn.backends.cuda.contraction.tile_choice import DIVISIONS, TILES
from minidnn.backends.cuda.functions import compile_kernels
from minidnn.backends.cuda.kernels import Launch
from minidnn.backends.cuda.lower import lower_plan
from minidnn.backends.cuda.machine import Machine
from minidnn.backends.cuda.target import CudaTarget
from minidnn.backends.cuda.task import Task
from minidnn.errors import DeviceError, GraphError, OutOfMemoryError, UnsupportedError
from minidnn.layers.build import to_graph
from minidnn.passes.infrastructure import Context
from minidnn.passes.pipeline import optimize
from minidnn.passes.reduce_precision import reduce_precision
from minidnn.runtime.arrays import from_bits, to_bits
from minidnn.runtime.plan import Plan, make_plan
from tests.cuda.cards import A100, H200, RTX_4090, on_each
from tests.sampling import mixed

from .contractions import HALO, STREAM, TILE

PRECISIONS = ("float32", "tf32", "float16", "bfloat16")
OF_EACH_KIND = ("alexnet", "vgg11_bn", "resnet50", "squeezenet1_1", "densenet121", "inception_v3")


def planned(network: md.Layer, shape: tuple[int, ...], precision: str) -> Plan:
    context = Context(CudaTarget(H200.device(precision), precision))
    return make_plan(optimize(to_graph(network, shape), context, verify=True), context)


@cache
def zoo(name: str, precision: str) -> tuple[Plan, list[Task]]:
    network = models.get_model(name)
    plan = planned(network, (2, *network.input_shape), precision)
    return plan, lower_plan(plan, H200, precision == "tf32")


def problems(tasks: list[Task]) -> list[ContractionProblem]:
    return [task.work for task in tasks if isinstance(task.work, ContractionProblem)]


def of(network: md.Layer, shape: tuple[int, ...], precision: str) -> list[ContractionProblem]:
    return problems(lower_plan(planned(network, shape, precision), H200, precision == "tf32"))


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("name", "precision"), mixed(2, OF_EACH_KIND, PRECISIONS))
def test_every_node_of_the_zoo_has_a_task(name: str, precision: str) -> None:
    plan, tasks = zoo(name, precision)
    assert {value.dtype for value in plan.graph.values} == {CudaTarget(precision=precision).storage}
    for problem in dict.fromkeys(problems(tasks)):
        algorithms = algorithms_for(problem, H200)
        assert len(algorithms) == len(set(algorithms)) >= 1
        for algorithm in algorithms:
            assert algorithm.stages <= len(problem.stages)
            finish = finish_of(problem, algorithm)
            assert (finish is None) == (
                algorithm.stages == len(problem.stages) and not algorithm.packed
            )
            if algorithm.core not in (FIXED, *KERNELS):
                graph_of(
                    problem, algorithm.core, algorithm.stages, target(problem, algorithm)
                ).freeze()


def test_densenet_is_free_of_copies_and_of_passes_before_convolutions() -> None:
    """In half precision: joins are written in place, and 1x1 convolutions normalize what they
    read."""
    _, tasks = zoo("densenet121", "float16")
    launches = [t.work.source.name.split("_")[0] for t in tasks if isinstance(t.work, Launch)]
    assert Counter(launches) == {"seq": 5}
    with_prologue = [p for p in problems(tasks) if p.before]
    assert len(with_prologue) == 58
    assert all(
        algorithms_for(one, H200)[0].core in (STREAM.name, TILE.name) for one in with_prologue
    )


def test_blocks_of_one_shape_are_one_problem() -> None:
    """Wherever in a joined value they write: only what is left of an address matters."""
    _, tasks = zoo("densenet121", "float16")
    assert len(set(problems(tasks))) <= 75 < len(problems(tasks)) == 121


def test_layouts_follow_the_precision() -> None:
    net = L.Sequential(L.Conv2d(8, 16, 3), L.ReLU(), L.Conv2d(16, 16, 3))
    for precision in PRECISIONS:
        found = of(net, (1, 8, 20, 20), precision)
        assert [p.planar for p in found] == [precision == "float32"] * 2
        assert [p.is_exact for p in found] == [precision == "float32"] * 2


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("asked", ["float32", "tf32"])
def test_networks_in_half_precision_are_computed_so_whatever_is_asked(
    dtype: str, asked: str
) -> None:
    """A graph may be of another dtype than the precision's; images of few channels, too."""
    net = L.Sequential(L.Conv2d(3, 16, 3), L.ReLU(), L.Conv2d(16, 16, 3), L.MaxPool2d(2))
    graph = reduce_precision(to_graph(net, (1, 3, 20, 20)), Context(CudaTarget(precision=dtype)))
    context = Context(CudaTarget(H200.device(asked), asked))
    plan = make_plan(optimize(graph, context, verify=True), context)
    found = problems(lower_plan(plan, H200, asked == "tf32"))
    assert [(p.x.dtype, p.y.dtype, p.planar, p.y.channel) for p in found] == [
        (dtype, dtype, False, 1)
    ] * 2


def test_only_exact_float32_is_left_to_fixed_functions_and_only_products_are_products() -> None:
    net = L.Sequential(L.Conv2d(8, 16, 1), L.ReLU(), L.Conv2d(16, 16, 3), L.Flatten())
    for precision in PRECISIONS:
        one, three = of(net, (2, 8, 9, 9), precision)
        cores = [
            {algorithm.core for algorithm in algorithms_for(problem, H200)}
            for problem in (one, three)
        ]
        assert (FIXED in cores[0]) == (FIXED in cores[1]) == (precision == "float32")
        assert (PRODUCT in cores[0]) == (precision != "float32") and PRODUCT not in cores[1]
        assert (TILE.name in cores[0]) == (precision in ("float16", "bfloat16"))


def test_a_residual_is_fused_or_left_to_a_kernel() -> None:
    x = md.Input((16, 8, 8))
    net = md.Model(x, L.ReLU()(L.Conv2d(16, 16, 1)(x) + x))
    (problem,) = of(net, (2, 16, 8, 8), "float16")
    assert [stage.mode for stage in problem.stages] == ["bias", "add", "relu"]
    assert {algorithm.stages for algorithm in algorithms_for(problem, H200)} == {1, 3}
    tensors, vectors, steps = used(problem, 1)
    assert (tensors, vectors, len(steps)) == ([0], [], 2)


def test_a_steep_leaky_relu_is_left_to_a_kernel() -> None:
    """cuDNN takes the larger of x and slope * x, which is another function then."""
    for slope, fused in ((0.1, 2), (1.0, 2), (4.0, 1), (-0.5, 1)):
        net = L.Sequential(L.Conv2d(8, 8, 1), L.LeakyReLU(slope))
        (problem,) = of(net, (1, 8, 4, 4), "tf32")
        assert max(algorithm.stages for algorithm in algorithms_for(problem, H200)) == fused, slope


def test_images_of_few_channels_are_gathered() -> None:
    (problem,) = of(L.Conv2d(3, 64, 7, 2, 3), (2, 3, 224, 224), "float16")
    assert problem.gather is not None and problem.w.shape == (64, 16, 4, 4)
    assert problem.input.shape == (2, 16, 115, 115) and problem.stride == (1, 1)
    (whole,) = of(L.Conv2d(3, 64, 7, 2, 3), (2, 3, 224, 224), "tf32")
    assert whole.w.shape == (64, 44, 4, 1) and whole.input.shape == (2, 44, 115, 112)
    (wide,) = of(L.Conv2d(3, 64, 11, 4, 2), (2, 3, 224, 224), "tf32")
    assert wide.w.shape == (64, 48, 3, 3), "blocks of the stride have channels enough"
    (long,) = of(L.Conv2d(1, 8, (1, 251)), (2, 1, 1, 3200), "tf32")
    assert long.w.shape == (8, 4, 1, 251), (
        "blocks as wide as this window would take 63 times as much"
    )
    (exact,) = of(L.Conv2d(3, 64, 7, 2, 3), (2, 3, 224, 224), "float32")
    assert exact.gather is None and exact.planar
    (linear,) = of(L.Linear(3, 8), (2, 3), "float16")
    assert linear.gather is None


def test_tiles_take_whole_chunks_alone() -> None:
    (problem,) = of(L.Conv2d(16, 24, 1), (2, 16, 9, 9), "float16")
    assert TILE.why_not(problem, H200) is None
    for index in range(len(TILES)):
        launch = TILE.launches(problem, index, H200)[0]
        assert launch.block == (TILES[index].threads, 1, 1)
        assert launch.source.name in launch.source.text and "$" not in launch.source.text
    assert set(TILE.choices(problem, A100)) <= set(range(len(TILES)))
    odd = replace(problem, y=replace(problem.y, offset=4))
    assert TILE.why_not(odd, H200) == "its tensors are not aligned to vectors of 8 channels"
    (single,) = of(L.Conv2d(16, 24, 1), (2, 16, 9, 9), "tf32")
    assert TILE.why_not(single, H200) == "it is in float32"
    (grouped,) = of(L.Conv2d(16, 16, 3, groups=2), (2, 16, 9, 9), "float16")
    assert TILE.why_not(grouped, H200) == "it has 2 groups"


def test_sums_of_few_pixels_are_divided_where_there_are_clusters() -> None:
    def parts(batch: int, machine: Machine) -> set[int]:
        (problem,) = of(L.Conv2d(512, 512, 3, padding=1), (batch, 512, 7, 7), "float16")
        return {DIVISIONS[choice][1] for choice in TILE.choices(problem, machine)}

    assert max(parts(1, H200)) == 8
    assert parts(1, A100) == parts(128, H200) == {1}
    (short,) = of(L.Conv2d(64, 512, 1), (1, 64, 7, 7), "float16")
    assert {DIVISIONS[choice][1] for choice in TILE.choices(short, H200)} == {1}


@on_each(A100, RTX_4090, H200)
@pytest.mark.parametrize("batch", [1, 8, 128])
def test_tiles_that_are_measured_fit_shared_memory(batch: int, machine: Machine) -> None:
    """Clusters alone do not say so: a block of sm_120 has less than half of what sm_90's have."""
    (problem,) = of(L.Conv2d(512, 512, 3, padding=1), (batch, 512, 7, 7), "float16")
    choices = TILE.choices(problem, machine)
    assert choices
    for choice in choices:
        assert TILE.launches(problem, choice, machine)[0].shared_bytes <= machine.shared_bytes


def test_convolutions_whose_filters_and_rows_fit_may_read_each_pixel_once() -> None:
    def chosen(problem: ContractionProblem) -> list[tuple[int, int]]:
        assert HALO.why_not(problem, H200) is None
        choices = HALO.choices(problem, H200)
        return [(HALOS[i].filters, HALOS[i].groups) for i in choices]

    def first(layer: md.Layer, channels: int, size: int = 14) -> ContractionProblem:
        return of(layer, (2, channels, size, size), "float16")[0]

    dense = first(L.Conv2d(128, 32, 3, padding=1), 128, 56)
    assert chosen(dense) == [(32, 2), (32, 3)]
    assert algorithms_for(dense, H200)[0].core == HALO.name
    assert HALO.name not in {algorithm.core for algorithm in algorithms_for(dense, A100)}
    stem = first(L.Conv2d(3, 64, 7, 2, 3), 3, 224)
    assert chosen(stem) == [(64, 2)]
    half = first(L.Conv2d(64, 128, 3, padding=1), 64)
    assert chosen(half) == [(64, 2), (64, 3)]
    wide = first(L.Conv2d(32, 128, 3, padding=1), 32)
    assert chosen(wide) == [(128, 2), (128, 3), (64, 2)]
    refused: tuple[tuple[ContractionProblem, Machine, str], ...] = (
        (dense, A100, "sm_80 has no wgmma"),
        (dense, replace(H200, capability=(10, 0)), "sm_100 has no wgmma"),
        (of(L.Conv2d(16, 8, 3), (1, 16, 9, 9), "tf32")[0], H200, "it is in float32"),
        (first(L.Conv2d(16, 16, 3, groups=2), 16), H200, "it has 2 groups"),
        (first(L.Conv2d(16, 16, 1), 16), H200, "no two windows overlap"),
        (first(L.Conv2d(16, 16, 3, stride=2), 16), H200, "no two windows overlap"),
        (
            first(L.Conv2d(16, 12, 3), 16),
            H200,
            "its tensors are not aligned to vectors of 8 channels",
        ),
        (first(L.Conv2d(16, 16, 3, padding=3), 16), H200, "its padding is wider than its wi"),
        (first(L.Conv2d(24, 16, 3, dilation=2), 24), H200, "an odd number of chunks of 8 ch"),
        (first(L.Conv2d(1024, 16, 3), 1024), H200, "filters and rows do not fit the shared m"),
    )
    for problem, machine, reason in refused:
        assert (HALO.why_not(problem, machine) or "").startswith(reason), problem.describe()


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("sizes", "dtype"),
    mixed(2, [(128, 32, 3), (16, 64, 4), (8, 64, 3), (32, 128, 3)], ["float16", "bfloat16"]),
)
def test_halo_kernels_keep_to_the_budget(sizes: tuple[int, int, int], dtype: str) -> None:
    """They compile without spills, and as many blocks fit a multiprocessor as were counted on.
    Where groups share registers anew, a block begins with all, or they would wait for them."""
    channels, filters, kernel = sizes
    x = md.Input((channels, 56, 56))
    net = md.Model(x, L.ReLU()(L.Conv2d(channels, filters, kernel, padding=1)(x)))
    (problem,) = of(net, (128, channels, 56, 56), dtype)
    launches = [HALO.launches(problem, i, H200)[0] for i in HALO.choices(problem, H200)]
    assert all(one.source.specific and "$" not in one.source.text for one in launches)
    kernels = compile_kernels([launch.source for launch in launches], "sm_90")
    for launch, each in zip(launches, kernels, strict=True):
        taken = each.resources
        assert taken.spill_bytes == 0 and taken.stack_bytes == 0
        side_by_side = launch.grid[0] * launch.grid[1] > 132
        most = 65536 // (launch.block[0] * (1 + side_by_side)) // 8 * 8
        assert taken.registers <= most
        assert taken.registers == most or "TAKEN = 0," in launch.source.text
        limit = H200.shared_bytes
        assert launch.shared_bytes <= (limit // 2 - 1024 if side_by_side else limit)


def test_one_kernel_serves_all_shapes() -> None:
    shapes = [of(L.Conv2d(16, 64, 3), (n, 16, s, s), "float16")[0] for n, s in ((1, 9), (8, 30))]
    assert len({TILE.launches(problem, 0, H200)[0].source for problem in shapes}) == 1


def test_options_are_checked() -> None:
    plan = planned(L.ReLU(), (1, 2, 3, 3), "float32")
    cuda = CudaBackend()
    for options, error, text in (
        ({"tunes": 1}, UnsupportedError, "option 'tunes' of device 'cuda'; valid are 'accuracy', "),
        (
            {"tune": "long"},
            GraphError,
            "tune='long'; valid are True, False, 'heuristic', ",
        ),
        ({"accuracy": 1}, GraphError, "accuracy=1; valid are 'normal', 'direct', 'high'"),
        ({"deterministic": 0}, GraphError, "deterministic=0; valid are True and False"),
        ({"memory_limit": -1}, GraphError, "memory_limit=-1; valid is a number of bytes, or None"),
    ):
        with pytest.raises(error, match=text):
            cuda.compile(plan, "float32", options)


def test_images_that_no_memory_holds_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before they are lowered, which takes longer the more rows there are."""
    plan = planned(L.ReLU(), (1, 3, 1 << 40, 8), "float32")
    memory = SimpleNamespace(getDevice=lambda: 0, memGetInfo=lambda: (100 << 30, 140 << 30))
    cupy = SimpleNamespace(cuda=SimpleNamespace(runtime=memory))
    for module in (backend, captured):
        monkeypatch.setattr(module, "cupy", lambda: cupy)
    monkeypatch.setattr(backend, "machine_of", lambda index: H200)
    with pytest.raises(
        OutOfMemoryError, match=rf"takes 105553116266496 .*NVIDIA H200 has {140 << 30}$"
    ):
        CudaBackend().compile(plan, "float32", {})


def test_without_cupy_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend.importlib.util, "find_spec", lambda name: None)
    assert CudaBackend().unavailable() == "CuPy is not installed; pip install 'minidnn[cuda]'"
    with pytest.raises(DeviceError, match="device='cuda:1' cannot be used here: CuPy is not inst"):
        get_backend("cuda:1")
    with pytest.raises(DeviceError, match=r"device='cuda:x'; valid are 'cpu', 'cuda', "):
        get_backend("cuda:x")


def test_old_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend.importlib.util, "find_spec", lambda name: name)
    old = replace(A100, name="Tesla V100", capability=(7, 0))
    monkeypatch.setattr(backend, "machine_of", lambda index: old)
    text = "Tesla V100 has compute capability 7.0; at least 8.0 is needed"
    assert CudaBackend().unavailable() == text


def test_weights_must_be_known() -> None:
    x, w = md.Input((3, 4, 4)), md.Input((3, 1, 1))
    node = to_graph(md.Model([x, w], x * w), ((2, 3, 4, 4), (2, 3, 1, 1))).nodes[0]
    assert CudaBackend().unsupported(node, "float32") is None


@pytest.mark.parametrize("given", [np.float32, np.float64, np.float16])
def test_numpy_arrays_become_what_was_compiled(given: Any) -> None:
    slot = ArraySlot("input 'x'", (2, 3), "bfloat16", 12)
    array = np.arange(6).reshape(2, 3).astype(given)
    found = read(slot, array, 0)
    np.testing.assert_array_equal(from_bits(found.kept, "bfloat16"), array.astype(np.float32))
    with pytest.raises(GraphError, match=r"input 'x' has shape \(3, 2\), but the network was comp"):
        read(slot, array.T, 0)
    with pytest.raises(GraphError, match="input 'x' has dtype int64; valid is bfloat16"):
        read(slot, np.ones((2, 3), np.int64), 0)


def test_bits_of_bfloat16() -> None:
    numbers = np.array([1.0, -2.5, np.inf, 3.0e38, 0.0], np.float32)
    bits = to_bits(numbers, "bfloat16")
    assert bits.dtype == np.uint16 and bits[0] == 0x3F80
    np.testing.assert_allclose(from_bits(bits, "bfloat16"), numbers, rtol=2**-8)


def test_forms_that_move_too_much_are_not_tried() -> None:
    """A kernel before the convolution reads and writes its image once more, one behind it its
    result; what fits the cache may be three times as fast."""
    net = L.Sequential(L.BatchNorm2d(224), L.ReLU(), L.Conv2d(224, 128, 1, bias=False))
    (problem,) = of(net, (128, 224, 56, 56), "float16")
    assert problem.before
    memory = replace(H200, bandwidth=4e12)
    pixels = 128 * 56 * 56
    own, direct, packed = (
        least_milliseconds(problem, algorithm, memory)
        for algorithm in (
            CudaAlgorithm("tile", 0),
            CudaAlgorithm("convolution", 0),
            CudaAlgorithm("convolution", 0, packed=True),
        )
    )
    filters = 224 * 128 * 2
    assert own == pytest.approx((pixels * 352 * 2 + filters) / 4e9)
    assert direct - own == pytest.approx(pixels * 448 * 2 / 4e9)
    assert packed - direct == pytest.approx(pixels * 256 * 2 / 4e9)
    (small,) = of(net, (1, 224, 56, 56), "float16")
    once = (3136 * 352 * 2 + filters) / 12e9
    assert least_milliseconds(small, CudaAlgorithm(TILE.name, 0), memory) == pytest.approx(once)
