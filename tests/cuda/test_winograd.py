"""Winograd's F(2x2, 3x3) by our kernels: in the emulator, compiled, and what it refuses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import minidnn as md
from minidnn import layers as L
from minidnn.backends.cuda.contraction import winograd
from minidnn.backends.cuda.contraction.algorithms import algorithms_for
from minidnn.backends.cuda.functions import compile_kernels
from minidnn.backends.cuda.machine import Machine
from tests.cuda.cards import A100, H200
from tests.sampling import mixed, some

from .contractions import WINOGRAD, dense
from .lowered import problems_of
from .single import Network, check_emulated, check_on_gpu, convolution, only, residual_network


def relu(channels: int, filters: int, padding: int | tuple[int, int] = 1) -> md.Layer:
    return L.Sequential(L.Conv2d(channels, filters, 3, padding=padding), L.ReLU())


SMALL: dict[str, Network] = {
    "even": (lambda: relu(16, 64), (2, 16, 8, 12)),
    "odd": (lambda: relu(20, 40), (3, 20, 7, 9)),
    "unpadded": (lambda: relu(17, 33, 0), (1, 17, 8, 11)),
    "padded": (lambda: relu(24, 16, (2, 1)), (2, 24, 5, 6)),
    "one pixel": (lambda: relu(16, 70), (5, 16, 1, 1)),
    "residual": (lambda: residual_network(32, 9, 7), (2, 32, 9, 7)),
    "no bias": (lambda: L.Conv2d(16, 16, 3, padding=1, bias=False), (1, 16, 33, 5)),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of compiled kernels: one text serves several tests."""
    return tmp_path_factory.mktemp("emulated")


@pytest.mark.sampled(3)
@pytest.mark.race
@pytest.mark.parametrize(("name", "choice"), mixed(2, SMALL, range(2 * len(winograd.SHAPES))))
def test_numbers(name: str, choice: int, folder: Path) -> None:
    check_emulated(SMALL[name], WINOGRAD.name, [choice], folder, wide=3 if name == "odd" else 0)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("name", "machine"), mixed(2, ["even", "residual"], [A100, H200]))
def test_kernels_keep_to_their_budget(name: str, machine: Machine) -> None:
    make, size = SMALL[name]
    problem, _ = convolution(make(), size)
    for choice in some(range(2 * len(winograd.SHAPES)), 2):
        launches = WINOGRAD.launches(problem, choice, H200)
        kernels = compile_kernels([launch.source for launch in launches], machine.arch)
        for launch, kernel in zip(launches, kernels, strict=True):
            taken = kernel.resources
            assert taken.spill_bytes == taken.stack_bytes == 0
            assert taken.registers * launch.block[0] <= 65536
            assert launch.shared_bytes <= machine.shared_bytes


def test_one_text_serves_convolutions_of_all_sizes() -> None:
    first, second = (
        WINOGRAD.launches(convolution(relu(*sizes), shape)[0], 0, H200)
        for sizes, shape in (((16, 64), (1, 16, 8, 8)), ((24, 80), (3, 24, 9, 13)))
    )
    assert [launch.source for launch in first] == [launch.source for launch in second]


def test_only_exact_3x3_convolutions_have_this_form() -> None:
    def has(net: md.Layer, size: tuple[int, ...], precision: str = "float32") -> bool:
        (problem,) = problems_of(net, size, precision)
        return WINOGRAD.name in {algorithm.core for algorithm in algorithms_for(problem, H200)}

    assert has(relu(16, 16), (1, 16, 8, 8))
    assert not has(relu(16, 16), (1, 16, 8, 8), "tf32")
    assert not has(relu(3, 16), (1, 3, 8, 8))
    assert not has(L.Conv2d(16, 16, 3, stride=2), (1, 16, 8, 8))
    assert not has(L.Conv2d(16, 16, 3, dilation=2), (1, 16, 8, 8))
    assert not has(L.Conv2d(32, 32, 3, groups=2), (1, 32, 8, 8))
    assert not has(L.Conv2d(16, 16, 5), (1, 16, 8, 8))
    (problem,) = problems_of(relu(16, 16), (1, 16, 8, 8), "float32")
    refused = WINOGRAD.refusal(replace(problem, accuracy="high"), H200)
    assert refused is not None and "less accurate" in refused


def test_no_filters_are_wasted_where_there_is_a_choice() -> None:
    problem, _ = convolution(relu(16, 64), (1, 16, 8, 8))
    assert {choice % 2 for choice in WINOGRAD.choices(problem, H200)} == {0, 1}
    problem, _ = convolution(relu(16, 32), (1, 16, 8, 8))
    assert {choice % 2 for choice in WINOGRAD.choices(problem, H200)} == {1}


def test_few_tiles_are_divided_and_many_are_not() -> None:
    few, _ = convolution(relu(512, 512), (1, 512, 28, 28))
    assert {winograd.DIVISIONS[choice][1] for choice in WINOGRAD.choices(few, H200)} == {2, 4}
    many, _ = convolution(relu(64, 64), (64, 64, 56, 56))
    assert winograd.DIVISIONS[WINOGRAD.choices(many, H200)[0]][1] == 1


@pytest.mark.parametrize("channels", [128, 232, 520, 696, 2056])
def test_no_part_is_empty(channels: int) -> None:
    problem, _ = convolution(relu(channels, 32), (1, channels, 2, 2))
    slabs = -(-channels // 8)
    divided = [winograd.DIVISIONS[choice][1] for choice in WINOGRAD.choices(problem, H200)]
    assert max(divided) > 1
    for parts in divided:
        assert (parts - 1) * -(-slabs // parts) < slabs


def test_more_blocks_than_a_grid_has_are_refused() -> None:
    problem, _ = convolution(relu(32, 32), (1, 32, 4, 4))
    for filters, channels, fits in (
        (65535, 32, True),
        (65536, 32, False),
        (32, 65528, True),
        (32, 65529, False),
    ):
        shape = (filters, channels, *problem.w.shape[2:])
        larger = replace(problem, w=replace(problem.w, shape=shape))
        assert (WINOGRAD.why_not(larger, H200) is None) is fits


LARGE: dict[str, Network] = SMALL | {
    "dense": (lambda: dense(32), (3, 32, 14, 14)),
    "large": (lambda: relu(64, 64), (16, 64, 56, 56)),
    "deep": (lambda: residual_network(512, 14, 14), (2, 512, 14, 14)),
    "stride of images": (lambda: relu(64, 192), (300, 64, 13, 13)),
}


@pytest.mark.gpu
@pytest.mark.parametrize("choice", range(2 * len(winograd.SHAPES)))
@pytest.mark.parametrize("name", LARGE)
def test_networks(name: str, choice: int, monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, lambda algorithm: algorithm.core == WINOGRAD.name)
    monkeypatch.setattr(WINOGRAD, "choices", lambda problem, machine: [choice])
    check_on_gpu(LARGE[name], f"winograd {winograd.DIVISIONS.shown(choice)}")
