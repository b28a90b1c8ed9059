"""Direct convolutions in exact float32 by our kernels: in the emulator, compiled, and refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from minidnn.backends.cuda.contraction import direct
from minidnn.backends.cuda.contraction.algorithms import algorithms_for
from minidnn.backends.cuda.functions import compile_kernels
from minidnn.backends.cuda.machine import Machine
from minidnn.graph.evaluate import evaluate
from minidnn.layers.build import to_graph
from tests.cuda.cards import A100, H200, on_each
from tests.sampling import IS_FULL, every, mixed

from .contractions import DIRECT, dense, draw_weights, drawn
from .lowered import problems_of
from .single import (
    Network,
    check_emulated,
    check_on_gpu,
    convolution,
    emulated,
    normalized,
    only,
    residual_network,
)


def relu(channels: int, filters: int, window: int | tuple[int, int], **options: Any) -> md.Layer:
    return L.Sequential(L.Conv2d(channels, filters, window, **options), L.ReLU())


def chosen(shape: int, parts: int) -> int:
    return direct.DIVISIONS.number(shape, parts)


SMALL: dict[str, Network] = {
    "3x3": (lambda: relu(16, 64, 3, padding=1), (2, 16, 8, 12)),
    "odd": (lambda: relu(20, 40, 3, padding=1), (3, 20, 7, 9)),
    "unpadded": (lambda: relu(5, 33, 3), (1, 5, 8, 11)),
    "padded": (lambda: relu(12, 16, 3, padding=(2, 1)), (2, 12, 5, 6)),
    "strided": (lambda: relu(6, 24, 5, stride=2, padding=2), (2, 6, 11, 9)),
    "dilated": (lambda: relu(6, 24, (3, 2), dilation=(2, 3), padding=2), (1, 6, 9, 9)),
    "7x7": (lambda: relu(3, 16, 7, stride=2, padding=3), (2, 3, 19, 17)),
    "11x11": (lambda: relu(3, 16, 11, stride=4, padding=2), (2, 3, 31, 29)),
    "1x1": (lambda: relu(70, 40, 1), (3, 70, 5, 5)),
    "1x1 strided": (lambda: relu(64, 130, 1, stride=2), (2, 64, 9, 8)),
    "one pixel": (lambda: relu(16, 70, 3, padding=1), (5, 16, 1, 1)),
    "residual": (lambda: residual_network(32, 9, 7), (2, 32, 9, 7)),
    "whole residual": (lambda: residual_network(32, 4, 4), (2, 32, 4, 4)),
    "normalized": (lambda: normalized(70, 40), (3, 70, 5, 5)),
    "no bias": (lambda: L.Conv2d(16, 16, 3, padding=1, bias=False), (1, 16, 33, 5)),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of compiled kernels: one text serves several tests."""
    return tmp_path_factory.mktemp("emulated")


@pytest.mark.sampled(4)
@pytest.mark.race
@pytest.mark.parametrize(
    ("name", "parts"),
    # With every shape of a block both ways.
    [*mixed(2, [name for name in SMALL if name != "odd"], [1, 3]), ("odd", 1), ("odd", 3)],
)
def test_numbers(name: str, parts: int, folder: Path) -> None:
    shapes = (
        range(len(direct.SHAPES)) if name in ("odd", "residual") else [list(SMALL).index(name) % 6]
    )
    choices = [chosen(shape, parts) for shape in shapes]
    check_emulated(SMALL[name], DIRECT.name, choices, folder, wide=3 if name == "odd" else 0)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(8))
def test_any_geometry(seed: int, folder: Path) -> None:
    random = np.random.default_rng(seed)
    network = drawn(random)
    shape, parts = int(random.integers(len(direct.SHAPES))), int(random.integers(1, 4))
    choices = [chosen(shape, parts)]
    check_emulated(network, DIRECT.name, choices, folder, wide=int(random.integers(3)))


@pytest.mark.parametrize("parts", [1, 2])
def test_nan_and_infinities_reach_their_windows_alone(parts: int, folder: Path) -> None:
    net = L.Conv2d(20, 33, 3, padding=1)
    random = np.random.default_rng(0)
    draw_weights(net, random)
    x = random.standard_normal((1, 20, 12, 14)).astype(np.float32)
    x[0, 3, 2, 2], x[0, 19, 5, 9], x[0, 0, 11, 0] = np.nan, np.inf, -np.inf
    (expected,) = evaluate(to_graph(net, x.shape), [x], "float64")
    y = emulated(net, x, DIRECT.name, chosen(3, parts), False, folder)
    np.testing.assert_array_equal(np.isnan(y), np.isnan(expected))
    np.testing.assert_allclose(y, expected, rtol=0, atol=1e-5)


@pytest.mark.sampled(3)
@on_each(H200, full=A100)
@pytest.mark.parametrize("name", every(2, ["1x1", "residual", "7x7", "normalized"]))
def test_kernels_keep_to_their_budget(name: str, machine: Machine) -> None:
    """As many blocks as make 512 threads fit a multiprocessor, or 384 where it has less memory."""
    make, size = SMALL[name]
    problem, _ = convolution(make(), size)
    begin = list(SMALL).index(name) % 4 // 2  # other shapes of each network
    for shape in range(len(direct.SHAPES)) if IS_FULL else range(begin, len(direct.SHAPES), 2):
        launches = [
            launch
            for parts in (1, 2)
            for launch in DIRECT.launches(problem, chosen(shape, parts), H200)
        ]
        kernels = compile_kernels([launch.source for launch in launches], machine.arch)
        for launch, kernel in zip(launches, kernels, strict=True):
            taken, threads = kernel.resources, launch.block[0]
            blocks = (512 if machine is H200 else 384) // threads
            assert taken.spill_bytes == taken.stack_bytes == 0
            assert blocks * taken.registers * threads <= 65536
            assert blocks * (launch.shared_bytes + 1024) <= machine.shared_bytes


def test_one_text_serves_convolutions_of_all_sizes() -> None:
    for choice in (0, chosen(0, 4)):
        first, second = (
            DIRECT.launches(convolution(relu(*sizes, padding=1), shape)[0], choice, H200)
            for sizes, shape in (((16, 64, 3), (1, 16, 8, 8)), ((24, 80, 5), (3, 24, 9, 13)))
        )
        assert [launch.source for launch in first] == [launch.source for launch in second]


def test_only_exact_planar_convolutions_have_this_form() -> None:
    def has(net: md.Layer, size: tuple[int, ...], precision: str = "float32") -> bool:
        (problem,) = problems_of(net, size, precision)
        return DIRECT.name in {algorithm.core for algorithm in algorithms_for(problem, H200)}

    assert has(relu(16, 16, 3), (1, 16, 8, 8))
    assert has(relu(3, 16, 7, stride=2), (1, 3, 18, 18))
    assert not has(relu(16, 16, 3), (1, 16, 8, 8), "tf32")
    assert not has(relu(16, 16, 3), (1, 16, 8, 8), "float16")
    assert not has(relu(32, 32, 3, groups=2), (1, 32, 8, 8))
    assert has(relu(3, 16, 11), (1, 3, 18, 18))
    assert not has(relu(3, 16, 16), (1, 3, 18, 18))
    assert has(normalized(16, 16), (1, 16, 8, 8))
    assert not has(relu(16, 16, 1, padding=1), (1, 16, 8, 8))
    assert not has(L.Linear(16, 16), (1, 16))
    (problem,) = problems_of(relu(16, 16, 3), (1, 16, 8, 8), "float32")
    y = problem.y
    refused = DIRECT.why_not(replace(problem, y=replace(y, row=y.row + 1)), H200)
    assert refused is not None and "gaps" in refused


def test_few_pixels_are_divided_and_many_are_not() -> None:
    few, _ = convolution(relu(512, 512, 3, padding=1), (1, 512, 14, 14))
    assert all(direct.DIVISIONS[choice][1] >= 4 for choice in DIRECT.choices(few, H200))
    many, _ = convolution(relu(64, 64, 3, padding=1), (64, 64, 56, 56))
    assert direct.DIVISIONS[DIRECT.choices(many, H200)[0]][1] == 1
    for problem in (few, many):
        for choice in DIRECT.choices(problem, H200):
            shape, parts = direct.DIVISIONS[choice]
            assert chosen(direct.SHAPES.index(shape), parts) == choice


@pytest.mark.parametrize("channels", [128, 232, 520, 696, 2056])
def test_no_part_is_empty(channels: int) -> None:
    problem, _ = convolution(relu(channels, 32, 3, padding=1), (1, channels, 2, 2))
    slabs = -(-channels * 9 // 16)
    divided = [direct.DIVISIONS[choice][1] for choice in DIRECT.choices(problem, H200)]
    assert max(divided) > 1
    for parts in divided:
        assert (parts - 1) * -(-slabs // parts) < slabs


def test_more_blocks_than_a_grid_has_are_refused() -> None:
    problem, _ = convolution(relu(32, 32, 3, padding=1), (1, 32, 4, 4))
    for filters, channels, fits in ((65535, 32, True), (65536, 32, False)):
        shape = (filters, channels, *problem.w.shape[2:])
        larger = replace(problem, w=replace(problem.w, shape=shape))
        assert (DIRECT.why_not(larger, H200) is None) is fits


LARGE: dict[str, Network] = SMALL | {
    "slices": (lambda: dense(32), (3, 32, 14, 14)),
    "large": (lambda: relu(64, 64, 3, padding=1), (16, 64, 56, 56)),
    "deep": (lambda: residual_network(512, 14, 14), (2, 512, 14, 14)),
    "many images": (lambda: relu(64, 192, 1), (300, 64, 13, 13)),
}


@pytest.mark.gpu
@pytest.mark.parametrize("parts", [1, 2, 8])
@pytest.mark.parametrize("shape", range(len(direct.SHAPES)))
@pytest.mark.parametrize("name", LARGE)
def test_networks(name: str, shape: int, parts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    choice = chosen(shape, parts)
    only(monkeypatch, lambda algorithm: algorithm.core == DIRECT.name)
    monkeypatch.setattr(DIRECT, "choices", lambda problem, machine: [choice])
    check_on_gpu(LARGE[name], f"direct {direct.DIVISIONS.shown(choice)}")
