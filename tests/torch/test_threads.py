"""PyTorch's threads leave the cores to ours, or do the work of both."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest
import torch
from torch import nn

import minidnn as md
from minidnn.acceleration import threads
from tests.cpu.conftest import run_python
from tests.devices import unavailable


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


class Wave(nn.Module):
    """An operation that is not known."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sinc(x)


@pytest.fixture
def two_threads() -> Iterator[None]:
    if unavailable("cpu") is not None:
        pytest.skip("the CPU engine is not there")
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    if threads.team_of(2) is None:
        torch.set_num_threads(before)
        pytest.skip("PyTorch's OpenMP library has no GOMP_parallel")
    yield
    torch.set_num_threads(before)


def network() -> nn.Module:
    torch.manual_seed(0)
    body = (convolutions(3), Wave(), convolutions(16))
    return nn.Sequential(*body).eval().requires_grad_(False)


def convolutions(channels: int) -> nn.Sequential:
    """As many as are worth a part."""
    later = [nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.ReLU()) for _ in range(4)]
    return nn.Sequential(nn.Conv2d(channels, 16, 1), *later)


def tasks() -> int:
    return len(os.listdir("/proc/self/task"))


def test_a_team_has_as_many_threads_as_pytorch(two_threads: None) -> None:
    assert threads.team_of(1) is None and threads.team_of(3) is None
    torch.set_num_threads(3)
    assert threads.team_of(2) is None and threads.team_of(3) is not None
    assert torch.get_num_threads() == 3


def test_parts_around_an_operation_of_pytorchs_compute_with_its_threads(two_threads: None) -> None:
    net, x = network(), torch.randn(4, 3, 64, 64)
    fast = md.optimize(net, x, device="cpu", threads=2)
    assert [part.shares_threads for part in fast.programs[0].parts] == [True, True]
    alone = md.optimize(net[0], x, device="cpu", threads=2, strict=True)
    assert [part.shares_threads for part in alone.programs[0].parts] == [False]
    with torch.inference_mode():
        net(x)
        found = fast(x)
        before = tasks()
        for _ in range(50):
            assert torch.equal(fast(x), found)
        assert tasks() == before
    torch.set_num_threads(1)
    other = md.optimize(net, x, device="cpu", threads=2)
    assert [part.shares_threads for part in other.programs[0].parts] == [False, False]
    torch.testing.assert_close(other(x), found, rtol=0, atol=1e-6)
    torch.testing.assert_close(net(x), found, rtol=1e-5, atol=1e-5)


@pytest.mark.full  # beside test_forks.py
def test_a_child_of_a_fork_computes_with_threads_of_its_own(two_threads: None) -> None:
    code = """
        import os, signal, torch, warnings
        import minidnn as md
        from tests.torch.test_threads import network
        torch.set_num_threads(2)
        net, x = network(), torch.randn(4, 3, 64, 64)
        fast = md.optimize(net, x, device="cpu", threads=2)
        assert [part.shares_threads for part in fast.programs[0].parts] == [True, True]
        with torch.inference_mode():
            expected = [fast(x) for _ in range(3)][-1]
            warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
            pid = os.fork()
            if pid == 0:
                signal.alarm(60)
                os._exit(0 if torch.equal(fast(x), expected) else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
            assert torch.equal(fast(x), expected)
        print("good")
        """
    child = run_python(code)
    out, err = child.communicate(timeout=120)
    assert (out, child.returncode) == ("good\n", 0), err
