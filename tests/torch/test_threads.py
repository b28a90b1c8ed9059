"""PyTorch's threads leave the cores to ours."""

from __future__ import annotations

import os
import time

import pytest
import torch

from minidnn.acceleration import threads


def test_threads_of_pytorch_are_ended_before_ours_begin() -> None:
    """They would poll for milliseconds on cores that the next part needs."""
    if not threads._pauses():
        pytest.skip("no OpenMP library with omp_pause_resource_all is loaded")
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        torch.sin(torch.ones(1 << 20))
        running = len(os.listdir("/proc/self/task"))
        threads.rest()
        end = time.monotonic() + 5
        while len(os.listdir("/proc/self/task")) > running - 2 and time.monotonic() < end:
            time.sleep(0.01)  # the system takes them off its list a little later
        assert len(os.listdir("/proc/self/task")) <= running - 2
        torch.testing.assert_close(
            torch.sin(torch.ones(1 << 20)).sum() / (1 << 20), torch.tensor(1.0).sin()
        )
    finally:
        torch.set_num_threads(before)
