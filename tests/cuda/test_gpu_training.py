"""Training on a GPU errs no more than PyTorch does there in the same precision."""

from __future__ import annotations

from statistics import median
from typing import Any

import numpy as np
import pytest

import minidnn as md
from tests.training.networks import CLASSES, both, tf32

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.gpu
SHAPE = (8, 3, 96, 96)
STEPS, SEEDS = 5, 5
#: Of SGD: (rate, momentum, weight decay).
OPTIONS = (1e-3, 0.9, 1e-3)


def of_pytorch(net: Any, batches: list[Any], dtype: Any) -> dict[str, np.ndarray]:
    """Losses and the state after some steps on a GPU."""
    rate, momentum, decay = OPTIONS
    net = net.to("cuda", dtype).train()
    optimizer = torch.optim.SGD(net.parameters(), rate, momentum, weight_decay=decay)
    losses = []
    for x, target in batches:
        loss = torch.nn.functional.cross_entropy(
            net(torch.from_numpy(x).to("cuda", dtype)), torch.from_numpy(target).cuda()
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"losses": np.array(losses)} | {
        name: tensor.double().cpu().numpy() for name, tensor in net.state_dict().items()
    }


def of_ours(net: Any, batches: list[Any], precision: str, strategy: str) -> dict[str, np.ndarray]:
    rate, momentum, decay = OPTIONS
    optimizer = md.optim.SGD(rate, momentum=momentum, weight_decay=decay)
    given: dict[str, Any] = {"device": "cuda", "precision": precision, "tune": "heuristic"}
    given["strategy"] = strategy
    trainer = md.Trainer(net, SHAPE, md.losses.CrossEntropy(), optimizer, **given)
    losses = np.array([float(trainer.step(*batch)) for batch in batches])
    return {"losses": losses} | trainer.state_dict()


def away(found: dict[str, np.ndarray], right: dict[str, np.ndarray]) -> tuple[float, float]:
    """Of losses, and of the state: relative errors by norms, of its tensors their mean square."""
    errors = {
        name: float(np.linalg.norm(found[name] - wanted)) / max(float(np.linalg.norm(wanted)), 1e-6)
        for name, wanted in right.items()
    }
    losses = errors.pop("losses")
    return losses, float(np.mean(np.square([*errors.values()])) ** 0.5)


@pytest.mark.early
@pytest.mark.parametrize("strategy", ["model", "cudnn"])
@pytest.mark.parametrize("precision", ["float32", "tf32"])
def test_errors_are_those_of_pytorch(precision: str, strategy: str) -> None:
    """Against PyTorch in float64: at most three times its own, in the median over seeds.

    Where a value is near 0, a rounding decides what ReLU lets through, in ours as in PyTorch's:
    single tensors of single runs may be far away in one of them.
    """
    ours, theirs = [], []
    for seed in range(SEEDS):
        random = np.random.default_rng(seed)
        batches = [
            (random.standard_normal(SHAPE, np.float32), random.integers(0, CLASSES, SHAPE[0]))
            for _ in range(STEPS)
        ]
        right = of_pytorch(both("resnet18", seed)[1], batches, torch.float64)
        ours.append(away(of_ours(both("resnet18", seed)[0], batches, precision, strategy), right))
        with tf32(precision == "tf32"):
            found = of_pytorch(both("resnet18", seed)[1], batches, torch.float32)
        theirs.append(away(found, right))
    print(precision, ours, theirs)
    for i, what in enumerate(("losses", "state")):
        mine, pytorchs = (median(each[i] for each in of) for of in (ours, theirs))
        assert mine <= 3 * max(pytorchs, 1e-6), f"{what}: {mine}, PyTorch's is {pytorchs}"
