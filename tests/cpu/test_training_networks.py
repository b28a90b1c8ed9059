"""Twenty steps of the zoo's networks on the CPU engine, as near to float64 as PyTorch's float32."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import minidnn as md
from tests.cases.record import one_thread
from tests.training.test_networks import CLASSES, RATE, SIZES, STEPS, both

torch = pytest.importorskip("torch")

NETWORKS = (
    *("alexnet", "vgg11_bn", "resnet18", "resnet50", "squeezenet1_1", "densenet121"),
    "inception_v3",
)
#: Normalizations over fewer values blow rounding errors up until nothing is left to compare.
BATCH = 8
#: Each has other weights and batches; the median of what they give is judged.
SEEDS = 5
#: Errors are those of the losses and of all parameters and statistics, as parts of the largest
#: number of each, and are at least that of rounding such a number a few times.
FLOOR = 4 * float(np.finfo(np.float32).eps)

Results = dict[str, np.ndarray]


def by_torch(net: Any, batches: Any, targets: Any, dtype: Any) -> Results:
    net = net.to(dtype).train()
    optimizer = torch.optim.SGD(net.parameters(), RATE, 0.9, weight_decay=1e-3)
    losses = []
    for step in range(STEPS):
        x, target = torch.from_numpy(batches[step % 4]).to(dtype), targets[step % 4]
        loss = torch.nn.functional.cross_entropy(net(x), torch.from_numpy(target))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    arrays = {name: tensor.detach().numpy() for name, tensor in net.state_dict().items()}
    return {"losses": np.array(losses), **arrays}


def error(found: Any, exact: Results) -> float:
    errors = []
    for name, array in exact.items():
        if array.dtype.kind == "f":
            scale = max(float(np.abs(array).max()), 1e-3)
            errors.append(float(np.abs(found[name] - array).max()) / scale)
    return max(*errors, FLOOR)


def errors_of(name: str, seed: int) -> tuple[float, float]:
    """Of the CPU engine, and of PyTorch in float32."""
    size = SIZES.get(name, 64)
    random = np.random.default_rng(seed)
    batches = random.standard_normal((4, BATCH, 3, size, size)).astype(np.float32)
    targets = random.integers(0, CLASSES, (4, BATCH))
    net, theirs = both(name, seed)
    start = {key: tensor.clone() for key, tensor in theirs.state_dict().items()}
    with one_thread():
        exact = by_torch(theirs, batches, targets, torch.float64)
        theirs.float().load_state_dict(start)
        single = by_torch(theirs, batches, targets, torch.float32)
    optimizer = md.optim.SGD(RATE, momentum=0.9, weight_decay=1e-3)
    shape = (BATCH, 3, size, size)
    trainer = md.Trainer(net, shape, md.losses.CrossEntropy(), optimizer, device="cpu", threads=2)
    losses = [float(trainer.step(batches[step % 4], targets[step % 4])) for step in range(STEPS)]
    return error({"losses": np.array(losses), **trainer.store}, exact), error(single, exact)


@pytest.mark.full
@pytest.mark.parametrize("name", NETWORKS)
def test_network(name: str) -> None:
    found = np.array([errors_of(name, seed) for seed in range(SEEDS)])
    ours, theirs = np.median(found, axis=0)
    assert ours <= 3 * theirs, f"{name}: errors of both by seed {found.tolist()}"
