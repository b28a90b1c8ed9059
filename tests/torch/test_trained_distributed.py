"""An optimized module within DistributedDataParallel, on the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import minidnn as md
from minidnn.acceleration.trained import TrainedProgram
from tests.torch.steps import trained_programs

pytestmark = pytest.mark.skipif(
    not dist.is_available() or not dist.is_gloo_available(), reason="PyTorch was built without gloo"
)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False),
        nn.GroupNorm(2, 8),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 5),
    )


def train(module: Any, parts: list[torch.Tensor], sizes: int = 1) -> None:
    """Steps on two batches each, whose gradients add up; the first are not exchanged."""
    optimizer = torch.optim.SGD(module.parameters(), 0.1, 0.9)
    for step in range(3):
        optimizer.zero_grad()
        first, second = (part + step for part in parts)
        if isinstance(module, DistributedDataParallel):
            with module.no_sync():
                module(first).square().mean().backward()
        else:
            module(first).square().mean().backward()
        module(second).square().mean().backward()
        optimizer.step()


def batches() -> list[torch.Tensor]:
    return list(torch.randn(2, 8, 3, 6, 6, generator=torch.Generator().manual_seed(1)))


def work(rank: int, count: int, store: str) -> None:
    """What one process does; the last says what it has."""
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=count)
    try:
        fast = md.optimize(network().train(), device="reference", strict=True)
        share = 8 // count
        mine = [batch[rank * share :][:share] for batch in batches()]
        train(DistributedDataParallel(fast), mine)
        (program,) = trained_programs(fast)
        assert isinstance(program, TrainedProgram) and len(program.parts) == 1
        torch.save(fast.state_dict(), f"{store}.{rank}")
    finally:
        dist.destroy_process_group()


@pytest.mark.sampled(3)
@pytest.mark.early
@pytest.mark.parametrize("count", [1, pytest.param(2, marks=pytest.mark.full)])
def test_it_trains_as_one_process_does(count: int, tmp_path: Path) -> None:
    """A mean over the batch is the mean of those over its shares."""
    store = str(tmp_path / "store")
    if count == 1:
        work(0, 1, store)
    else:
        mp.spawn(work, (count, store), nprocs=count)
    own = network().train()
    train(own, batches())
    for rank in range(count):
        held = torch.load(f"{store}.{rank}")
        for name, tensor in own.state_dict().items():
            torch.testing.assert_close(held[name], tensor, rtol=1e-4, atol=1e-5)
