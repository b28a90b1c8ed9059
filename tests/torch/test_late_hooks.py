"""Hooks that come and go while a network is optimized."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import minidnn as md
from tests.torch.test_hooks import Net, examples, same


def hooked(fast: Any, net: nn.Module) -> None:
    with torch.no_grad():
        for shift in (0.0, 2.0):
            same(fast(examples(shift)), net(examples(shift)))


def test_hooks_that_are_registered_and_removed_later() -> None:
    net, seen = Net().eval(), []
    fast = md.optimize(net, examples(), device="reference")
    hooked(fast, net)
    (program,) = fast.programs
    Net().middle.register_forward_hook(lambda m, i, o: o)  # another network's
    hooked(fast, net)
    assert fast.programs == [program]
    for register in (
        lambda: net.middle.register_forward_hook(lambda m, i, o: seen.append(1)),
        lambda: net.first.register_forward_pre_hook(lambda m, i: seen.append(1)),
        lambda: net.register_forward_hook(lambda m, i, o: seen.append(1)),
    ):
        for _ in range(2):  # the second time one that was captured without it is there
            handle = register()
            hooked(fast, net)
            assert len(seen) == 4
            handle.remove()
            seen.clear()
            hooked(fast, net)
            assert not seen


def test_hooks_that_only_compute_are_captured() -> None:
    """And called anew when they are replaced."""
    net = Net().eval()
    scale = 3.0
    handles = [
        net.middle.register_forward_hook(lambda m, i, o: torch.relu(o * scale) + i[0].mean()),
        net.last.register_forward_pre_hook(lambda m, i: (i[0].clamp(max=1.0),)),
    ]
    fast = md.optimize(net, examples(), device="reference", strict=True)
    hooked(fast, net)
    handles[0].remove()
    hooked(fast, net)
    net.middle._forward_hooks[handles[0].id] = lambda m, i, o: o * 5
    fast.refresh()
    hooked(fast, net)


def test_hooks_of_all_modules() -> None:
    net, seen = Net().eval(), []
    fast = md.optimize(net, examples(), device="reference")
    handle = nn.modules.module.register_module_forward_hook(
        lambda m, i, o: seen.append(type(m).__name__)
    )
    try:
        for _ in range(2):
            with torch.no_grad():
                fast(examples())
            assert seen == [*["Conv2d"] * 3, "Net", "OptimizedModule"]
            seen.clear()
    finally:
        handle.remove()
    hooked(fast, net)
    assert not seen


def test_hooks_of_a_network_whose_argument_is_written_to() -> None:
    """They run once, also where arguments share memory."""

    class Adding(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x.add_(1) * y

    net, seen = Adding().eval(), []

    def after(module: Any, args: Any, result: Any) -> Any:
        seen.append(1)
        return result + 1

    net.register_forward_hook(after)
    fast = md.optimize(net, device="reference")
    x, y = torch.ones(3), torch.ones(3)
    same(fast(x, y), torch.full((3,), 3.0))
    same(fast(x, x), torch.full((3,), 10.0))
    same(x, torch.full((3,), 3.0))
    assert len(seen) == 2


def test_hooks_that_run_after_an_error() -> None:
    net, seen = Net().eval(), []
    net.register_forward_hook(lambda m, i, o: seen.append(o), always_call=True)
    fast = md.optimize(net, device="reference")
    with pytest.raises(RuntimeError):
        fast(torch.ones(1, 7, 2, 2))
    assert seen == [None]
