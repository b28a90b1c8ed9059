"""Twenty steps of a network with every normalization, beside PyTorch's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from tests.cases.record import one_thread

from .networks import FLOOR, Results, errors, torch

STEPS, SEEDS, SHAPE, CLASSES = 20, 5, (8, 3, 6, 6), 3
RATE, MOMENTUM, DECAY = 0.05, 0.9, 1e-3


def networks(seed: int) -> tuple[md.Sequential, Any]:
    """Ours and PyTorch's, with the same numbers; smooth, so that rounding stays small."""
    nn = torch.nn
    both: list[tuple[Any, Any]] = [
        (L.Conv2d(3, 6, 3), nn.Conv2d(3, 6, 3)),
        (L.BatchNorm2d(6), nn.BatchNorm2d(6)),
        (L.Tanh(), nn.Tanh()),
        (L.Conv2d(6, 6, 1), nn.Conv2d(6, 6, 1)),
        (L.GroupNorm(2, 6), nn.GroupNorm(2, 6)),
        (L.Tanh(), nn.Tanh()),
        (L.Conv2d(6, 6, 1), nn.Conv2d(6, 6, 1)),
        (L.InstanceNorm2d(6, affine=True), nn.InstanceNorm2d(6, affine=True)),
        (L.Tanh(), nn.Tanh()),
        (L.Conv2d(6, 6, 1), nn.Conv2d(6, 6, 1)),
        (L.BatchNorm2d(6, momentum=None), nn.BatchNorm2d(6, momentum=None)),
        (L.Tanh(), nn.Tanh()),
        (L.Flatten(), nn.Flatten()),
        (L.Linear(96, 10), nn.Linear(96, 10)),
        (L.LayerNorm(10), nn.LayerNorm(10)),
        (L.Tanh(), nn.Tanh()),
        (L.Linear(10, 5), nn.Linear(10, 5)),
        (L.BatchNorm1d(5, momentum=0.3), nn.BatchNorm1d(5, momentum=0.3)),
        (L.Tanh(), nn.Tanh()),
        (L.Linear(5, CLASSES), nn.Linear(5, CLASSES)),
    ]
    ours = L.Sequential(*(one for one, _ in both)).initialize(seed)
    theirs = nn.Sequential(*(other for _, other in both))
    state = {name: torch.from_numpy(array.copy()) for name, array in ours.state_dict().items()}
    theirs.load_state_dict(state)
    return ours, theirs.train()


def batches(seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    random = np.random.default_rng(seed)
    draw = random.standard_normal, random.integers
    return [
        (draw[0](SHAPE).astype(np.float32), draw[1](0, CLASSES, SHAPE[0])) for _ in range(STEPS)
    ]


def by_minidnn(seed: int, **options: Any) -> Results:
    optimizer = md.optim.SGD(RATE, momentum=MOMENTUM, weight_decay=DECAY)
    trainer = md.Trainer(networks(seed)[0], SHAPE, md.losses.CrossEntropy(), optimizer, **options)
    losses = [float(trainer.step(*batch)) for batch in batches(seed)]
    return {"losses": np.array(losses), **trainer.store}


def by_torch(seed: int, dtype: Any) -> Results:
    net = networks(seed)[1].to(dtype)
    optimizer = torch.optim.SGD(net.parameters(), RATE, MOMENTUM, weight_decay=DECAY)
    losses = []
    for x, target in batches(seed):
        output = net(torch.from_numpy(x).to(dtype))
        loss = torch.nn.functional.cross_entropy(output, torch.from_numpy(target))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    found = {name: tensor.numpy() for name, tensor in net.state_dict().items()}
    return {"losses": np.array(losses)} | {k: v for k, v in found.items() if v.dtype.kind == "f"}


def test_in_float64() -> None:
    with one_thread():
        exact = by_torch(0, torch.float64)
    found = errors(by_minidnn(0, device="reference", precision="float64"), exact)
    assert max(found.values()) <= 1e-11, found


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_in_float32(device: str) -> None:
    """At most three times PyTorch's error, in the median over seeds."""
    ours, theirs = [], []
    for seed in range(SEEDS):
        with one_thread():
            exact, single = by_torch(seed, torch.float64), by_torch(seed, torch.float32)
        theirs.append(errors(single, exact))
        ours.append(errors(by_minidnn(seed, device=device, precision="float32"), exact))
    for kind in ("losses", "parameters"):
        found, single_error = (float(np.median([one[kind] for one in of])) for of in (ours, theirs))
        assert found <= 3 * max(single_error, FLOOR), f"{kind}: {ours}, PyTorch's {theirs}"
