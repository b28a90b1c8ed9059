"""Programs whose modules write to what they are given, or to results in between."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.torch.programs.harness import Run, program
from tests.torch.programs.parts import Around, around, train


def goes_back(fast: Any, x: torch.Tensor) -> None:
    fast(x).sum().backward()


class Calls(nn.Module):
    """A function as a module, with a layer of parameters."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(self.layer, *args, **kwargs)


def _in_both_modes(run: Run, function: Any, share: Any = None) -> None:
    """Without gradients in evaluation, then in training with gradients of the parameters."""
    net = Calls(function)
    fast = run.compile(net)
    for training in (False, True, False):
        fast.train(training)
        for x in run.batches(2, 3, 4):
            given = x.clone()
            with torch.set_grad_enabled(training):
                y = fast(given)
            if training:
                y.square().sum().backward()
            run.step(y, given, net)


@program(quick=True)
def column_of_an_argument_filled(run: Run) -> None:
    def function(layer: Any, x: torch.Tensor) -> torch.Tensor:
        x[:, :1].fill_(7)
        return layer(x).relu()

    _in_both_modes(run, function)


@program()
def argument_scaled_in_place(run: Run) -> None:
    _in_both_modes(run, lambda layer, x: layer(x.mul_(2)).relu())


@program()
def argument_written_after_it_is_read(run: Run) -> None:
    def function(layer: Any, x: torch.Tensor) -> torch.Tensor:
        y = layer(x.clone()).tanh()
        x.add_(1)
        return y

    _in_both_modes(run, function)


@program()
def argument_normalized_under_no_grad(run: Run) -> None:
    def function(layer: Any, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            x.sub_(x.mean()).div_(x.std())
        return layer(x).relu()

    _in_both_modes(run, function)


@program()
def argument_written_by_out(run: Run) -> None:
    class Into(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("w", torch.randn(4, 4))

        def forward(self, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
            torch.matmul(x, self.w, out=out)
            return out.relu()

    net = Into().eval()
    fast = run.compile(net)
    with torch.no_grad():
        for x in run.batches(3, 3, 4):
            out = torch.zeros_like(x)
            run.step(fast(x, out), out)


@program()
def row_of_an_argument_clamped(run: Run) -> None:
    def function(layer: Any, x: torch.Tensor) -> torch.Tensor:
        x[0].clamp_(-0.5, 0.5)
        return layer(x).sigmoid()

    _in_both_modes(run, function)


@program()
def argument_returned_as_it_is(run: Run) -> None:
    class Passes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> Any:
            return x, self.layer(x).relu()

    net = Passes()
    fast = run.compile(net)
    for x in run.batches(3, 3, 4):
        same, y = fast(x)
        y.sum().backward()
        run.step(same is x, y, net)


@program()
def argument_accumulated_into(run: Run) -> None:
    """A caller's tensor of sums is added to, and the same one given again."""

    def function(layer: Any, x: torch.Tensor, sums: torch.Tensor) -> torch.Tensor:
        y = layer(x).relu()
        sums += y.detach().sum(0)
        return y

    net = Calls(function)
    fast = run.compile(net)
    sums = torch.zeros(4, device=run.memory)
    for x in run.batches(4, 3, 4):
        y = fast(x, sums)
        y.sum().backward()
        run.step(y, sums, net)


@program()
def argument_that_requires_a_gradient_is_cloned_and_written(run: Run) -> None:
    net = Calls(lambda layer, x: layer(x.clone().mul_(3).add_(1)).relu())
    fast = run.compile(net)
    for x in run.batches(3, 3, 4):
        x.requires_grad_()
        fast(x).sum().backward()
        run.step(x, net)


@program(share=0.0)
def leaf_written_in_place_raises(run: Run) -> None:
    net = Calls(lambda layer, x: layer(x.add_(1)))
    fast = run.compile(net)
    x = run.randn(3, 4).requires_grad_()
    run.raises(lambda: fast(x))
    run.step(x, net)


@program()
def weight_written_before_the_gradient_raises(run: Run) -> None:
    net = around(nn.Tanh())
    fast = run.compile(net)
    loss = fast(run.randn(3, 4).requires_grad_()).sum()
    with torch.no_grad():
        net[3].weight.mul_(2)
    run.raises(loss.backward)


@program()
def same_tensor_as_two_arguments(run: Run) -> None:
    def function(layer: Any, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return layer(x * other).relu()

    net = Calls(function).eval()
    fast = run.compile(net)
    with torch.no_grad():
        for x in run.batches(2, 3, 4):
            run.step(fast(x, x), x)
            run.step(fast(x[:2], x[1:]), x)


@program()
def intermediate_written_through_a_view(run: Run) -> None:
    def function(layer: Any, x: torch.Tensor) -> torch.Tensor:
        y = layer(x) * 2
        y[:, 0].mul_(3)
        y.view(-1)[2:5].add_(1)
        return y.relu()

    _in_both_modes(run, function)


@program()
def base_written_while_a_view_is_held(run: Run) -> None:
    def function(layer: Any, x: torch.Tensor) -> torch.Tensor:
        y = layer(x) * 2
        first = y[:, :2]
        y.relu_()
        return first + y[:, 2:]

    _in_both_modes(run, function)


@program()
def chain_of_writes(run: Run) -> None:
    _in_both_modes(run, lambda layer, x: layer(x).mul_(2).add_(1).sub_(0.5).sigmoid() * 2)


@program()
def chain_of_writes_of_which_a_gradient_needs_one(run: Run) -> None:
    """ReLU keeps its result, which is then written to: PyTorch raises."""
    net = Calls(lambda layer, x: layer(x).relu_().sub_(0.5).clamp_(-1, 1))
    fast = run.compile(net)
    for x in run.batches(2, 3, 4):
        run.raises(partial(goes_back, fast, x))


@program()
def mask_assigned_by_index(run: Run) -> None:
    def function(layer: Any, x: torch.Tensor) -> torch.Tensor:
        y = layer(x) * 1
        y[y < 0] = 0.1
        return y * 2

    _in_both_modes(run, function)


@program(share=0.4)
def preallocated_results_filled_by_row(run: Run) -> None:
    def function(layer: Any, x: torch.Tensor) -> torch.Tensor:
        made = torch.zeros(len(x), 4, device=x.device)
        for row in range(len(x)):
            made[row] = layer(x[row])
        return made.tanh()

    _in_both_modes(run, function)


@program()
def cache_of_keys_written_at_a_place(run: Run) -> None:
    """A key-value cache, as generation keeps it: positions come one after another."""

    class Cached(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.Linear(4, 12)
            self.register_buffer("keys", torch.zeros(1, 6, 4))
            self.register_buffer("values", torch.zeros(1, 6, 4))

        def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
            q, k, v = self.qkv(x).chunk(3, -1)
            self.keys[:, at] = k
            self.values[:, at] = v
            mask = torch.arange(6, device=x.device)[None, :] <= at[:, None]
            return F.scaled_dot_product_attention(q, self.keys, self.values, attn_mask=mask)

    net = Cached().eval()
    fast = run.compile(net)
    with torch.no_grad():
        for place in range(5):
            at = torch.tensor([place], device=run.memory)
            run.step(fast(run.randn(1, 1, 4), at), net)


@program()
def cache_given_and_returned(run: Run) -> None:
    """The caller holds the past, which grows."""

    def function(layer: Any, x: torch.Tensor, past: Any = None) -> Any:
        keys = layer(x) if past is None else torch.cat([past, layer(x)], 1)
        return (x @ keys.transpose(1, 2)).softmax(-1) @ keys, keys

    net = Calls(function).eval()
    fast = run.compile(net)
    past = None
    with torch.no_grad():
        for _ in range(4):
            y, past = fast(run.randn(2, 1, 4), past=past)
            run.step(y, past)


@program()
def relu_in_place_on_a_residual(run: Run) -> None:
    class Block(Around):
        def middle(self, y: torch.Tensor) -> torch.Tensor:
            short = y
            y = F.relu(y * 0.5 - 0.1, inplace=True) * 2
            y += short
            return F.relu(y, inplace=True)

    net = Block()
    train(run, net, run.compile(net), 3)


@program()
def dropout_in_place_in_evaluation(run: Run) -> None:
    net = around(nn.Dropout(0.5, inplace=True)).eval()
    fast = run.compile(net)
    with torch.no_grad():
        for x in run.batches(3, 3, 4):
            run.step(fast(x), x)
