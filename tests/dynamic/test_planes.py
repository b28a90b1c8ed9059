"""Rows and columns of any size on the CPU: results at once, by kernels that know no sizes."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import minidnn as md
from minidnn import layers as L
from minidnn.backends.cpu.backend import CpuBackend, CpuProgram
from minidnn.backends.cpu.isa import AVX512, why_no_bfloat16
from minidnn.cache import forbid_builds
from minidnn.dynamic.executable import DynamicExecutable
from minidnn.frontends.onnx import convert
from minidnn.frontends.onnx.operators import quantization
from tests.onnx.models import model, node, save

PRECISIONS = [
    "float32",
    pytest.param(
        "bfloat16",
        marks=pytest.mark.skipif(
            why_no_bfloat16(AVX512) is not None, reason=str(why_no_bfloat16(AVX512))
        ),
    ),
]
HEIGHT, WIDTH = md.Dim("height", 9, 90), md.Dim("width", 9, 90)


@pytest.fixture(autouse=True)
def cpu() -> None:
    if (reason := CpuBackend().unavailable()) is not None:
        pytest.skip(reason)


def network(channels: int = 20) -> L.Sequential:
    return md.Sequential(
        L.Conv2d(3, channels, 3, stride=2, padding=1, bias=False),
        L.BatchNorm2d(channels),
        L.ReLU(),
        L.MaxPool2d(3, 2, padding=1),
        L.Conv2d(channels, channels, 3, padding=1, groups=channels),
        L.Conv2d(channels, 33, 1),
        L.Sigmoid(),
        L.AvgPool2d(2, ceil_mode=True, count_include_pad=False),
        L.AdaptiveAvgPool2d(1),
        L.Flatten(),
        L.Linear(33, 5),
    )


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng((seed, *shape)).standard_normal(shape).astype(np.float32)


def named(net: Any, shape: Any, **options: Any) -> DynamicExecutable:
    found = md.compile(net, shape, device="cpu", **options)
    assert isinstance(found, DynamicExecutable)
    return found


def expected(net: Any, x: np.ndarray) -> np.ndarray:
    exe = md.compile(net, x.shape, device="reference", precision="float64")
    return np.asarray(exe(x))


def assert_near(net: Any, x: np.ndarray, actual: np.ndarray, precision: str) -> None:
    """Within what several layers round, and not finite where that is expected."""
    with np.errstate(invalid="ignore"):
        wanted = expected(net, x)
    if precision == "float32":
        np.testing.assert_allclose(actual, wanted, rtol=1e-4, atol=1e-5)
    else:
        allowed = 4 * 2.0**-8 * float(np.abs(wanted[np.isfinite(wanted)]).max())
        np.testing.assert_allclose(actual, wanted, rtol=4 * 2.0**-8, atol=allowed)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.together
def test_new_sizes_are_computed_without_a_compiler(precision: str) -> None:
    net, random = network(), np.random.default_rng(1)
    sizes = (md.Dim("batch", 1, 8), 3, HEIGHT, WIDTH)
    exe = named(net, sizes, keep=3, precision=precision)
    with forbid_builds():
        for turn in range(12):
            shape = (int(random.integers(1, 9)), 3, *random.integers(9, 91, 2).tolist())
            x = numbers(*shape, seed=turn)
            assert_near(net, x, exe(x), precision)
        assert exe.counts.by_any_size == 12 and exe.counts.kept <= 3
        assert "12 calls were computed by kernels of any size" in exe.explain()


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.together(2)
def test_programs_share_packed_weights(precision: str) -> None:
    exe = named(L.Conv2d(64, 64, 3), (1, 64, HEIGHT, WIDTH), precision=precision)
    for rows, columns in [(9, 30), (31, 47), (80, 21)]:
        exe(numbers(1, 64, rows, columns))
    alone = exe.at(height=9, width=9).program
    assert exe.counts.kept == 4
    assert isinstance(alone, CpuProgram)
    assert exe.counts.weight_bytes < 2.5 * alone.constant_bytes


def test_no_pass_runs_for_a_new_size(monkeypatch: pytest.MonkeyPatch) -> None:
    net = network()
    exe = named(net, (1, 3, HEIGHT, WIDTH))
    monkeypatch.setattr("minidnn.compiler.optimize", None)
    x = numbers(1, 3, 52, 33)
    got = exe(x)
    monkeypatch.undo()
    assert_near(net, x, got, "float32")


@pytest.mark.together(2)
def test_what_passes_do_for_one_size_alone() -> None:
    """Of the most sizes the average is of single pixels, and left out."""
    net = md.Sequential(
        L.Conv2d(3, 4, 3, padding=1, stride=30), L.AdaptiveAvgPool2d(3), L.MaxPool2d(3)
    )
    exe = named(net, (1, 3, HEIGHT, WIDTH))
    for rows, columns in [(90, 90), (90, 20), (31, 70)]:
        x = numbers(1, 3, rows, columns)
        np.testing.assert_allclose(exe(x), expected(net, x), rtol=1e-4, atol=1e-5)


def test_weights_are_those_that_were_compiled() -> None:
    net = network()
    exe = named(net, (1, 3, HEIGHT, WIDTH))
    x = numbers(1, 3, 40, 41)
    before = expected(net, x)
    net.initialize(7)
    np.testing.assert_allclose(exe(x), before, rtol=1e-4, atol=1e-5)


@pytest.mark.together
def test_a_size_that_comes_again_gets_its_own_program() -> None:
    net = network()
    exe = named(net, (1, 3, HEIGHT, WIDTH))
    x = numbers(1, 3, 31, 47)
    first = exe(x)
    exe.wait()
    assert "compiled in the background" not in exe.explain()
    exe(x)
    exe.wait()
    assert "compiled in the background" in exe.explain()
    own = md.compile(net, x.shape, device="cpu")
    np.testing.assert_array_equal(exe(x), own(x))
    np.testing.assert_allclose(exe(x), first, rtol=1e-4, atol=1e-5)
    assert exe.counts.by_any_size == 2


@pytest.mark.together(2)
def test_warm_and_at_give_programs_of_their_own() -> None:
    net = network()
    exe = named(net, (1, 3, HEIGHT, WIDTH))
    x, y = numbers(1, 3, 9, 9), numbers(1, 3, 15, 20)
    exe(x)  # the least sizes have one of any size from the first on
    exe.warm([{"height": 9, "width": 9}])
    np.testing.assert_array_equal(exe(x), md.compile(net, x.shape, device="cpu")(x))
    own = exe.at(height=15, width=20)
    np.testing.assert_array_equal(own(y), md.compile(net, y.shape, device="cpu")(y))
    assert exe.counts.by_any_size == 1


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.together
def test_nan_and_infinity_stay_where_they_are(precision: str) -> None:
    net = md.Sequential(L.MaxPool2d(3, 1, padding=1), L.Conv2d(3, 17, 3, padding=1), L.ReLU())
    exe = named(net, (1, 3, HEIGHT, WIDTH), precision=precision)
    x = numbers(1, 3, 23, 40)
    x[0, 1, 5, 7], x[0, 2, 20, 30], x[0, 0, 0, 0] = np.nan, np.inf, -np.inf
    assert_near(net, x, exe(x), precision)


class Looks(L.Layer):
    """Code whose network is one for some sizes, and another for ``others``."""

    def __init__(self, others: set[int]) -> None:
        super().__init__()
        self.others = others

    def forward(self, x: Any) -> Any:
        return x * float(x.shape[2]) if x.shape[2] in self.others else L.ReLU()(x)


@pytest.mark.parametrize("others", [{21, 35}, {90, 21}])
@pytest.mark.together(2)
def test_code_that_looks_at_a_size_is_asked_at_each(others: set[int]) -> None:
    net = md.Sequential(L.Conv2d(3, 4, 3, padding=1), Looks(others))
    exe = named(net, (1, 3, HEIGHT, WIDTH))
    for rows in (20, 21):
        x = numbers(1, 3, rows, 30)
        np.testing.assert_allclose(exe(x), expected(net, x), rtol=1e-4, atol=1e-4)


@pytest.mark.together(3)
def test_a_file_is_asked_at_each_size(tmp_path: Path) -> None:
    """What its operators pad depends on the size, and is the same for most and half of them."""
    same = node("MaxPool", "x", kernel_shape=[3, 3], strides=[2, 2], auto_pad="SAME_UPPER")
    path = save(model([same], [("x", [1, 3, "H", "W"])]), tmp_path / "net.onnx")
    exe = named(path, (1, 3, md.Dim("H", 10, 90), md.Dim("W", 10, 90)))
    for rows, columns in [(32, 32), (57, 40), (33, 57)]:
        x = numbers(1, 3, rows, columns)
        np.testing.assert_array_equal(exe(x), md.compile(path, x.shape, device="reference")(x))


def quantized(path: Path) -> Path:
    """A file whose convolutions multiply bytes: of whole blocks, of groups, with a bias, and two
    that differ in what stands for zero alone."""
    random, nodes = np.random.default_rng(3), []
    constants: dict[str, Any] = {}
    last = "x"

    def rounds(name: str, scale: float, zero: int) -> None:
        nonlocal last
        constants[f"{name}.s"] = np.float32(scale).reshape(())
        constants[f"{name}.z"] = np.uint8(zero).reshape(())
        steps = [f"{name}.s", f"{name}.z"]
        nodes.append(helper.make_node("QuantizeLinear", [last, *steps], [f"{name}.q"]))
        nodes.append(helper.make_node("DequantizeLinear", [f"{name}.q", *steps], [f"{name}.d"]))
        last = f"{name}.d"

    def convolves(name: str, shape: tuple[int, ...], scale: float, **how: Any) -> None:
        nonlocal last
        constants[f"{name}.w"] = random.integers(-127, 128, shape, dtype=np.int8)
        constants[f"{name}.ws"] = np.float32(scale).reshape(())
        constants[f"{name}.wz"] = np.int8(0).reshape(())
        constants[f"{name}.b"] = random.standard_normal(shape[0]).astype(np.float32)
        weight = [f"{name}.{each}" for each in ("w", "ws", "wz")]
        nodes.append(helper.make_node("DequantizeLinear", weight, [f"{name}.f"]))
        given = [last, f"{name}.f", f"{name}.b"]
        nodes.append(helper.make_node("Conv", given, [name], **how))
        last = name

    rounds("a", 0.03, 120)
    convolves("c1", (32, 3, 3, 3), 0.004, strides=[2, 2], pads=[1, 1, 1, 1])
    rounds("b", 0.05, 100)
    pool = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}
    nodes.append(helper.make_node("MaxPool", [last], ["p"], **pool))
    last = "p"
    convolves("c2", (32, 1, 3, 3), 0.004, pads=[1, 1, 1, 1], group=32)
    rounds("c", 0.05, 128)
    convolves("c3", (33, 32, 1, 1), 0.004)
    rounds("d", 0.1, 40)
    convolves("c4", (33, 33, 3, 3), 0.001, pads=[1, 1, 1, 1])
    rounds("e", 0.1, 200)
    convolves("c5", (33, 33, 3, 3), 0.001, pads=[1, 1, 1, 1])
    rounds("f", 0.1, 200)
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, "H", "W"])]
    outputs = [helper.make_tensor_value_info(last, TensorProto.FLOAT, None)]
    arrays = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "quantized", inputs, outputs, arrays)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(made.SerializeToString())
    return path


@pytest.mark.together(3)
def test_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums of bytes are exact: all kernels give the same, and no pass runs for a new size."""
    path = quantized(tmp_path / "net.onnx")
    exe = named(path, (1, 3, md.Dim("H", 10, 90), md.Dim("W", 10, 90)), keep=3)
    assert exe.counts.by_any_size == 0
    for rows, columns in [(32, 32), (57, 41), (33, 90), (10, 11)]:
        x = numbers(1, 3, rows, columns)
        with forbid_builds(), monkeypatch.context() as patch:
            patch.setattr("minidnn.compiler.optimize", None)
            got = exe(x)
        np.testing.assert_array_equal(got, md.compile(path, x.shape, device="cpu")(x))
        wanted = np.asarray(md.compile(path, x.shape, device="reference")(x))
        # Numbers halfway between two steps may go to either, which two layers see.
        near = np.abs(got - wanted) <= 0.1 * np.abs(wanted).max()
        assert near.all() and np.abs(got - wanted).mean() < 1e-3 * np.abs(wanted).max()
    assert exe.counts.by_any_size == 4 and exe.counts.kept <= 3


@pytest.mark.together
def test_constants_are_computed_for_no_further_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two graphs of this file show what those of all sizes are."""
    path = quantized(tmp_path / "net.onnx")
    computed: list[str] = []
    numbers_of = quantization._numbers_of

    def counted(x: Any, *how: Any) -> np.ndarray:
        computed.append(x.name)
        return numbers_of(x, *how)

    monkeypatch.setattr(quantization, "_numbers_of", counted)
    exe = named(path, (1, 3, md.Dim("H", 10, 90), md.Dim("W", 10, 90)))
    assert set(computed) == {"c2.w"}  # of the others the kernels read bytes
    computed.clear()
    monkeypatch.setattr(convert, "load_model", None)
    got = {shape: exe(numbers(1, 3, *shape)) for shape in [(57, 41), (30, 88)]}
    assert not computed
    monkeypatch.undo()
    for shape, result in got.items():
        own = md.compile(path, (1, 3, *shape), device="cpu")
        np.testing.assert_array_equal(result, own(numbers(1, 3, *shape)))


@pytest.mark.together(2)
def test_without_a_background_each_size_has_its_own() -> None:
    exe = named(L.Conv2d(3, 8, 3), (1, 3, HEIGHT, 12), background=False)
    exe(numbers(1, 3, 30, 12))
    assert exe.counts.by_any_size == 0 and exe.counts.compiled == 2


@pytest.mark.parametrize("collects", [True, False])
def test_the_collector_is_left_as_it_was(collects: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits while a program for other sizes is made, whatever comes of that."""
    exe = named(network(), (1, 3, HEIGHT, WIDTH))
    during: list[bool] = []
    usual = CpuProgram.of_size

    def of_size(self: CpuProgram, plan: Any) -> Any:
        during.append(gc.isenabled())
        if len(during) > 1:
            raise md.GraphError("refused")
        return usual(self, plan)

    monkeypatch.setattr(CpuProgram, "of_size", of_size)
    before = gc.isenabled()
    (gc.enable if collects else gc.disable)()
    try:
        for size in (30, 31):
            exe(numbers(1, 3, size, size))
            assert gc.isenabled() == collects
    finally:
        (gc.enable if before else gc.disable)()
    assert during == [False, False]
