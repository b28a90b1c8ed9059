"""An optimized module in training mode on a GPU: its memory, its stream, its generator."""

from __future__ import annotations

import copy
import itertools
import os
import shutil
import subprocess
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import minidnn as md
from tests.torch import test_trained_halves
from tests.torch.steps import trained_programs
from tests.torch.test_trained import Dropping, network, program, same_gradients, same_state, x_of

cupy = pytest.importorskip("cupy")

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("stream", [False, True])
def test_gradients_and_statistics(stream: bool) -> None:
    own, net = network().train(), network().cuda()
    fast = md.optimize(net, x_of().cuda())
    with torch.cuda.stream(torch.cuda.Stream() if stream else None):
        for step in range(3):
            x = x_of() + step
            fast(x.cuda()).square().mean().backward()
            own(x).square().mean().backward()
        torch.cuda.current_stream().synchronize()
    assert not program(fast).left
    same_gradients(net.cpu(), own)
    same_state(net, own)


def test_a_layer_of_pytorchs_between_parts() -> None:
    class Fourier(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.fft.ifft(torch.fft.fft(x)).real

    net = network()
    net.insert(2, Fourier())
    own = copy.deepcopy(net).train()
    given = [x_of().requires_grad_(), x_of().cuda().requires_grad_()]
    fast = md.optimize(net.cuda().train())
    for module, x in zip((own, fast), given, strict=True):
        module(x).square().sum().backward()
    assert len(program(fast).parts) > 1
    torch.testing.assert_close(given[1].grad.cpu(), given[0].grad, rtol=1e-4, atol=1e-5)
    same_gradients(net.cpu(), own)


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("how", ["autocast", "module", "precision"])
def test_gradients_in_half_precision(half: torch.dtype, how: str) -> None:
    net = test_trained_halves.Network().cuda()
    net = net.to(half) if how == "module" else net
    precision = str(half).removeprefix("torch.") if how == "precision" else None
    fast = md.optimize(net, precision=precision, strict=True).train()
    if how == "precision":  # results are in float32, and PyTorch's are all exact
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch.backends.cudnn, "allow_tf32", False)
            found = np.array(test_trained_halves.errors_of(net, fast, None))[:, 0]
        assert np.median(found) < {torch.bfloat16: 0.1, torch.float16: 0.02}[half]
    else:
        errors = test_trained_halves.errors_of(net, fast, half if how == "autocast" else None)
        ours, theirs = np.median(np.array(errors), axis=0)
        assert ours <= 3 * theirs, errors
    (part,) = program(fast).parts
    (pair,) = part.pairs.values()
    kept = pair.forward.part.graph.outputs[pair.outputs :]
    assert str(half).removeprefix("torch.") in {value.dtype for value in kept}


def test_a_scaler() -> None:
    test_trained_halves.check_scaler("cuda", "cuda")


def test_evaluation_under_autocast() -> None:
    net = network().cuda().eval()
    fast, x = md.optimize(net, strict=True), x_of().cuda()
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
        found, own = fast(x), net(x)
    assert found.dtype is own.dtype is torch.bfloat16
    torch.testing.assert_close(found, own, rtol=3e-2, atol=3e-2)


def test_dropout_follows_the_generator_of_the_device() -> None:
    fast = md.optimize(Dropping(channels=False).cuda())
    x = torch.ones(8, 4, 8, 8, device="cuda")
    torch.manual_seed(5)
    first, second = fast(x), fast(x)
    torch.cuda.manual_seed(5)
    assert torch.equal(fast(x), first) and not torch.equal(first, second)
    second.sum().backward()
    torch.testing.assert_close(fast.weight.grad, second.sum((0, 2, 3)))


def own_bytes() -> tuple[int | None, ...]:
    """What this process has of the GPU's memory, whoever else has some: what PyTorch's allocator
    and CuPy's pool gave out and what they hold, and all of it where that can be told."""
    import cupy

    pool = cupy.get_default_memory_pool()
    held = (torch.cuda.memory_allocated(), torch.cuda.memory_reserved())
    return (*held, pool.used_bytes(), pool.total_bytes(), whole_mebibytes())


def whole_mebibytes() -> int | None:
    """This process's use of the GPU by NVML, with what libraries and the driver took; None where
    NVML does not name the process, as in a container with process numbers of its own."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    uuid = f"GPU-{torch.cuda.get_device_properties().uuid}"
    asked = ["--query-compute-apps=gpu_uuid,pid,used_memory", "--format=csv,noheader,nounits"]
    told = subprocess.run([tool, *asked], capture_output=True, text=True, check=False).stdout
    for line in told.splitlines():
        fields = [field.strip() for field in line.split(",")]
        if fields[:2] == [uuid, str(os.getpid())] and fields[2].isdigit():
            return int(fields[2])
    return None


def test_two_hundred_steps_take_no_more_memory() -> None:
    fast = md.optimize(network().cuda())
    optimizer = torch.optim.SGD(fast.parameters(), 0.01, 0.9)
    x = x_of(64).cuda()
    used = []
    for _ in range(3):
        for _ in range(100):
            optimizer.zero_grad()
            fast(x).square().mean().backward()
            optimizer.step()
        torch.cuda.synchronize()
        used.append(own_bytes())
    assert used[2] == used[1]


def test_gradients_are_computed_in_the_memory_of_what_was_kept() -> None:
    """No program has memory for its inputs and outputs, and that of gradients for nothing else."""
    net = network().cuda()
    own, fast = copy.deepcopy(net).train(), md.optimize(net).train()
    x = x_of(64).cuda()

    def steps(count: int, backwards: int) -> None:
        for _ in range(count):
            for module in (own, fast):
                loss = module(x).square().mean()
                for left in reversed(range(backwards)):
                    loss.backward(retain_graph=left > 0)
                del loss

    steps(4, 1)
    (trained,) = trained_programs(fast)
    pairs = [pair for part in trained.parts for pair in part.pairs.values()]
    programs = [next(iter(pair.backwards.values()))[1]._program for pair in pairs]
    for pair, backward in zip(pairs, programs, strict=True):
        assert pair._donates_block
        for half in (pair.forward._program, backward):
            assert half._external.kept and not half._instances
        assert all(donated for donated, *_ in backward._external.kept)
        assert pair._block.bytes < pair.kept_bytes + backward.table.block.bytes
    steps(1, 2)  # PyTorch keeps the graph: the block is read twice
    for backward in programs:
        assert sum(not donated for donated, *_ in backward._external.kept) == 1
    same_gradients(net.cpu(), own.cpu())


@pytest.mark.parametrize(("half", "most"), [(None, 1.5), (torch.bfloat16, 1.0)], ids=str)
def test_a_step_takes_no_more_memory_than_pytorchs(half: torch.dtype | None, most: float) -> None:
    """Of a network whose values are large beside its parameters.  In float32 convolutions want
    workspaces of a few values' size."""

    def made() -> nn.Module:
        widths = (3, 64, 64, 64, 64)
        blocks = [
            nn.Sequential(nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU())
            for a, b in itertools.pairwise(widths)
        ]
        return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))

    def peak(module: Any, x: torch.Tensor) -> int:
        pool = cupy.get_default_memory_pool()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated() + pool.used_bytes()
        for _ in range(4):
            with torch.autocast("cuda", half, enabled=half is not None):
                loss = module(x).square().mean()
            loss.backward()
            del loss
        torch.cuda.synchronize()
        return int(torch.cuda.max_memory_allocated() + pool.used_bytes() - before)

    x = torch.randn(32, 3, 112, 112, device="cuda")
    theirs = peak(made().cuda().train(), x)
    assert peak(md.optimize(made().cuda().train()), x) <= most * theirs


def test_what_is_kept_lies_where_it_lay_before_and_is_given_back() -> None:
    """In a pool of its own, whatever else PyTorch's allocator is asked for in between."""
    net = network().cuda()
    fast = md.optimize(net).train()
    optimizer = torch.optim.Adam(fast.parameters())
    x, others, lay = x_of().cuda(), [], set()
    fast(x).sum().backward()
    before = torch.cuda.memory_allocated()
    for step in range(6):
        loss = fast(x).sum()
        block = loss.grad_fn.next_functions[0][0].saved_tensors[0]
        assert block.dtype is torch.uint8
        lay.add(block.data_ptr())
        del block
        loss.backward()
        del loss
        optimizer.step()
        optimizer.zero_grad()
        others.append(torch.empty(1 << (10 + 2 * step), device="cuda"))
    assert len(lay) == 1
    del optimizer, others
    assert torch.cuda.memory_allocated() <= before
