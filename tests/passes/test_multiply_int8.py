"""multiply_int8: contractions of quantized numbers multiply their bytes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minidnn as md
from minidnn.backends.cpu.isa import AVX2, INT8_ISAS, best_isa, with_int8
from minidnn.backends.cpu.target import CpuTarget
from minidnn.errors import UnsupportedError
from minidnn.fusion.target import Target
from minidnn.graph import operators as ops
from minidnn.graph.evaluate import evaluate
from minidnn.graph.ir import Graph, Value
from minidnn.graph.quantization import PER_CHANNEL, Steps
from minidnn.graph.trace import Trace, apply
from minidnn.graph.types import TensorType
from minidnn.passes.infrastructure import Context
from minidnn.passes.multiply_int8 import MULTIPLY_INT8
from minidnn.passes.simplify import SIMPLIFY
from tests.passes.build import Build, graph_of, join, max_pool, ops_of, relu, run

X = (2, 6, 7, 9)
INPUT, MIDDLE, LAST = (
    Steps(0.03125, 128, "uint8"),
    Steps(0.0625, 3, "uint8"),
    Steps(0.125, -7, "int8"),
)


def known(trace: Trace, name: str, array: np.ndarray) -> Value:
    type = TensorType(array.shape, str(array.dtype))
    return trace.constant(object(), name, type, lambda: array)


def weight(trace: Trace, shape: Sequence[int], each: bool = True, dtype: str = "int8") -> Value:
    """A weight by bytes, with a scale for each output or one for all."""
    name = f"w{len(trace.nodes)}"
    random = np.random.default_rng(list(name.encode()))
    bounds = np.iinfo(dtype)
    given = random.integers(bounds.min, bounds.max, shape, dtype, endpoint=True)
    zero = 0.0
    if dtype == "uint8":  # without its zero it fits int8
        given, zero = np.clip(given, 10, 250).astype(np.uint8), 130.0
    one = (1,) * (len(shape) - 1)
    count = shape[0] if each else 1
    scale = (0.5 + random.random((count, *one)).astype(np.float32)) / np.float32(500)
    numbers = (
        known(trace, f"{name}.scale", scale),
        known(trace, f"{name}.zero", np.full_like(scale, zero)),
    )
    return apply(PER_CHANNEL, known(trace, name, given), *numbers)


def q(x: Value, steps: Steps) -> Value:
    return apply(steps.quantize(), x)


def dq(x: Value, steps: Steps) -> Value:
    return apply(steps.dequantize(), x)


def conv(trace: Trace, x: Value, channels: int, kernel: int = 3, **more: Any) -> Value:
    pad = (kernel // 2,) * 2
    bias = known(trace, f"b{len(trace.nodes)}", np.linspace(-1, 1, channels, dtype=np.float32))
    return apply(
        ops.Conv2d(padding=(pad, pad)),
        x,
        weight(trace, (channels, x.shape[1], kernel, kernel), **more),
        bias,
    )


def after(build: Build, *shapes: Sequence[int]) -> Graph:
    """A graph before and after the pass: numbers of the same step, or the next one."""
    before = graph_of(build, *(shapes or (X,)))
    result = run(run(before, MULTIPLY_INT8, context=Context(CpuTarget())), SIMPLIFY)
    random = np.random.default_rng(5)
    inputs = [2 * random.standard_normal(value.shape).astype(np.float32) for value in before.inputs]
    for found, wanted in zip(evaluate(result, inputs), evaluate(before, inputs), strict=True):
        assert found.dtype == wanted.dtype
        if found.dtype.kind == "f":
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-4)
        else:
            apart = np.abs(found.astype(int) - wanted.astype(int))
            assert apart.max() <= 1 and (apart > 0).mean() < 0.01
            assert len(np.unique(wanted)) > 20
    return result


@pytest.mark.parametrize("how", [{}, {"each": False}, {"dtype": "uint8"}], ids=str)
def test_a_convolution(how: dict[str, Any]) -> None:
    def build(trace: Trace, x: Value) -> Value:
        return q(relu(conv(trace, dq(q(x, INPUT), INPUT), 8, **how)), MIDDLE)

    result = after(build)
    quantize, convolution, rounds = result.nodes
    assert [quantize.inputs[0].dtype, quantize.output.dtype] == ["float32", INPUT.dtype]
    assert isinstance(convolution.op, ops.Conv2d) and convolution.op.zero == 128
    assert [value.dtype for value in convolution.inputs] == ["uint8", "int8"]
    assert rounds.inputs[0] is convolution.output and rounds.output.dtype == "uint8"


def test_linear_layers() -> None:
    def build(trace: Trace, x: Value) -> list[Value]:
        bytes_ = q(x, LAST)
        once = apply(ops.Linear(), dq(bytes_, LAST), weight(trace, (5, x.shape[-1])))
        return [once, dq(bytes_, LAST)]

    for shape in ((3, 10), (2, 3, 10)):
        result = after(build, shape)
        assert [node.inputs[0].dtype for node in result.nodes if node.op.name == "Linear"] == [
            "int8"
        ]


def test_adding_and_joining_bytes() -> None:
    """Each reads bytes and writes bytes: nothing between lies in float32."""

    def build(trace: Trace, x: Value) -> Value:
        given = dq(q(x, INPUT), INPUT)
        one, other = (
            dq(q(conv(trace, given, 8), MIDDLE), MIDDLE),
            dq(q(conv(trace, given, 8, 1), LAST), LAST),
        )
        total = dq(q(relu(apply(ops.Add(), one, other)), MIDDLE), MIDDLE)
        return dq(q(join(total, other), MIDDLE), MIDDLE)

    result = after(build)
    floats = [v for node in result.nodes for v in node.outputs if v.dtype == "float32"]
    assert all(v.producer is not None for v in floats)
    assert {v.producer.op.name for v in floats if v.producer} <= {"Rescale", "DequantizeLinear"}
    (joined,) = (node for node in result.nodes if isinstance(node.op, ops.Concat))
    assert {value.dtype for value in joined.inputs} == {"uint8"}


@pytest.mark.parametrize("steps", [MIDDLE, LAST], ids=["uint8", "int8"])
@pytest.mark.parametrize("window", [(3, 2, 1), (2, 2, 0), (3, 1, 1), (5, 3, 2)], ids=str)
@pytest.mark.together
def test_maxima_of_bytes(window: Any, steps: Steps, warm_cache: Path) -> None:
    def build(trace: Trace, x: Value) -> Value:
        return q(max_pool(x, *window), steps)

    result = after(build)
    assert [node.op.name for node in result.nodes] == ["QuantizeLinear", "MaxPool2d"]
    x = 2 * np.random.default_rng(8).standard_normal(X).astype(np.float32)
    (wanted,) = evaluate(result, [x])
    found = md.compile(graph_of(build, X), device="cpu", guarded=True)(x)
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("size", [(9, 11), (40, 70)], ids=str)
@pytest.mark.together
def test_averages_and_sums_of_bytes(size: tuple[int, int], warm_cache: Path) -> None:
    """One kernel reads bytes and writes bytes, whatever is computed between."""

    def build(trace: Trace, x: Value) -> Value:
        given = dq(q(x, INPUT), INPUT)
        mean = apply(ops.AvgPool2d((3, 3), (1, 1), (1, 1)), given)
        total = apply(ops.Add(), mean, given)
        return q(max_pool(relu(total), 3, 2), MIDDLE)

    graph = graph_of(build, (2, 19, *size))
    x = 2 * np.random.default_rng(8).standard_normal((2, 19, *size)).astype(np.float32)
    (wanted,) = evaluate(graph, [x])
    exe = md.compile(graph, device="cpu", guarded=True)
    found = exe(x)
    apart = np.abs(found.astype(int) - wanted.astype(int))
    assert apart.max() <= 1 and (apart > 0).mean() < 0.01 and len(np.unique(wanted)) > 20
    values = {v.dtype for node in exe.plan.graph.nodes for v in node.outputs}
    assert values == {"uint8"}


def test_what_stays() -> None:
    """Weights that do not fit int8, inputs that were not quantized, and another target's graphs."""

    def wide(trace: Trace, x: Value) -> Value:
        given = weight(trace, (4, X[1], 1, 1), dtype="uint8")
        assert given.producer is not None
        zero = known(trace, "zero", np.zeros((4, 1, 1, 1), np.float32))
        w = apply(PER_CHANNEL, given.producer.inputs[0], given.producer.inputs[1], zero)
        return apply(ops.Conv2d(), dq(q(x, INPUT), INPUT), w)

    def floats(trace: Trace, x: Value) -> Value:
        return conv(trace, x, 4)

    for build in (wide, floats):
        result = run(graph_of(build, X), MULTIPLY_INT8, context=Context(CpuTarget()))
        (kept,) = (node for node in result.nodes if isinstance(node.op, ops.Conv2d))
        assert kept.output.dtype == "float32"
    graph = graph_of(lambda trace, x: conv(trace, dq(q(x, INPUT), INPUT), 4), X)
    assert run(graph, MULTIPLY_INT8, context=Context(Target())) is graph


def test_fuel() -> None:
    graph = graph_of(lambda trace, x: q(conv(trace, dq(q(x, INPUT), INPUT), 4), MIDDLE), X)
    context = Context(CpuTarget(), fuel=0)
    assert ops_of(run(graph, MULTIPLY_INT8, context=context)) == ops_of(graph)


def network(trace: Trace, x: Value) -> Value:
    """Everything that a quantized network has, with odd sizes."""
    given = dq(q(x, INPUT), INPUT)
    first = relu(conv(trace, given, 24))
    second = dq(q(first, MIDDLE), MIDDLE)
    third = apply(ops.Add(), conv(trace, second, 24), second)
    pooled = max_pool(dq(q(relu(third), MIDDLE), MIDDLE), 3, 2)
    fourth = dq(q(join(pooled, pooled), MIDDLE), MIDDLE)
    last = conv(trace, fourth, 33, 1)
    mean = apply(ops.AdaptiveAvgPool2d((1, 1)), last)
    flat = dq(q(apply(ops.Flatten(), mean), LAST), LAST)
    return apply(ops.Linear(), flat, weight(trace, (10, 33)))


@pytest.mark.parametrize("isa", ["best", "avx2"])
@pytest.mark.together
def test_the_cpu_engine(isa: str, warm_cache: Path, tmp_path: Path) -> None:
    """A whole network: the same numbers on every ISA, with and without instructions for bytes,
    also from a file, and no access beside a value."""
    graph = graph_of(network, (2, 5, 9, 11))
    x = np.random.default_rng(3).standard_normal((2, 5, 9, 11)).astype(np.float32)
    name = best_isa().name if isa == "best" else isa
    (wanted,) = evaluate(graph, [x])
    exe = md.compile(graph, device="cpu", isa=name, threads=2)
    found = exe(x)
    assert np.abs(found - wanted).max() < 0.02 * np.abs(wanted).max()
    guarded = md.compile(graph, device="cpu", isa=name, threads=2, guarded=True)
    np.testing.assert_array_equal(guarded(x), found)
    exe.save(tmp_path / "net.mdx")
    np.testing.assert_array_equal(md.load(tmp_path / "net.mdx")(x), found)


def test_instructions_for_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    (extended,) = INT8_ISAS["avx2"]
    monkeypatch.setattr(
        "minidnn.backends.cpu.isa.processor_flags", lambda: frozenset(extended.flags)
    )
    assert with_int8(AVX2) is extended
    monkeypatch.setattr("minidnn.backends.cpu.isa.processor_flags", lambda: frozenset(AVX2.flags))
    assert with_int8(AVX2) is AVX2


def test_a_weight_that_is_given_is_refused() -> None:
    def build(trace: Trace, x: Value, w: Value) -> Value:
        return apply(ops.Conv2d(), q(x, LAST), q(w, LAST))

    with pytest.raises(UnsupportedError, match="its weights are computed"):
        md.compile(graph_of(build, X, (4, X[1], 1, 1)), device="cpu")
