"""Programs that call modules with batches and images of many sizes."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.torch.programs.arguments import Calls, goes_back
from tests.torch.programs.harness import Run, program
from tests.torch.programs.parts import Around, around, convolutional


@program(quick=True)
def last_batch_is_smaller(run: Run) -> None:
    net = convolutional()
    fast = run.compile(net)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for count in (4, 4, 3, 4, 4, 3):
        optimizer.zero_grad()
        loss = fast(run.randn(count, 1, 5, 5)).square().mean()
        loss.backward()
        optimizer.step()
        run.step(loss, net)


@program()
def batch_of_one_in_training_raises(run: Run) -> None:
    """PyTorch refuses to normalize over one value."""
    net = around(nn.BatchNorm1d(8))
    fast = run.compile(net)
    fast(run.randn(3, 4)).sum().backward()
    run.raises(lambda: fast(run.randn(1, 4)))
    fast(run.randn(2, 4)).sum().backward()
    run.step(net.get_parameter("0.weight").grad)


@program()
def batches_of_zero_and_one(run: Run) -> None:
    net = around(nn.Tanh())
    fast = run.compile(net)
    for count in (2, 0, 1, 3, 0):
        y = fast(run.randn(count, 4))
        y.sum().backward()
        run.step(y, net)
    fast.eval()
    with torch.no_grad():
        for count in (0, 1, 2):
            run.step(fast(run.randn(count, 4)))


@program()
def empty_batch_of_images(run: Run) -> None:
    net = convolutional().eval()
    fast = run.compile(net)
    with torch.no_grad():
        for count in (2, 0, 1):
            run.step(fast(run.randn(count, 1, 5, 5)))


@program()
def images_of_many_sizes(run: Run) -> None:
    net = convolutional()
    fast = run.compile(net)
    for size in (4, 6, 5, 4):
        fast(run.randn(2, 1, size, size + 1)).square().mean().backward()
        run.step(net)


@program()
def more_sizes_than_are_kept(run: Run) -> None:
    """Nothing changes when programs for sizes are dropped, or PyTorch's limit is met."""
    net = around(nn.Tanh()).eval()
    fast = run.compile(net)
    with torch.no_grad():
        for count in (2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 2):
            run.step(fast(run.randn(count, 4)))


@program()
def input_without_a_batch(run: Run) -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2)).eval()
    fast = run.compile(net)
    with torch.no_grad():
        run.step(fast(run.randn(2, 1, 6, 6)))
        run.step(fast(run.randn(1, 6, 6)))


@program()
def sequences_of_many_lengths(run: Run) -> None:
    class Attends(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.out = nn.Linear(4, 12), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = self.qkv(x).chunk(3, -1)
            return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True))

    net = Attends()
    fast = run.compile(net)
    for length in (3, 5, 2, 3):
        y = fast(run.randn(2, length, 4))
        y.square().sum().backward()
        run.step(y, net)


@program()
def size_used_as_a_number(run: Run) -> None:
    def function(layer: Any, x: torch.Tensor) -> torch.Tensor:
        return layer(x).sum(0) / len(x) + x.shape[0] * 0.1

    net = Calls(function)
    fast = run.compile(net)
    for count in (2, 4, 3):
        y = fast(run.randn(count, 4))
        y.sum().backward()
        run.step(y, net)


@program()
def branch_by_size(run: Run) -> None:
    def function(layer: Any, x: torch.Tensor) -> torch.Tensor:
        return layer(x).relu() if len(x) > 2 else layer(x).tanh()

    net = Calls(function)
    fast = run.compile(net)
    for count in (2, 4, 3, 1):
        y = fast(run.randn(count, 4))
        y.sum().backward()
        run.step(y, net)


@program()
def tensors_that_are_not_contiguous(run: Run) -> None:
    net = convolutional()
    fast = run.compile(net)
    x = run.randn(2, 5, 5, 1)
    for given in (
        x.permute(0, 3, 1, 2),
        x.permute(0, 3, 2, 1),
        run.randn(2, 1, 5, 5).to(memory_format=torch.channels_last),
        run.randn(2, 1, 10, 10)[:, :, ::2, ::2],
        run.randn(1, 1, 5, 5).expand(2, 1, 5, 5),
    ):
        y = fast(given)
        y.square().sum().backward()
        run.step(y, net)


@program()
def wrong_shape_raises_and_nothing_else_changes(run: Run) -> None:
    class Counts(Around):
        def setup(self) -> None:
            self.norm = nn.BatchNorm1d(8)

        def middle(self, y: torch.Tensor) -> torch.Tensor:
            return self.norm(y)

    net = Counts()
    fast = run.compile(net)
    for shape in ((3, 4), (3, 5), (3, 4)):
        run.raises(partial(goes_back, fast, run.randn(*shape)))
        run.step(net)


@program()
def windows_of_a_signal(run: Run) -> None:
    class Windows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("window", torch.hann_window(4))
            self.layer = nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x.unfold(-1, 4, 2) * self.window)

    net = Windows()
    fast = run.compile(net)
    for length in (8, 10, 8):
        y = fast(run.randn(2, length))
        y.square().sum().backward()
        run.step(y, net)
