"""Training in half precision on a GPU, beside PyTorch's autocast there."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L

from .test_gpu_training import away

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.gpu
SHAPE = (16, 3, 32, 32)
CLASSES = 10
STEPS, SEEDS = 20, 5
HALF_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


class Residual(md.Layer):
    """Convolutions, normalization over the batch, pooling, and a sum of two branches."""

    def __init__(self, channels: int = 32) -> None:
        self.first = L.Conv2d(3, channels, 3, padding=1)
        self.pool = L.MaxPool2d(3, 2, 1)
        self.conv1 = L.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm1 = L.BatchNorm2d(channels)
        self.conv2 = L.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = L.BatchNorm2d(channels)
        self.relu = L.ReLU()
        self.mean = L.AdaptiveAvgPool2d(1)
        self.flat = L.Flatten()
        self.head = L.Linear(channels, CLASSES)

    def forward(self, x: Any) -> Any:
        y = self.pool(self.relu(self.first(x)))
        z = self.norm2(self.conv2(self.relu(self.norm1(self.conv1(y)))))
        return self.head(self.flat(self.mean(self.relu(z + y))))


class Plain(md.Layer):
    """Strided convolutions without normalization, an average, and two linear layers."""

    def __init__(self) -> None:
        self.first = L.Conv2d(3, 16, 5, stride=2, padding=2)
        self.conv1 = L.Conv2d(16, 48, 3, padding=1, groups=2)
        self.pool = L.AvgPool2d(2)
        self.relu = L.ReLU()
        self.flat = L.Flatten()
        self.wide = L.Linear(48 * 64, 64)
        self.head = L.Linear(64, CLASSES)

    def forward(self, x: Any) -> Any:
        y = self.pool(self.relu(self.conv1(self.relu(self.first(x)))))
        return self.head(self.relu(self.wide(self.flat(y))))


class Squeezed(md.Layer):
    """Channels scaled by what is computed of the averages of their planes."""

    def __init__(self) -> None:
        self.first = L.Conv2d(3, 40, 3, padding=1, bias=False)
        self.conv1 = L.Conv2d(40, 40, 5, stride=2, padding=2, groups=40, bias=False)
        self.conv2 = L.Conv2d(40, 16, 1, bias=False)
        self.norm1, self.norm2, self.norm3 = (L.BatchNorm2d(n) for n in (40, 40, 16))
        self.narrow, self.wide = L.Conv2d(40, 10, 1), L.Conv2d(10, 40, 1)
        self.silu, self.gate = L.SiLU(), L.Sigmoid()
        self.mean = L.AdaptiveAvgPool2d(1)
        self.flat = L.Flatten()
        self.head = L.Linear(16, CLASSES)

    def forward(self, x: Any) -> Any:
        y = self.silu(self.norm2(self.conv1(self.silu(self.norm1(self.first(x))))))
        y = y * self.gate(self.wide(self.silu(self.narrow(self.mean(y)))))
        return self.head(self.flat(self.mean(self.norm3(self.conv2(y)))))


def of_torch(network: md.Layer) -> Any:
    """The same network in PyTorch, with the same weights."""
    nn = torch.nn

    class Module(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.relu, self.flat = nn.ReLU(), nn.Flatten()
            if isinstance(network, Residual):
                self.first, self.pool = nn.Conv2d(3, 32, 3, padding=1), nn.MaxPool2d(3, 2, 1)
                self.conv1 = nn.Conv2d(32, 32, 3, padding=1, bias=False)
                self.conv2 = nn.Conv2d(32, 32, 3, padding=1, bias=False)
                self.norm1, self.norm2 = nn.BatchNorm2d(32), nn.BatchNorm2d(32)
                self.mean, self.head = nn.AdaptiveAvgPool2d(1), nn.Linear(32, CLASSES)
            elif isinstance(network, Squeezed):
                self.first = nn.Conv2d(3, 40, 3, padding=1, bias=False)
                self.conv1 = nn.Conv2d(40, 40, 5, 2, 2, groups=40, bias=False)
                self.conv2 = nn.Conv2d(40, 16, 1, bias=False)
                self.norm1, self.norm2, self.norm3 = (nn.BatchNorm2d(n) for n in (40, 40, 16))
                self.narrow, self.wide = nn.Conv2d(40, 10, 1), nn.Conv2d(10, 40, 1)
                self.silu, self.gate = nn.SiLU(), nn.Sigmoid()
                self.mean, self.head = nn.AdaptiveAvgPool2d(1), nn.Linear(16, CLASSES)
            else:
                self.first = nn.Conv2d(3, 16, 5, stride=2, padding=2)
                self.conv1 = nn.Conv2d(16, 48, 3, padding=1, groups=2)
                self.pool = nn.AvgPool2d(2)
                self.wide, self.head = nn.Linear(48 * 64, 64), nn.Linear(64, CLASSES)

        def forward(self, x: Any) -> Any:
            return type(network).forward(self, x)  # type: ignore[arg-type]

    module = Module()
    state = {name: torch.from_numpy(array) for name, array in network.state_dict().items()}
    module.load_state_dict(state)
    return module


def batches_of(seed: int) -> list[Any]:
    """Images whose mean in one place tells their class."""
    random = np.random.default_rng(seed)
    found = []
    for _ in range(STEPS):
        x, target = random.standard_normal(SHAPE, np.float32), random.integers(0, CLASSES, SHAPE[0])
        x[np.arange(SHAPE[0]), 0, target, :] += 2
        found.append((x, target))
    return found


def by_torch(
    net: Any, batches: list[Any], half: Any = None, device: str = "cuda"
) -> dict[str, np.ndarray]:
    """Losses and the state: in float64, or by autocast with float32 weights."""
    wide = torch.float64 if half is None else torch.float32
    net = net.to(device, wide).train()
    optimizer = torch.optim.SGD(net.parameters(), 0.02, 0.9, weight_decay=1e-3)
    scaler = torch.amp.GradScaler(device, enabled=half is torch.float16)
    losses = []
    for x, target in batches:
        optimizer.zero_grad()
        with torch.autocast(device, half, enabled=half is not None):
            y = net(torch.from_numpy(x).to(device, wide))
            loss = torch.nn.functional.cross_entropy(y, torch.from_numpy(target).to(device))
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return {"losses": np.array(losses)} | {
        name: tensor.double().cpu().numpy() for name, tensor in net.state_dict().items()
    }


def trainer_of(network: md.Layer, precision: str, **options: Any) -> md.Trainer:
    optimizer = md.optim.SGD(0.02, momentum=0.9, weight_decay=1e-3)
    given: dict[str, Any] = {"device": "cuda", "precision": precision, "tune": "heuristic"}
    return md.Trainer(network, SHAPE, md.losses.CrossEntropy(), optimizer, **given | options)


def by_ours(
    network: md.Layer, batches: list[Any], precision: str, **options: Any
) -> dict[str, np.ndarray]:
    trainer = trainer_of(network, precision, **options)
    losses = np.array([float(trainer.step(*batch)) for batch in batches])
    return {"losses": losses} | trainer.state_dict()


def seeded(make: Any, seed: int) -> md.Layer:
    network: md.Layer = make()
    random = np.random.default_rng(seed)
    network.load_state_dict(
        {
            name: (array + 0.05 * random.standard_normal(array.shape)).astype(array.dtype)
            if array.ndim > 1
            else array
            for name, array in network.state_dict().items()
        }
    )
    return network


@pytest.mark.parametrize("precision", HALF_DTYPES)
@pytest.mark.parametrize("make", [Residual, Plain, Squeezed])
def test_errors_are_those_of_autocast(make: Any, precision: str) -> None:
    """Against PyTorch in float64: at most three times autocast's own, in the median over seeds."""
    ours, theirs = [], []
    for seed in range(SEEDS):
        network, batches = seeded(make, seed), batches_of(seed)
        right = by_torch(of_torch(network), batches)
        ours.append(away(by_ours(network, batches, precision), right))
        theirs.append(away(by_torch(of_torch(network), batches, HALF_DTYPES[precision]), right))
    print(make.__name__, precision, ours, theirs)
    for i, what in enumerate(("losses", "state")):
        mine, pytorchs = (median(each[i] for each in of) for of in (ours, theirs))
        assert mine <= 3 * pytorchs, f"{what}: {mine}, autocast's is {pytorchs}"


@pytest.mark.parametrize("precision", HALF_DTYPES)
def test_states_stay_float32_and_runs_have_the_same_bits(precision: str, tmp_path: Path) -> None:
    """From run to run, and after going on from a checkpoint."""
    network, batches = seeded(Residual, 0), batches_of(0)[:8]
    whole, again = trainer_of(network, precision), trainer_of(network, precision)
    for batch in batches:
        assert float(whole.step(*batch)) == float(again.step(*batch))
    begun = trainer_of(network, precision)
    for batch in batches[:3]:
        begun.step(*batch)
    begun.save(tmp_path / "run")
    begun = trainer_of(network, precision)
    begun.restore(tmp_path / "run")
    for batch in batches[3:]:
        begun.step(*batch)
    assert set(whole.store) == set(begun.store)
    for name, array in whole.store.items():
        assert array.dtype in (np.float32, np.int64)
        np.testing.assert_array_equal(array, again.store[name])
        np.testing.assert_array_equal(array, begun.store[name])
    with pytest.raises(md.WeightsError, match=r"precision='.*', valid is 'float32'"):
        other = trainer_of(network, "float32", loss_scale=whole.scaling)
        other.restore(tmp_path / "run")


def test_gradients_that_overflow_are_skipped() -> None:
    """The scale halves until they are finite; parameters change from then on."""
    network, batches = seeded(Residual, 1), batches_of(1)
    trainer = trainer_of(network, "float16", loss_scale=md.optim.LossScale(2.0**40, every=4))
    scales, changed = [], []
    for batch in batches * 2:
        before = trainer.state_dict()["conv1.weight"]
        assert np.isfinite(float(trainer.step(*batch)))
        changed.append(not np.array_equal(before, trainer.state_dict()["conv1.weight"]))
        scales.append(trainer.loss_scale)
    skipped = changed.index(True)
    assert 5 <= skipped <= 38
    assert scales[:skipped] == [2.0 ** (39 - i) for i in range(skipped)]
    assert scales[skipped] == scales[skipped - 1]
    assert all(np.isfinite(array).all() for array in trainer.state_dict().values())
