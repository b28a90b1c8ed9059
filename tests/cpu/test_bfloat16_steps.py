"""Whole steps of training in bfloat16 on the CPU engine: numbers, bits, and what goes with them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from minidnn.backends.cpu import isa
from minidnn.errors import UnsupportedError
from minidnn.graph.operators import ranks
from minidnn.training.step import Objective, Ranks, step_graph
from tests.cases.record import one_thread
from tests.cuda.test_emulated_step import Twins
from tests.cuda.test_gpu_half_training import (
    Plain,
    Residual,
    Squeezed,
    batches_of,
    by_ours,
    by_torch,
    of_torch,
    seeded,
)
from tests.cuda.test_gpu_training import away

from .each_node import errors, kept
from .test_bfloat16_training import OPTIONS
from .test_training_bits import BATCH, EPOCHS, STEPS, SaveEach, X, Y, bits, loader, trainer

torch = pytest.importorskip("torch")
MISSING = isa.why_no_bfloat16(isa.AVX512)
usable = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))
HALF: dict[str, Any] = {"precision": "bfloat16"}


class Tokens(L.Layer):
    """Patches of an image as rows that attend to each other."""

    def __init__(self) -> None:
        self.patch = L.Conv2d(3, 32, 4, stride=4)
        self.encoder = L.TransformerEncoderLayer(32, 4, 48, dropout=0.2, batch_first=True)
        self.norm, self.head = L.LayerNorm(32), L.Linear(32, 5)

    def forward(self, x: Any) -> Any:
        y = self.patch(x)
        y = y.reshape((y.shape[0], 32, y.shape[2] * y.shape[3])).permute(0, 2, 1)
        return self.head(self.norm(self.encoder(y)).mean(1))


class Dropping(L.Layer):
    """Maxima, a depthwise convolution, and draws of elements, channels and samples."""

    def __init__(self) -> None:
        self.first, self.norm = L.Conv2d(3, 24, 3, padding=1), L.BatchNorm2d(24)
        self.pool, self.silu = L.MaxPool2d(3, 2, 1), L.SiLU()
        self.second = L.Conv2d(24, 24, 3, padding=1, groups=24)
        self.drop, self.depth = L.Dropout2d(0.3), L.StochasticDepth(0.4, "row")
        self.third, self.groups = L.Conv2d(24, 40, 1), L.GroupNorm(4, 40)
        self.last, self.head = L.Dropout(0.2), L.Linear(40, 5)

    def forward(self, x: Any) -> Any:
        y = self.pool(self.silu(self.norm(self.first(x))))
        y = y + self.depth(self.drop(self.second(y)))
        y = self.silu(self.groups(self.third(y)))
        return self.head(self.last(y.mean((2, 3))))


class Moving(L.Layer):
    """Channels that are moved, cut and joined, and larger planes, between convolutions."""

    def __init__(self) -> None:
        self.first, self.norm = L.Conv2d(3, 20, 3, stride=2, padding=1), L.InstanceNorm2d(20)
        self.prelu, self.shuffle = L.PReLU(20), L.ChannelShuffle(4)
        self.second, self.larger = L.Conv2d(10, 20, 3, padding=1), L.PixelShuffle(2)
        self.third, self.rows = L.ConvTranspose2d(5, 16, 3, 2), L.RMSNorm(16)
        self.most, self.head = L.AdaptiveMaxPool2d(2), L.Linear(16, 5)

    def forward(self, x: Any) -> Any:
        y = self.shuffle(self.prelu(self.norm(self.first(x))))
        y = np.concatenate([self.second(y[:, :10] * y[:, 10:]), y], 1)[:, 10:30]
        y = self.third(self.larger(y))
        z = self.rows(y.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return self.head(self.most(z).mean((2, 3)) + np.maximum(z, 0.1).mean((2, 3)))


def residual() -> L.Layer:
    return Residual(24)


@usable
@pytest.mark.parametrize(
    ("make", "optimizer", "how"),
    [
        (Tokens, md.optim.AdamW(1e-2, clip_norm=0.5), {"average": 0.9}),
        (Dropping, md.optim.SGD(0.02, momentum=0.9), {}),
        (Dropping, md.optim.SGD(0.02), {"any_size": True}),
        (Dropping, md.optim.SGD(0.02), {"ranks": Ranks(2, synchronized=True)}),
        (Moving, md.optim.SGD(0.02), {"share": 2, "last": False}),
        (Moving, md.optim.SGD(0.02), {"share": 2, "scaling": md.optim.LossScale(8.0)}),
        (residual, md.optim.Muon(0.02, others=md.optim.SGD(0.02)), {}),
        (Squeezed, md.optim.SGD(0.02), {"strategy": "layers"}),
    ],
)
def test_each_kernel_of_a_step(
    make: Callable[[], L.Layer],
    optimizer: Any,
    how: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ranks, "_now", [Twins()] if "ranks" in how else [])
    options = {**OPTIONS, "accuracy": "direct"}
    options |= {k: v for k, v in how.items() if k in ("any_size", "strategy")}
    how = {k: v for k, v in how.items() if k not in options}
    shape, objective = (4, 3, 16, 16), Objective(md.losses.CrossEntropy(), {})
    graph = step_graph(make().initialize(0), (shape,), objective, optimizer, **how)
    options |= {"observe": kept, "store": md.Store(), **HALF}
    exe = md.compile(graph, device="cpu", **options)
    assert sum(value.dtype == "bfloat16" for value in exe.graph.values) > 10
    random = np.random.default_rng(0)
    for step in range(2):
        numbers = list(optimizer.numbers(step).values())[: len(graph.inputs) - 2]
        x, target = random.standard_normal(shape, np.float32), random.integers(0, 5, 4)
        wrong, results = errors(exe, [x, target, *(np.array(n, np.float32) for n in numbers)])
        assert not wrong and np.isfinite(results[0])


@usable
@pytest.mark.parametrize("make", [Residual, Plain, Squeezed])
def test_errors_are_those_of_autocast(make: Any) -> None:
    """Against PyTorch in float64: at most twice autocast's own, in the median over seeds."""
    ours, theirs = [], []
    for seed in range(3):
        network, batches = seeded(make, seed), batches_of(seed)[:10]
        with one_thread():
            right = by_torch(of_torch(network), batches, device="cpu")
            half = by_torch(of_torch(network), batches, torch.bfloat16, "cpu")
        theirs.append(away(half, right))
        found = by_ours(network, batches, "bfloat16", device="cpu", threads=2)
        ours.append(away(found, right))
    print(make.__name__, ours, theirs)
    for i, what in enumerate(("losses", "state")):
        mine, pytorchs = (median(each[i] for each in of) for of in (ours, theirs))
        assert mine <= 2 * pytorchs, f"{what}: {mine}, autocast's is {pytorchs}"


@usable
def test_bits(tmp_path: Path) -> None:
    """Those of any number of threads, and after resuming; states stay float32."""
    whole = trainer(1, **HALF)
    whole.fit(loader(), EPOCHS, callbacks=[SaveEach(tmp_path)])
    assert whole.progress.steps == STEPS
    assert {array.dtype for array in whole.store.values()} <= {np.dtype("f4"), np.dtype("i8")}
    assert bits(whole) != bits(_fitted(trainer(1)))
    assert bits(whole) == bits(_fitted(trainer(2, **HALF)))
    for after in (3, STEPS - 1):
        resumed = trainer(2, **HALF)
        resumed.restore(tmp_path / f"{after}.safetensors")
        assert bits(whole) == bits(_fitted(resumed))
    other = trainer(1)
    with pytest.raises(md.WeightsError, match=r"precision='bfloat16', valid is"):
        other.restore(tmp_path / "3.safetensors")


def _fitted(ours: md.Trainer) -> md.Trainer:
    ours.fit(loader(), EPOCHS)
    return ours


@usable
@pytest.mark.parametrize("accumulate", [1, 2])
def test_steps_of_a_launch_and_batches_of_a_step(accumulate: int) -> None:
    """A CPU takes a launch's steps one after the other, and two halves of a batch make it."""
    if accumulate == 1:
        assert bits(_fitted(trainer(2, **HALF, steps_per_launch=2))) == bits(
            _fitted(trainer(2, **HALF))
        )
        return
    whole, halves = (
        md.Trainer(
            *(Plain().initialize(0), (size, 3, 32, 32), md.losses.CrossEntropy()),
            *(md.optim.SGD(0.1, clip_norm=1.0),),
            **{"device": "cpu", "accumulate": count, **HALF},
        )
        for size, count in ((16, 1), (8, 2))
    )
    x, target = batches_of(0)[0]
    whole.step(x, target)
    for part in (slice(8), slice(8, 16)):
        halves.step(x[part], target[part])
    for name, array in whole.state_dict().items():
        other = halves.state_dict()[name]
        np.testing.assert_allclose(array, other, 0, 2.0**-8 * np.abs(array).max(), err_msg=name)


@usable
def test_weights_that_change_between_runs() -> None:
    """Programs for inference read those that are in their store."""
    net, store = Dropping().initialize(0), md.Store()
    x = np.random.default_rng(0).standard_normal((4, 3, 16, 16)).astype(np.float32)
    how: dict[str, Any] = {"device": "cpu", **HALF, **OPTIONS}
    exe = md.compile(net, x.shape, store=store, observe=kept, **how)
    wrong, (first,) = errors(exe, [x])
    assert not wrong
    right = md.compile(net, x.shape, device="reference")(x)
    np.testing.assert_allclose(first, right, 0, 2.0**-6)
    store["third.weight"] = 2 * store["third.weight"]
    store["head.bias"] = store["head.bias"] + 1
    wrong, (second,) = errors(exe, [x])
    assert not wrong and not np.array_equal(first, second)
    np.testing.assert_array_equal(exe(x), second)


@usable
def test_evaluation_and_prediction_are_in_bfloat16() -> None:
    ours = trainer(2, **HALF)
    batches = [(X[:BATCH, :, 1:-1, 1:-1], Y[:BATCH])]
    ours.step(*batches[0])
    found, single = ours.predict(batches[0][0]), trainer(2)
    single.step(*batches[0])
    np.testing.assert_allclose(found, single.predict(batches[0][0]), 0, 0.1)
    assert abs(ours.evaluate(batches)["loss"] - single.evaluate(batches)["loss"]) < 0.05
    assert "in bfloat16" in ours.explain().splitlines()[0]


def test_a_processor_without_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isa, "processor_flags", lambda: frozenset(isa.AVX512.flags))
    with pytest.raises(UnsupportedError) as caught:
        trainer(2, **HALF)
    assert str(caught.value) == (
        "precision='bfloat16' on device 'cpu': this processor lacks avx512_bf16, and nothing "
        "imitates it unasked; valid here is 'float32'"
    )


@usable
@pytest.mark.parametrize(
    ("option", "error", "message"),
    [
        ({"isa": "avx2"}, md.DeviceError, "isa='avx2' has no products of bfloat16"),
        ({"accuracy": "high"}, md.GraphError, "no algorithm rounds bfloat16 less"),
        ({"memory_limit": 10_000}, md.OutOfMemoryError, "memory_limit=10000 bytes"),
    ],
)
def test_what_cannot_be_done(option: dict[str, Any], error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        trainer(2, **HALF, **option)
