"""Programs that read or write past PyTorch's tape: ``data``, ``detach``, gradients off."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from tests.torch.programs.harness import Run, program

Forward = Callable[[nn.Module, torch.Tensor], torch.Tensor]


class Untaped(nn.Module):
    """A weight, a buffer, and a forward of one's own."""

    def __init__(self, own: Forward) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))
        self.register_buffer("mean", torch.zeros(4))
        self.own = own

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.own(self, x)


def untaped(quick: bool = False) -> Callable[[Forward], Forward]:
    """Makes a forward a program, which is called with a copy of what requires a gradient."""

    def add(own: Forward) -> Forward:
        def body(run: Run) -> None:
            net = Untaped(own)
            fast = run.compile(net)
            for number, x in enumerate(run.batches(4, 3, 4)):
                fast.train(number != 2)
                given = x.requires_grad_().clone()
                net.zero_grad()
                found = fast(given)
                (found.sum() + given.square().sum()).backward()
                run.step(found, given, x, net)

        body.__name__, body.__module__ = own.__name__, __name__
        program(share=0.0, quick=quick)(body)
        return own

    return add


@untaped(quick=True)
def argument_written_without_gradients_and_then_with(net: Untaped, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        x.mul_(0.5)
    y = x.tanh()
    x.mul_(2)
    return y


@untaped()
def argument_written_by_another_view_without_gradients(
    net: Untaped, x: torch.Tensor
) -> torch.Tensor:
    with torch.no_grad():
        x[0].mul_(0.5)
    y = x * 3
    x.view(-1)[4:].mul_(2)
    return y


@untaped()
def argument_written_twice_without_gradients(net: Untaped, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        x.mul_(0.5)
        x.add_(0.1)
    return x @ net.weight


@untaped(quick=True)
def detached_argument_written(net: Untaped, x: torch.Tensor) -> torch.Tensor:
    x.detach().mul_(0.5)
    return x.tanh()


@untaped()
def data_of_an_argument_written_and_then_the_argument(
    net: Untaped, x: torch.Tensor
) -> torch.Tensor:
    x.data.mul_(0.5)
    y = x.tanh()
    x.mul_(2)
    return y


@untaped()
def row_of_a_detached_argument_written_after_another(net: Untaped, x: torch.Tensor) -> torch.Tensor:
    x[1].mul_(2)
    y = x * 3
    x.detach()[0].mul_(0.5)
    return y + 1


@untaped(quick=True)
def copy_into_a_detached_value(net: Untaped, x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y.detach().copy_(x.detach() * 2)
    return y * x


@untaped()
def data_of_an_activation_doubled(net: Untaped, x: torch.Tensor) -> torch.Tensor:
    y = (x @ net.weight) * 2
    y.data.mul_(2)
    return y.sum(1)


@untaped(quick=True)
def exponential_of_data(net: Untaped, x: torch.Tensor) -> torch.Tensor:
    y = (x @ net.weight).relu()
    return y + y.data.exp()


@untaped()
def straight_through_by_data(net: Untaped, x: torch.Tensor) -> torch.Tensor:
    y = x @ net.weight
    return y.tanh() + (y.sign() - y.tanh()).data


@untaped(quick=True)
def average_of_data_in_the_data_of_a_buffer(net: Untaped, x: torch.Tensor) -> torch.Tensor:
    y = (x @ net.weight).relu()
    net.mean.data.lerp_(y.data.mean(0), 0.1)
    return (y - net.mean) @ net.weight


@untaped()
def buffer_written_by_data_of_what_has_gradients(net: Untaped, x: torch.Tensor) -> torch.Tensor:
    y = (x @ net.weight).relu()
    net.mean.data.copy_(y.mean(0) * 0.1)
    return y * 2


@untaped()
def weight_clamped_by_data_before_it_is_read(net: Untaped, x: torch.Tensor) -> torch.Tensor:
    net.weight.data.clamp_(-0.3, 0.3)
    return (x @ (net.weight / net.weight.norm())).tanh()


@untaped()
def weight_scaled_by_data_after_it_was_read(net: Untaped, x: torch.Tensor) -> torch.Tensor:
    y = (x @ net.weight).tanh()
    net.weight.data.mul_(0.5)
    return y


@untaped()
def weight_scaled_by_data_between_reads(net: Untaped, x: torch.Tensor) -> torch.Tensor:
    y = (x * net.weight[0, 0]).sum(1)
    net.weight.data.mul_(0.5)
    return y + (x * net.weight.sum(0)).sum(1)


@untaped()
def row_of_a_detached_weight_written_and_read(net: Untaped, x: torch.Tensor) -> torch.Tensor:
    row = net.weight.detach()[0]
    row.mul_(2)
    return (x @ net.weight).tanh() + row.sum()
