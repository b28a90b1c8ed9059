"""What others do to an optimized module in training mode: transforms, checkpoints, hooks."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

import minidnn as md
from minidnn.errors import MiniDNNWarning, UnsupportedError
from tests.torch.test_trained import DEVICE, close, same_gradients

WARNS = pytest.warns(MiniDNNWarning, match="within a transform of torch.func .*: it runs in PyT")


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).train()


def pair(**options: Any) -> tuple[Any, nn.Sequential]:
    net = network()
    return md.optimize(net, device=DEVICE, **options), copy.deepcopy(net)


def x_of() -> torch.Tensor:
    return torch.randn(5, 4, generator=torch.Generator().manual_seed(1))


def test_other_parameters_for_one_call() -> None:
    fast, own = pair(strict=True)
    found = []
    for module in (fast, own):
        given = {
            name: (2 * each.detach()).requires_grad_() for name, each in own.named_parameters()
        }
        functional_call(module, given, (x_of(),)).square().sum().backward()
        found.append([each.grad for each in given.values()])
    for one, other in zip(*found, strict=True):
        close(one, other)
    fast(x_of()).sum().backward(), own(x_of()).sum().backward()
    same_gradients(fast, own)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is:DeprecationWarning")  # PyTorch's own
def test_transforms_are_pytorchs() -> None:
    fast, own = pair()
    given = {name: each.detach() for name, each in own.named_parameters()}

    def gradients(module: nn.Module) -> dict[str, torch.Tensor]:
        def loss(weights: Any, x: torch.Tensor) -> torch.Tensor:
            return functional_call(module, weights, (x[None],)).square().sum()

        each = torch.func.vmap(torch.func.grad(loss), (None, 0))
        return dict(each(given, x_of()))

    with WARNS:
        found = gradients(fast)
    for name, expected in gradients(own).items():
        close(found[name], expected)
    close(torch.func.jvp(fast, (x_of(),), (x_of(),)), torch.func.jvp(own, (x_of(),), (x_of(),)))
    strict, _ = pair(strict=True)
    with pytest.raises(UnsupportedError, match="strict=True, and Sequential was called within a"):
        gradients(strict)


def test_jacobians_and_what_is_refused() -> None:
    fast, own = pair()
    jacobian = torch.autograd.functional.jacobian
    close(jacobian(fast, x_of()), jacobian(own, x_of()))
    with pytest.warns(MiniDNNWarning, match="a gradient of a gradient"):
        found = torch.autograd.functional.hessian(lambda x: fast(x).square().sum(), x_of())
    close(found, torch.autograd.functional.hessian(lambda x: own(x).square().sum(), x_of()))
    x = x_of().requires_grad_()
    with pytest.raises(UnsupportedError, match=r"is_grads_batched=True .* fast\.original"):
        torch.autograd.grad(fast(x), x, torch.ones(2, 5, 3), is_grads_batched=True)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints(reentrant: bool) -> None:
    fast, own = pair(strict=True)
    for module in (fast, own):
        x = x_of().requires_grad_()
        checkpoint(module, x, use_reentrant=reentrant).square().sum().backward()
    same_gradients(fast, own)


def test_a_hook_that_registers_hooks_on_what_is_within() -> None:
    fast, own = pair()
    seen: list[torch.Tensor] = []

    def forward(module: nn.Module, given: Any, result: torch.Tensor) -> None:
        result.register_hook(seen.append)

    for module in (fast, own):
        module[1].register_forward_hook(forward)
        module(x_of()).square().sum().backward()
    close(*seen)
    same_gradients(fast, own)
