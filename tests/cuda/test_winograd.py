"""Winograd's F(2x2, 3x3) by our kernels: in the emulator, compiled, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from minidnn.backends.cuda.arch import shared_limit
from minidnn.backends.cuda.build import compile_kernels
from minidnn.backends.cuda.contraction import tune, winograd
from minidnn.backends.cuda.contraction.forms import forms_of
from minidnn.backends.cuda.contraction.own import WINOGRAD
from minidnn.backends.cuda.contraction.problem import ContractionProblem, Place
from minidnn.backends.cuda.contraction.recipe import Form
from minidnn.backends.cuda.lower import Data, Pointer, lower_plan
from minidnn.graph.evaluate import evaluate
from minidnn.layers.build import to_graph

from .contractions import Forgetful, dense, draw_weights
from .emulator.run import Emulated, guarded
from .lowered import ARCH, planned, problems_of

Network = tuple[Callable[[], md.Layer], tuple[int, ...]]


def relu(channels: int, filters: int, padding: int | tuple[int, int] = 1) -> md.Layer:
    return L.Sequential(L.Conv2d(channels, filters, 3, padding=padding), L.ReLU())


def residual(channels: int, rows: int, columns: int) -> md.Layer:
    x = md.Input((channels, rows, columns))
    return md.Model(x, L.ReLU()(L.Conv2d(channels, channels, 3, padding=1, bias=False)(x) + x))


SMALL: dict[str, Network] = {
    "even": (lambda: relu(16, 64), (2, 16, 8, 12)),
    "odd": (lambda: relu(20, 40), (3, 20, 7, 9)),
    "unpadded": (lambda: relu(17, 33, 0), (1, 17, 8, 11)),
    "padded": (lambda: relu(24, 16, (2, 1)), (2, 24, 5, 6)),
    "one pixel": (lambda: relu(16, 70), (5, 16, 1, 1)),
    "residual": (lambda: residual(32, 9, 7), (2, 32, 9, 7)),
    "no bias": (lambda: L.Conv2d(16, 16, 3, padding=1, bias=False), (1, 16, 33, 5)),
}


def convolution(net: md.Layer, shape: tuple[int, ...]) -> tuple[ContractionProblem, list[Pointer]]:
    """The problem of a network of one convolution, and what it is computed on."""
    tasks = lower_plan(planned(net, shape, "float32"), ARCH, False)
    (task,) = (task for task in tasks if isinstance(task.work, ContractionProblem))
    assert isinstance(task.work, ContractionProblem)
    return task.work, list(task.pointers)


def laid(pointer: Pointer) -> np.ndarray:
    assert isinstance(pointer, Data)
    return np.ascontiguousarray(pointer.make(), np.float32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of compiled kernels: one text serves several tests."""
    return tmp_path_factory.mktemp("emulated")


def emulated(
    net: md.Layer, x: np.ndarray, shape: winograd.Shape, backwards: bool, folder: Path, wide: int
) -> np.ndarray:
    """The result, written between ``wide`` channels on either side that must stay as they are."""
    problem, (_, weight, _, *rest) = convolution(net, x.shape)
    y = problem.y
    plane = y.rows * y.columns
    channels = y.channels + 2 * wide
    problem = replace(problem, y=replace(y, image=channels * plane, offset=wide * plane))
    first, second = winograd.launches_of(problem, shape)
    kernels = Emulated([first.source, second.source], folder)
    filter_sizes, sizes = (
        [np.array([n]) for n in some] for some in winograd.sizes_of(problem, shape)
    )
    whole, room = guarded(winograd.filter_bytes(problem, shape) // 4, np.dtype("f"))
    kernels.launch(first, [laid(weight), room, *filter_sizes], backwards)
    assert np.isfinite(room).all() and np.isnan(whole).sum() == whole.size - room.size
    _, image = guarded(x.size, np.dtype("f"))
    image[:] = x.ravel()
    read = [image if isinstance(one, Place) else laid(one) for one in rest]
    whole, made = guarded(problem.batch * channels * plane, np.dtype("f"))
    kernels.launch(second, [image, room, *read, made, *sizes], backwards)
    result = made.reshape(problem.batch, channels, y.rows, y.columns)
    written = result[:, wide : wide + y.channels]
    assert np.isnan(whole).sum() == whole.size - written.size, "something else was written"
    return written


@pytest.mark.parametrize("shape", winograd.SHAPES, ids=str)
@pytest.mark.parametrize("name", SMALL)
def test_numbers(name: str, shape: winograd.Shape, folder: Path) -> None:
    make, size = SMALL[name]
    net = make()
    random = np.random.default_rng(0)
    draw_weights(net, random)
    x = random.standard_normal(size).astype(np.float32)
    (expected,) = evaluate(to_graph(net, size), [x], "float64")
    wide = 3 if name == "odd" else 0
    y = emulated(net, x, shape, False, folder, wide)
    np.testing.assert_allclose(y, expected, rtol=0, atol=2e-6 * np.abs(expected).max())
    np.testing.assert_array_equal(emulated(net, x, shape, True, folder, wide), y)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("name", ["even", "residual"])
def test_kernels_keep_to_their_budget(name: str, arch: str) -> None:
    make, size = SMALL[name]
    problem, _ = convolution(make(), size)
    for shape in winograd.SHAPES:
        launches = winograd.launches_of(problem, shape)
        kernels = compile_kernels([launch.source for launch in launches], arch)
        for launch, kernel in zip(launches, kernels, strict=True):
            taken = kernel.resources
            assert taken.spill_bytes == taken.stack_bytes == 0
            assert taken.registers * launch.block[0] <= 65536
            assert launch.shared_bytes <= shared_limit(arch)


def test_one_text_serves_convolutions_of_all_sizes() -> None:
    first, second = (
        winograd.launches_of(convolution(relu(*sizes), shape)[0], winograd.SHAPES[0])
        for sizes, shape in (((16, 64), (1, 16, 8, 8)), ((24, 80), (3, 24, 9, 13)))
    )
    assert [launch.source for launch in first] == [launch.source for launch in second]


def test_only_exact_3x3_convolutions_have_this_form() -> None:
    def has(net: md.Layer, size: tuple[int, ...], precision: str = "float32") -> bool:
        (problem,) = problems_of(net, size, precision)
        return WINOGRAD in {form.core for form in forms_of(problem, ARCH)}

    assert has(relu(16, 16), (1, 16, 8, 8))
    assert not has(relu(16, 16), (1, 16, 8, 8), "tf32")
    assert not has(relu(3, 16), (1, 3, 8, 8))
    assert not has(L.Conv2d(16, 16, 3, stride=2), (1, 16, 8, 8))
    assert not has(L.Conv2d(16, 16, 3, dilation=2), (1, 16, 8, 8))
    assert not has(L.Conv2d(32, 32, 3, groups=2), (1, 32, 8, 8))
    assert not has(L.Conv2d(16, 16, 5), (1, 16, 8, 8))
    (problem,) = problems_of(relu(16, 16), (1, 16, 8, 8), "float32")
    refused = winograd.why_not_winograd(replace(problem, accuracy="high"))
    assert refused is not None and "less accurate" in refused


def test_no_filters_are_wasted_where_there_is_a_choice() -> None:
    problem, _ = convolution(relu(16, 64), (1, 16, 8, 8))
    assert winograd.candidates(problem) == [0, 1]
    problem, _ = convolution(relu(16, 32), (1, 16, 8, 8))
    assert winograd.candidates(problem) == [1]


LARGE: dict[str, Network] = SMALL | {
    "dense": (lambda: dense(32), (3, 32, 14, 14)),
    "large": (lambda: relu(64, 64), (16, 64, 56, 56)),
    "deep": (lambda: residual(512, 14, 14), (2, 512, 14, 14)),
    "stride of images": (lambda: relu(64, 192), (300, 64, 13, 13)),
}


@pytest.mark.gpu
@pytest.mark.parametrize("choice", range(len(winograd.SHAPES)))
@pytest.mark.parametrize("name", LARGE)
def test_networks(name: str, choice: int, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = tune.forms_of

    def forms(problem: ContractionProblem, arch: str) -> list[Form]:
        every = usual(problem, arch)
        return [form for form in every if form.core == WINOGRAD] or every

    monkeypatch.setattr(tune, "forms_of", forms)
    monkeypatch.setattr(tune, "own_choices", lambda problem, core, arch: [choice])
    monkeypatch.setattr(tune, "_store", Forgetful())
    make, size = LARGE[name]
    net = make()
    random = np.random.default_rng(0)
    draw_weights(net, random)
    x = random.standard_normal(size).astype(np.float32)
    few = np.unique([0, 1 % size[0], size[0] - 1])
    (expected,) = evaluate(to_graph(net, (len(few), *size[1:])), [x[few]], "float64")
    exe = md.compile(net, size, device="cuda", precision="float32")
    assert f"winograd {winograd.SHAPES[choice]}" in exe.explain(measure=True)
    result = np.asarray(exe(x), np.float64)
    assert np.isfinite(result).all()
    assert np.abs(result[few] - expected).max() <= 3e-6 * np.abs(expected).max()
    np.testing.assert_array_equal(np.asarray(exe(x), np.float64), result)
