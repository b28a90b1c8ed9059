"""Twenty steps of the zoo's networks on the CPU engine, as near to float64 as PyTorch's float32."""

from __future__ import annotations

import numpy as np
import pytest

from tests.cases.record import one_thread
from tests.training.networks import Run, errors, torch

NETWORKS = (
    *("alexnet", "vgg11_bn", "resnet18", "resnet50", "squeezenet1_1", "densenet121"),
    "inception_v3",
)
#: Each has other weights and batches; the median of what they give is judged.
SEEDS = 5
#: Errors are at least that of rounding the largest number of an array a few times.
FLOOR = 4 * float(np.finfo(np.float32).eps)


@pytest.mark.full
@pytest.mark.parametrize("name", NETWORKS)
def test_network(name: str) -> None:
    ours, theirs = [], []
    for seed in range(SEEDS):
        run = Run(name, seed)
        with one_thread():
            exact = run.by_torch(torch.float64)
            theirs.append(errors(run.by_torch(torch.float32), exact))
        ours.append(errors(run.by_minidnn(device="cpu", threads=2), exact))
    for kind in ours[0]:
        found, single = (np.median([one[kind] for one in runs]) for runs in (ours, theirs))
        assert found <= 3 * max(single, FLOOR), f"{name}: errors by seed {ours}, {theirs}"
