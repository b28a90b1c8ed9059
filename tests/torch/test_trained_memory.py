"""Many steps of an optimized module take no more memory than few, and the same."""

from __future__ import annotations

import copy
import gc
import os
from pathlib import Path

import pytest
import torch
from torch import nn

import minidnn as md
from tests.torch.test_trained import examples, network, program

MOST_BYTES = 1 << 20
"""Less than 200 steps would lose of the kept values, gradients, or results of this network."""


def resident_bytes() -> int:
    fields = Path("/proc/self/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.sampled(3)
@pytest.mark.early
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="no /proc")
@pytest.mark.parametrize("device", ["reference", pytest.param("cpu", marks=pytest.mark.full)])
def test_two_hundred_steps(device: str) -> None:
    net = nn.Sequential(network(), nn.Dropout(0.5))
    fast = md.optimize(net, device=device).train()
    optimizer = torch.optim.Adam(fast.parameters())
    x = torch.randn(16, 3, 6, 6)

    def steps(count: int) -> tuple[int, int]:
        for step in range(count):
            optimizer.zero_grad()
            loss = fast(x).square().mean()
            if step % 3:  # else the graph is dropped
                loss.backward()
                optimizer.step()
        del loss
        gc.collect()
        # By their types: some of PyTorch's objects warn when they are asked for their class.
        kinds = map(type, gc.get_objects())
        return resident_bytes(), sum(issubclass(kind, torch.Tensor) for kind in kinds)

    steps(50)
    before, after = steps(12), steps(201)
    assert after[1] <= before[1]  # fewer where earlier tests left some
    assert after[0] - before[0] < MOST_BYTES
    assert len(program(fast).parts[0].pairs) == 1


def test_statistics_pass_through_the_same_memory_in_every_call() -> None:
    """Also where calls come before their gradients."""
    net = network()
    own, fast = copy.deepcopy(net).train(), md.optimize(net, device="cpu").train()
    x = examples(3, 3, 6, 6)
    for factor in (1, 2, 3):
        for module in (fast, own):
            (module(x * factor) * module(x + factor)).sum().backward()
        for one, other in zip(net.buffers(), own.buffers(), strict=True):
            torch.testing.assert_close(one, other)
    (part,) = program(fast).parts
    (pair,) = part.pairs.values()
    assert [len(each) for each in pair._copied.values()] == [1]
