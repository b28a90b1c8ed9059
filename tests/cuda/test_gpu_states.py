"""States on a GPU: several runs, shared stores, weights that are states, training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from minidnn.errors import GraphError, OutOfMemoryError, TrainingError
from minidnn.graph.types import HALF_DTYPES
from minidnn.layers.build import to_graph
from tests.cases.random import Drops
from tests.states.build import BUILDERS, Build, graph_of, running_mean
from tests.states.test_programs import random_graph, runs_like_the_evaluator

pytestmark = pytest.mark.gpu
SHAPE = (8, 3, 16, 16)
random = np.random.default_rng(0)
BATCHES = [
    (random.standard_normal(SHAPE, np.float32), random.integers(0, 5, SHAPE[0])) for _ in range(4)
]


@pytest.mark.parametrize("build", BUILDERS)
def test_several_runs(build: Build) -> None:
    runs_like_the_evaluator(graph_of(build), "cuda", 1e-5)


@pytest.mark.parametrize("seed", range(12))
def test_random_graphs(seed: int) -> None:
    runs_like_the_evaluator(random_graph(seed), "cuda", 1e-5, store=md.Store())


def test_runs_on_several_streams_follow_each_other() -> None:
    import cupy

    exe = md.compile(graph_of(running_mean), device="cuda")
    x = cupy.ones((2, 3, 4, 5), np.float32)
    begin = int(exe.store["count"])  # type: ignore[index]
    bound = exe.bind(x)
    for i in range(60):
        with cupy.cuda.Stream(non_blocking=True):
            bound() if i % 3 == 0 else exe(x)
    assert int(exe.store["count"]) == begin + 60  # type: ignore[index]
    exe.store["count"] = np.array(3)  # type: ignore[index]
    exe(x)
    assert int(exe.store["count"]) == 4  # type: ignore[index]


def test_looking_how_long_nodes_take_is_one_run() -> None:
    exe = md.compile(graph_of(running_mean), device="cuda")
    begin = int(exe.store["count"])  # type: ignore[index]
    exe.program.seconds_of_nodes([np.ones((2, 3, 4, 5), np.float32)], [])  # type: ignore[attr-defined]
    assert int(exe.store["count"]) == begin + 1  # type: ignore[index]


def test_a_store_lies_in_one_place() -> None:
    store = md.Store()
    md.compile(graph_of(running_mean), device="cuda", store=store)
    message = "in the memory of cuda:0, where its first program runs, .* in that of the host"
    with pytest.raises(GraphError, match=message):
        md.compile(graph_of(running_mean), device="reference", store=store)


def test_states_count_for_the_limit() -> None:
    message = r"memory_limit=100 bytes, of which states take 20; weights take \d+ and values"
    with pytest.raises(OutOfMemoryError, match=message):
        md.compile(graph_of(running_mean), device="cuda", memory_limit=100)


def network() -> L.Sequential:
    """Contractions of each kind with what they absorb, and vectors over channels in sequences."""
    net = L.Sequential(
        *(L.Conv2d(3, 20, 3, padding=1), L.SiLU(), L.MaxPool2d(2)),
        *(L.Conv2d(20, 32, 3, padding=1, bias=False), L.BatchNorm2d(32), L.ReLU()),
        *(L.AvgPool2d(3, 1), L.BatchNorm2d(32), L.MaxPool2d(2)),
        *(L.Conv2d(32, 48, 1), L.Conv2d(48, 48, 3, padding=2, dilation=2, groups=48)),
        *(L.BatchNorm2d(48), L.Conv2d(48, 40, 3, padding=1, groups=4)),
        *(L.Flatten(), L.LayerNorm((360,)), L.Linear(360, 10), L.Softmax(-1)),
    )
    net.initialize(2)
    return net


@pytest.mark.parametrize(
    ("precision", "error", "tune"),
    [
        *(("float32", 1e-5, tune) for tune in ("heuristic", "quick", "exhaustive")),
        *(("tf32", 5e-3, tune) for tune in ("heuristic", "quick")),
        # Every engine of cuDNN for every gradient: nothing of states.
        pytest.param("tf32", 5e-3, "exhaustive", marks=pytest.mark.full),
    ],
)
def test_weights_that_are_states(precision: str, error: float, tune: str) -> None:
    """They are those of the store in every run, also where other sizes were compiled for it."""
    x = BATCHES[0][0]
    net, store = network(), md.Store()
    options: dict[str, Any] = {"device": "cuda", "precision": precision, "tune": tune}
    md.compile(net, (2, 3, 16, 16), store=store, **options)
    exe = md.compile(net, SHAPE, store=store, **options)
    for turn in range(2):
        right = md.compile(net, x.shape, device="reference", precision="float64")(x)
        np.testing.assert_allclose(exe(x), right, error, error)
        for name in store:
            store[name] = store[name] * np.float32(1.5 - turn)
        net.load_state_dict({**net.state_dict(), **store})


@pytest.mark.parametrize(("precision", "layout"), [("float32", "NCHW"), ("tf32", "NHWC")])
def test_kernels_are_those_of_constants(precision: str, layout: str) -> None:
    net = L.Sequential(L.Conv2d(8, 16, 3, padding=1), L.ReLU(), L.Conv2d(16, 8, 3), L.MaxPool2d(2))
    net.initialize(0)
    x = random.standard_normal((4, 8, 20, 20), np.float32)
    options: dict[str, Any] = {"device": "cuda", "precision": precision, "tune": "heuristic"}
    found = md.compile(net, x.shape, store=md.Store(), **options)(x)
    np.testing.assert_array_equal(found, md.compile(net, x.shape, **options)(x))


@pytest.mark.parametrize(
    ("channels", "shape"), [(False, (3, 5, 31, 67)), (False, (7,)), (True, (4, 9, 5, 7))]
)
@pytest.mark.parametrize("precision", ["float32", *HALF_DTYPES])
def test_dropout_has_the_bits_of_the_reference(
    channels: bool, shape: tuple[int, ...], precision: str
) -> None:
    graph = to_graph(Drops(0.3, 2, channels), shape)
    x = random.standard_normal(shape, np.float32)
    x.flat[:2] = np.nan, np.inf
    if precision != "float32":
        x = np.asarray(x, np.float16 if precision == "float16" else np.float32)
    found = md.compile(graph, device="cuda", precision=precision)(x)
    if precision == "float32":
        np.testing.assert_array_equal(found, md.compile(graph, device="reference")(x))
    else:
        wanted = md.compile(graph, device="reference")(x.astype(np.float32))
        np.testing.assert_array_equal(np.asarray(found, np.float32) == 0, wanted == 0)
        np.testing.assert_allclose(np.asarray(found, np.float32), wanted, 2e-2)


class Block(L.Layer):
    """Two convolutions beside what they read."""

    def __init__(self, channels: int, more: int, stride: int) -> None:
        self.one = L.Conv2d(channels, more, 3, stride=stride, padding=1, bias=False)
        self.norm = L.BatchNorm2d(more)
        self.two = L.Conv2d(more, more, 3, padding=1, bias=False)
        self.last = L.BatchNorm2d(more)
        self.short = L.Conv2d(channels, more, 1, stride=stride)
        self.relu = L.ReLU()

    def forward(self, x: Any) -> Any:
        y = self.two(self.relu(self.norm(self.one(x))))
        return self.relu(self.last(y) + self.short(x))


def resnet() -> L.Sequential:
    net = L.Sequential(
        *(L.Conv2d(3, 8, 3, padding=1, bias=False), L.BatchNorm2d(8), L.ReLU(), L.MaxPool2d(2)),
        *(Block(8, 16, 1), L.Dropout(0.2), Block(16, 24, 2)),
        *(L.AdaptiveAvgPool2d(1), L.Flatten(), L.Linear(24, 5)),
    )
    net.initialize(4)
    return net


def trainer(**options: Any) -> md.Trainer:
    given: dict[str, Any] = {"device": "cuda"} | options
    if given["device"] == "cuda":
        given.setdefault("tune", "heuristic")
    optimizer = md.optim.SGD(0.05, momentum=0.9, weight_decay=1e-3)
    return md.Trainer(resnet(), SHAPE, md.losses.CrossEntropy(), optimizer, **given)


def test_steps_are_those_of_the_reference() -> None:
    """By norms: where a value is near 0, a rounding decides what ReLU lets through."""
    error = 1e-3
    ours, right = trainer(), trainer(device="reference", precision="float64")
    for i in range(20):
        one, other = (float(each.step(*BATCHES[i % 4])) for each in (ours, right))
        assert one == pytest.approx(other, rel=error), f"step {i}"
    for name in right.store:
        wanted = right.store[name]
        away = np.linalg.norm(ours.store[name] - wanted)
        assert away <= error * max(float(np.linalg.norm(wanted)), 1e-2), name
    found, expected = ours.evaluate(BATCHES), right.evaluate(BATCHES)
    assert found["loss"] == pytest.approx(expected["loss"], rel=error)


@pytest.mark.parametrize("library", ["cupy", "torch"])
def test_arrays_on_the_gpu_stay_there(library: str) -> None:
    module: Any = pytest.importorskip(library)
    ours, other = trainer(), trainer()
    for x, target in BATCHES:
        if library == "cupy":
            given = [module.asarray(x), module.asarray(target)]
        else:
            given = [module.from_numpy(x).cuda(), module.from_numpy(target).cuda()]
        loss = ours.step(*given)
        assert type(loss).__module__.startswith(library)
        assert float(loss) == float(other.step(x, target))
    given[0][0, 0, 0, 0] = float("nan")
    with pytest.raises(TrainingError, match="input of the batch has 1 of 6144 values that are NaN"):
        ours.fit([(given[0], given[1])], 1)


def test_the_same_seed_gives_the_same_bits_also_after_resuming(tmp_path: Path) -> None:
    path = tmp_path / "run.safetensors"
    whole, again = trainer(seed=3), trainer(seed=3)
    for batch in BATCHES:
        assert whole.step(*batch) == again.step(*batch)
    again.save(path)
    resumed = trainer()
    resumed.restore(path)
    for batch in BATCHES:
        assert whole.step(*batch) == resumed.step(*batch)
    for name in whole.store:
        np.testing.assert_array_equal(resumed.store[name], whole.store[name], err_msg=name)
