"""What people do with PyTorch's tape around a network that is trained: each gives what PyTorch's
own module gives, through md.optimize and through torch.compile, or is refused with the reason."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad

import minidnn as md
from minidnn.acceleration.dynamo import backend
from minidnn.errors import MiniDNNWarning
from tests.torch.test_trained import DEVICE, close
from tests.torch.test_trained_transforms import network, x_of

Tensors = list[torch.Tensor]


def gradients(module: nn.Module) -> Tensors:
    return [each.grad for each in module.parameters() if each.grad is not None]


def hooks_on_parameters(module: nn.Module) -> Tensors:
    """One changes the gradient, one sees what has been added up, one sees all together."""
    seen: Tensors = []
    added: Tensors = []
    first, *others = module.parameters()
    first.register_hook(lambda gradient: 2 * gradient)
    first.register_post_accumulate_grad_hook(lambda each: added.append(_grad(each).clone()))
    torch.autograd.graph.register_multi_grad_hook(
        others, lambda found: seen.extend(each.clone() for each in found if each is not None)
    )
    module(x_of()).square().sum().backward()
    return [*added, *seen, *gradients(module)]


def _grad(tensor: torch.Tensor) -> torch.Tensor:
    assert tensor.grad is not None
    return tensor.grad


def hooks_on_what_goes_in_and_out(module: nn.Module) -> Tensors:
    x = x_of().requires_grad_()
    given = 2 * x
    given.retain_grad()
    given.register_hook(lambda gradient: 3 * gradient)
    result = module(given)
    result.retain_grad()
    result.register_hook(lambda gradient: gradient / 2)
    result.square().sum().backward()
    return [_grad(each) for each in (x, given, result)] + gradients(module)


def a_hook_on_the_node(module: nn.Module) -> Tensors:
    seen: Tensors = []
    result = module(x_of().requires_grad_())
    result.grad_fn.register_prehook(lambda found: seen.extend(found))
    result.square().sum().backward()
    return seen + gradients(module)


def retained(module: nn.Module) -> Tensors:
    loss = module(x_of()).square().sum()
    loss.backward(retain_graph=True)
    loss.backward()
    return gradients(module)


def of_some(module: nn.Module) -> Tensors:
    """Nothing arrives in ``.grad``."""
    x = x_of().requires_grad_()
    wanted = [x, next(module.parameters())]
    return [*torch.autograd.grad(module(x).square().sum(), wanted), *gradients(module)]


def kept_elsewhere(module: nn.Module) -> Tensors:
    with torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda kept: kept):
        loss = module(x_of()).square().sum()
    loss.backward()
    with torch.autograd.graph.save_on_cpu():
        module(x_of()).square().sum().backward()
    return gradients(module)


def with_anomalies_detected(module: nn.Module) -> Tensors:
    with torch.autograd.set_detect_anomaly(True):
        module(x_of()).square().sum().backward()
    return gradients(module)


def forward_mode(module: nn.Module) -> Tensors:
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x_of(), x_of().cos())
        return list(forward_ad.unpack_dual(module(dual)))


def of_functions(module: nn.Module) -> Tensors:
    """Which compute with PyTorch's own code."""
    result, back = torch.func.vjp(module, x_of())

    def loss(x: torch.Tensor) -> torch.Tensor:
        return module(x).square().sum()

    return [
        *(result, *back(result)),
        *(torch.func.jacrev(module)(x_of()), torch.func.jacfwd(module)(x_of())),
        *(torch.func.hessian(loss)(x_of()), torch.func.grad(loss)(x_of())),
        torch.func.vmap(lambda x: module(x[None]))(x_of()),
    ]


PROGRAMS: list[Callable[[nn.Module], Tensors]] = [
    *(hooks_on_parameters, hooks_on_what_goes_in_and_out, a_hook_on_the_node, retained, of_some),
    *(kept_elsewhere, with_anomalies_detected, forward_mode, of_functions),
]


def optimized() -> Any:
    return md.optimize(network(), device=DEVICE)


def compiled() -> Any:
    torch._dynamo.reset()
    return torch.compile(network(), backend=backend, options={"device": DEVICE})


# PyTorch's own: of torch.jit, of detecting anomalies, and of what its compiler looks at itself.
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled:UserWarning")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
# Ours, that PyTorch's own code runs.
@pytest.mark.filterwarnings("ignore:.* within a transform of torch.func")
@pytest.mark.filterwarnings("ignore:.* where forward-mode gradients are computed")
@pytest.mark.filterwarnings("ignore:.*its operations are recorded, or computed in another way")
@pytest.mark.parametrize("make", [optimized, compiled])
@pytest.mark.parametrize("run", PROGRAMS)
def test_program(run: Callable[[nn.Module], Tensors], make: Callable[[], Any]) -> None:
    found, expected = run(make()), run(network())
    assert expected
    for one, other in zip(found, expected, strict=True):
        close(one, other)


@pytest.mark.parametrize("make", [optimized, compiled])
def test_a_penalty_on_gradients(make: Callable[[], Any]) -> None:
    fast, own, x = make(), copy.deepcopy(network()), x_of().requires_grad_()
    loss = fast(x).sum()
    with pytest.warns(MiniDNNWarning, match="a gradient of a gradient"):
        (found,) = torch.autograd.grad(loss, x, create_graph=True)
    close(found, *torch.autograd.grad(own(x).sum(), x))
    (found,) = torch.autograd.grad(loss, x)
    close(found, *torch.autograd.grad(own(x).sum(), x))  # and what was recorded is there
