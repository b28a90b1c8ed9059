"""precision="auto": the choice by errors and times, what is said of it, and what is refused."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from minidnn.backends import backend as backends
from minidnn.backends.backend import get_backend, why_not_in
from minidnn.backends.reference import ReferenceBackend
from minidnn.cli import main
from minidnn.compiler import unsupported_nodes
from minidnn.errors import GraphError, OutOfMemoryError, UnsupportedError
from minidnn.executable import Executable
from minidnn.graph.ir import Graph, Node
from minidnn.graph.trace import tracing
from minidnn.graph.types import TensorType
from minidnn.layers.build import to_graph
from minidnn.passes.pipeline import PIPELINE
from minidnn.precision import relative_errors, times_of
from minidnn.report.explain import PrecisionTrial
from minidnn.runtime.plan import Plan
from minidnn.runtime.program import Program
from tests.compile.several import Several
from tests.devices import unavailable
from tests.states import build as states

SHAPE = (2, 3, 8, 8)
#: The relative error of each of the device's precisions.
ERRORS = {"tf32": 2e-4, "float16": 1e-3, "bfloat16": 3e-3}


class RoughProgram:
    """A program whose first output is wrong by some share, and whose others by half of that."""

    def __init__(self, exact: Program, error: float) -> None:
        self.exact, self.error = exact, error

    def run(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        self.exact.run(inputs, outputs)
        for place, output in enumerate(outputs):
            if output.dtype.kind == "f":
                output *= 1 + self.error / (1 + place)


class RoughBackend(ReferenceBackend):
    """A device that errs by as much as it says, lacks one precision, and refuses another one."""

    name = "rough"

    def precisions(self) -> Sequence[str]:
        return ("float32", "float64", *ERRORS, "int4", "fp8", "int2")

    def why_not_in(self, precision: str) -> str | None:
        return "this machine is too old" if precision == "int4" else None

    def unsupported(self, node: Node, precision: str) -> str | None:
        return "there is no kernel" if precision == "fp8" else None

    def compile(self, plan: Plan, precision: str, options: Mapping[str, Any]) -> Any:
        if precision == "int2":
            raise OutOfMemoryError("2 bytes are needed, and 1 is left")
        exact = super().compile(plan, "float32", options)
        return exact if precision == "float32" else RoughProgram(exact, ERRORS[precision])


Times = Mapping[str, float]
Timed = Callable[..., None]


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> Timed:
    """Installs the device "rough", on which calls take as many seconds as is said."""
    monkeypatch.setitem(backends._BUILT_IN, "rough", RoughBackend)

    def timed(spread: float = 0.0, **seconds: float) -> None:
        def times(executables: Mapping[str, Executable], call: Any) -> dict[str, list[float]]:
            signs = [1, -1, 1, -1, 1, -1, 1]
            return {
                name: [
                    seconds[name] * (1 + (spread * sign if name != "float32" else 0))
                    for sign in signs
                ]
                for name in executables
            }

        monkeypatch.setattr("minidnn.precision.times_of", times)

    timed(float32=4e-3, tf32=2e-3, float16=1.5e-3, bfloat16=1e-3)
    return timed


def network() -> md.Sequential:
    return md.Sequential(L.Conv2d(3, 4, 3), L.ReLU(), L.Flatten(), L.Linear(144, 5))


def auto(net: Any = None, shape: Any = SHAPE, **options: Any) -> Any:
    options = {"device": "rough", "precision": "auto"} | options
    return md.compile(network() if net is None else net, shape, **options)


def trials_of(executable: Executable) -> Sequence[PrecisionTrial]:
    assert executable.automatic_precision is not None
    return executable.automatic_precision.trials


def refused(kind: type[Exception], text: str, *args: Any, **options: Any) -> None:
    with pytest.raises(kind, match=f"(?s)^{text}$"):
        auto(*args, **options)


@pytest.mark.parametrize(
    ("tolerance", "expected"),
    [
        (1e-5, "float32"),
        (5e-4, "tf32"),
        (2e-3, "float16"),
        (None, "bfloat16"),
        (np.float32(5), "bfloat16"),
    ],
)
def test_the_fastest_within_the_tolerance_is_taken(
    timed: Timed, tolerance: Any, expected: str
) -> None:
    found = auto(tolerance=tolerance)
    assert found.precision == found.automatic_precision.chosen == expected
    x = np.ones(SHAPE, np.float32)
    error = ERRORS.get(expected, 0.0)
    net = network()
    exact = md.compile(net, SHAPE, device="reference")(x)
    np.testing.assert_allclose(auto(net, tolerance=tolerance)(x), exact * (1 + error), rtol=1e-6)


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ({"tf32": 5.0, "float16": 5.0, "bfloat16": 5.0}, "float32"),
        ({"tf32": 4.0, "float16": 4.0, "bfloat16": 4.0}, "float32"),
        # What rounds less is taken where nothing is faster.
        ({"tf32": 2.0, "float16": 2.0, "bfloat16": 2.0}, "tf32"),
        ({"tf32": 3.0, "float16": 2.0, "bfloat16": 2.5}, "float16"),
        # As fast as chance makes it.
        ({"spread": 0.3, "tf32": 3.6, "float16": 3.7, "bfloat16": 3.8}, "float32"),
        ({"spread": 0.3, "tf32": 2.0, "float16": 1.9, "bfloat16": 1.0}, "bfloat16"),
    ],
)
def test_a_precision_is_taken_only_if_it_is_surely_faster(
    timed: Timed, times: dict[str, float], expected: str
) -> None:
    timed(float32=4.0, **times)
    assert auto().precision == expected


def test_explain_says_what_was_found(timed: Timed, tmp_path: Path) -> None:
    found = auto(tolerance=2e-3)
    title, *lines = found.explain().splitlines()
    assert title.startswith("Sequential on rough in float16, priced for ")
    assert lines[:6] == [
        "precision auto: float16 (error 0.1 % of 0.2 % allowed, 2.67 [2.67, 2.67] times as fast as "
        "float32, 1.5 ms), on 4 batches of random inputs",
        "precision auto: tf32 left out: error 0.02 % of 0.2 % allowed, 2.00 [2.00, 2.00] times as "
        "fast as float32, 2 ms",
        "precision auto: bfloat16 left out: error 0.3 % of 0.2 % allowed",
        "precision auto: int4 left out: this machine is too old",
        lines[4],
        "precision auto: int2 left out: beside float32's program: 2 bytes are needed, and 1 is "
        "left",
    ]
    assert re.fullmatch(
        r"precision auto: fp8 left out: device 'rough' cannot run this network: node .*: there is "
        "no kernel",
        lines[4],
    )
    trials = {trial.precision: trial for trial in found.automatic_precision.trials}
    assert trials["float16"].error == pytest.approx(1e-3, rel=1e-3)
    assert (trials["tf32"].seconds, found.automatic_precision.seconds) == (2e-3, 4e-3)
    assert "precision auto" not in auto(precision="tf32").explain()


def test_float32_is_said_to_be_the_fastest(timed: Timed) -> None:
    timed(float32=1e-3, tf32=2e-3, float16=2e-3, bfloat16=2e-3)
    first, second, *_ = str(auto().automatic_precision).splitlines()
    assert first == "precision auto: float32 (1 ms), on 4 batches of random inputs"
    assert second == (
        "precision auto: tf32 left out: error 0.02 % of 1 % allowed, 0.50 [0.50, 0.50] times as "
        "fast as float32, 2 ms"
    )


def test_a_device_without_others() -> None:
    found = auto(device="reference")
    assert found.precision == "float32"
    assert str(found.automatic_precision) == (
        "precision auto: float32, as the device has no other for inference"
    )


def test_results_that_are_not_finite_are_outside(
    timed: Timed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ERRORS, "bfloat16", inf)
    monkeypatch.setitem(ERRORS, "float16", float("nan"))
    found = auto(tolerance=1e30)
    assert found.precision == "tf32"
    said = "bfloat16 left out: error infinite of 1e+32 % allowed"
    assert said in found.explain() and said.replace("bfloat16", "float16") in found.explain()


def test_errors_are_norms_over_all_calls() -> None:
    exact = [[np.array([3.0, 0.0])], [np.array([0.0, 4.0])]]
    found = [[np.array([3.0, 0.3])], [np.array([0.4, 4.0])]]
    assert relative_errors(exact, found) == pytest.approx([0.1])
    zero, one = [[np.zeros(2, np.float32)]], [[np.ones(2, np.float32)]]
    assert relative_errors(zero, zero) == [0.0] and relative_errors(zero, one) == [inf]
    whole = [[np.array([3, 4])]]
    assert relative_errors(whole, [[np.array([3, 5])]]) == [0.2]


# Inputs and outputs


class Two(L.Layer):
    """Two inputs, of which one is of integers, and two outputs."""

    def __init__(self) -> None:
        self.table = L.Embedding(7, 4)

    def forward(self, x, index):  # type: ignore[no-untyped-def]
        y = self.table(index)
        return {"sum": y + x, "double": y + y}


TWO = {"x": TensorType((3, 4)), "index": TensorType((3,), "int64")}


def two() -> Graph:
    layer = Two()
    with tracing("two") as trace:
        given = [trace.input(type, name) for name, type in TWO.items()]
        found = layer(*given)
        return trace.graph(list(found.values()), list(found))


def test_several_outputs_and_inputs(timed: Timed) -> None:
    x, index = np.ones((3, 4), np.float32), np.array([0, 6, 1])
    for examples in ((x, index), {"index": index, "x": x}, [(x, index)] * 2):
        found = auto(two(), None, examples=examples)
        many = "2 batches" if isinstance(examples, list) else "1 batch"
        first = str(found.automatic_precision).splitlines()[0]
        assert first.startswith(
            "precision auto: bfloat16 (error 0.3 % at output 'sum' of 1 % allowed"
        )
        assert first.endswith(f", on {many} of examples")
    rows = (np.ones((6, 4)), np.arange(6))
    assert "2 batches of examples" in auto(two(), None, examples=rows).explain()
    refused(
        GraphError,
        r"examples=None with precision='auto': input 'index' has dtype int64, of which random "
        "numbers mean nothing; valid are examples such as the network will see",
        *(two(), None),
    )
    text = r"examples: 1 inputs given; valid are 2: \['x', 'index'\]"
    refused(GraphError, text, two(), None, examples=x)
    text = "examples: input 'x' has shape .*"  # the rows of both are to be as many times those
    refused(GraphError, text, two(), None, examples=(np.ones((6, 4)), np.arange(9)))
    text = r"examples\[1\]: inputs \['x'\] given by name and 0 by position; .*"
    refused(GraphError, text, two(), None, examples=[(x, index), {"x": x}])
    text = "examples: input 'index' has dtype float64; valid is int64"
    refused(GraphError, text, two(), None, examples=(x, index.astype(float)))


def test_examples_of_one_input(timed: Timed) -> None:
    pictures = np.random.default_rng(0).random((8, *SHAPE[1:]))
    for examples, many in ((pictures[:2], "1 batch"), (pictures, "4 batches")):
        text = auto(examples=examples).explain()
        assert f", on {many} of examples\n" in text
    assert (
        ", on 2 batches of examples\n" in auto(examples=[pictures[:2], (pictures[2:4],)]).explain()
    )
    refused(GraphError, r"examples=\[\]; valid is at least one array, .*", examples=[])
    refused(GraphError, "examples: input 'input' has shape .*", examples=pictures[:3])
    refused(GraphError, "examples: input 'input' has shape .*", examples=pictures[:0])
    refused(GraphError, "examples: input 'input' has dtype complex128; .*", examples=pictures * 1j)
    refused(GraphError, r"examples: input 'input' is a str; .*", examples="photos")
    bad = np.full(SHAPE, np.nan)
    refused(
        GraphError,
        "output '.*' has numbers that are not finite in float32 on 1 batch of examples, so that "
        "precision='auto' has nothing to compare with; valid are examples with finite results, or "
        "precision='float32'",
        examples=bad,
    )


def test_random_inputs_are_always_the_same(timed: Timed) -> None:
    seen: list[np.ndarray] = []

    class Seeing(RoughBackend):
        def compile(self, plan: Plan, precision: str, options: Mapping[str, Any]) -> Any:
            program = super().compile(plan, precision, options)
            if precision != "tf32":
                return program

            class Watched(RoughProgram):
                def run(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
                    seen.append(inputs[0].copy())
                    super().run(inputs, outputs)

            return Watched(program, 0.0)

    backends._BUILT_IN["rough"] = Seeing
    auto()
    auto()
    assert len(seen) == 8 and len({array.tobytes() for array in seen}) == 4
    assert abs(np.std(seen) - 1) < 0.1


# What is compiled


def test_arguments_go_to_each_and_one_is_observed(timed: Timed) -> None:
    seen: list[str] = []
    found = auto(strategy="layers", observe=lambda step, before, after: seen.append(step.name))
    assert seen == [step.name for step in PIPELINE]
    assert found.precision == "bfloat16"
    refused(GraphError, "strategy='best'; .*", strategy="best")
    refused(GraphError, "observe=5; .*", observe=5)
    refused(UnsupportedError, "option 'speed' of device .*", speed=1)


def test_graphs_and_what_executables_know_of_them(timed: Timed) -> None:
    net = network()
    graph = to_graph(net, SHAPE)
    found = auto(graph, None)
    assert found.source is graph and auto(net).source.nodes
    # The arrays of the caller's graph stay.
    md.compile(graph, device="reference")


def test_torch_modules_and_onnx_files(timed: Timed, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    module = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU()).eval()
    assert auto(module, examples=torch.ones(SHAPE)).precision == "bfloat16"
    assert auto(module, tolerance=5e-4).precision == "tf32"
    pytest.importorskip("onnx")
    md.save_onnx(to_graph(network(), SHAPE), tmp_path / "net.onnx")
    assert auto(tmp_path / "net.onnx", None).precision == "bfloat16"


def test_times_are_taken_in_turn() -> None:
    net = network()
    executables = {name: md.compile(net, SHAPE, device="reference") for name in ("one", "other")}
    times = times_of(executables, [np.ones(SHAPE, np.float32)])
    assert list(times) == ["one", "other"]
    assert 5 <= len(times["one"]) == len(times["other"]) <= 25
    assert all(0 < each < 1 for found in times.values() for each in found)


def test_a_device_may_have_a_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    class Clocked(RoughProgram):
        def clock(self, inputs: Sequence[np.ndarray]) -> Callable[[int], float]:
            assert inputs[0].shape == SHAPE
            return lambda count: asked.append(count) or 0.5  # type: ignore[func-returns-value]

    found = md.compile(network(), SHAPE, device="reference")
    found.program = Clocked(found.program, 0.0)
    assert times_of({"one": found}, [np.ones(SHAPE, np.float32)]) == {"one": [0.5] * 5}
    assert asked == [1] * 8


# What is refused


@pytest.mark.parametrize("tolerance", [0, -0.1, inf, float("nan"), True, "1 %", 1j, [0.1]])
def test_tolerances_that_are_none(tolerance: Any) -> None:
    text = rf"tolerance={re.escape(repr(tolerance))}; valid is a finite number above 0, .* for 0.01"
    refused(GraphError, text, tolerance=tolerance)


def test_tolerance_and_examples_are_for_auto_alone() -> None:
    for name, value, said in (
        ("tolerance", 0.1, "0.1"),
        ("examples", np.zeros((2, 2)), r"array\(\[\[0., 0.\], \[0., 0.\]\]\)"),
    ):
        for precision in (None, "float32"):
            text = f"{name}={said} with precision={precision!r}; valid is None, or .*"
            refused(GraphError, text, device="reference", precision=precision, **{name: value})


def test_networks_for_which_none_is_chosen(timed: Timed) -> None:
    start = "precision='auto' is not for "
    refused(UnsupportedError, f"{start}named sizes: .*", shape=(md.Dim("batch", 1, 4), 3, 8, 8))
    refused(UnsupportedError, f"{start}programs that share a store: .*", store=md.Store())
    text = (
        r"precision='auto' for graph 'g': it updates states \('mean', 'count'\), so that no two "
        "runs compute the same"
    )
    refused(UnsupportedError, text, states.graph_of(states.running_mean), None)
    with tracing("half") as trace:
        x = trace.input(TensorType((2,), "float16"), "x")
        half = trace.graph([L.ReLU()(x)])
    text = "precision='auto' for graph 'half': it has values in float16, and errors .*"
    refused(UnsupportedError, text, half, None)


def test_where_none_is_chosen(timed: Timed) -> None:
    start = "^precision='auto' is not for "
    net = network()
    with pytest.raises(UnsupportedError, match=f"{start}training: "):
        md.Trainer(
            *(net, SHAPE, md.losses.CrossEntropy(), md.optim.SGD(0.1)),
            device="rough",
            precision="auto",
        )
    preparation = md.Preparation(8, 8)
    with pytest.raises(UnsupportedError, match=f"{start}predictions by several processes: "):
        md.batch.Predictor(net, preparation, precision="auto")
    with pytest.raises(UnsupportedError, match=f"{start}comparing, "):
        md.compare("net.onnx", precision="auto")
    with pytest.raises(UnsupportedError, match=f"{start}parts of networks: "):
        unsupported_nodes(to_graph(net, SHAPE), "reference", "auto")
    torch = pytest.importorskip("torch")
    with pytest.raises(UnsupportedError, match=f"{start}md.optimize, "):
        md.optimize(torch.nn.ReLU(), precision="auto")


# A device that has several


@pytest.mark.skipif(
    unavailable("cpu") is not None or why_not_in(get_backend("cpu"), "bfloat16") is not None,
    reason="the CPU has no bfloat16",
)
def test_on_the_cpu(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    real, counts = times_of, []

    def times(executables: Mapping[str, Executable], call: Any) -> dict[str, list[float]]:
        counts.append(len(real(executables, call)["bfloat16"]))
        return {"float32": [2e-3] * 7, "bfloat16": [1e-3] * 7}

    monkeypatch.setattr("minidnn.precision.times_of", times)
    net = Several()
    found = md.compile(net, SHAPE, device="cpu", precision="auto", tolerance=0.1)
    assert found.precision == "bfloat16" and counts[0] >= 5
    (trial,) = trials_of(found)
    assert (
        trial.error is not None
        and 1e-4 < trial.error < 0.03
        and trial.output in ("scores", "again")
    )
    found.save(tmp_path / "net.mdx")
    assert str(found.automatic_precision) in md.load(tmp_path / "net.mdx").explain()
    assert found.source.nodes
    near = md.compile(net, SHAPE, device="cpu", precision="auto", tolerance=1e-6)
    assert near.precision == "float32" and len(counts) == 1
    small = md.compile(md.quantize(net, np.ones(SHAPE, np.float32)), device="cpu", precision="auto")
    assert small.automatic_precision is not None
    graph, file = str(tmp_path / "net.safetensors"), str(tmp_path / "net.mdx")
    md.save_graph(net, graph, SHAPE)
    assert main(["export", graph, file, "--precision", "auto", "--tolerance", "1e-6"]) == 0
    first, second = capsys.readouterr().out.splitlines()[:2]
    assert " in float32 for " in first and second.startswith("precision auto: float32")
