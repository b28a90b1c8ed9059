"""Programs in half precision: autocast, scalers, modules and results of other dtypes."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.torch.programs.harness import Run, program
from tests.torch.programs.parts import Around, around, convolutional

HALF = torch.bfloat16


@program(share=0.0, quick=True)
def autocast_in_training(run: Run) -> None:
    net = convolutional()
    fast = run.compile(net)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for x in run.batches(3, 3, 1, 6, 6):
        optimizer.zero_grad()
        with torch.autocast(run.memory, HALF):
            y = fast(x)
            loss = F.cross_entropy(y, run.randint(2, 3))
        loss.backward()
        optimizer.step()
        run.step(y, loss.to(HALF), {n: p.grad.to(HALF) for n, p in net.named_parameters()})


@program(share=0.0)
def autocast_in_evaluation(run: Run) -> None:
    net = convolutional().eval()
    fast = run.compile(net)
    with torch.no_grad(), torch.autocast(run.memory, HALF):
        for x in run.batches(3, 3, 1, 6, 6):
            run.step(fast(x))


@program(share=0.0)
def autocast_in_evaluation_with_gradients(run: Run) -> None:
    net = around(nn.Tanh()).eval()
    fast = run.compile(net)
    for x in run.batches(3, 3, 4):
        net.zero_grad()
        with torch.autocast(run.memory, HALF):
            y = fast(x)
        y.float().sum().backward()
        run.step(y, {name: each.grad.to(HALF) for name, each in net.named_parameters()})


@program(share=0.0)
def autocast_inside_forward(run: Run) -> None:
    class Casts(Around):
        def middle(self, y: torch.Tensor) -> torch.Tensor:
            with torch.autocast(y.device.type, HALF):
                y = y @ self.first.weight
            return (y.float() @ self.first.weight.T).relu()

    net = Casts()
    fast = run.compile(net)
    for x in run.batches(3, 3, 4):
        y = fast(x)
        y.sum().backward()
        run.step(y.to(HALF), {n: p.grad.to(HALF) for n, p in net.named_parameters()})


@program(share=0.0)
def autocast_switched_off_for_a_norm(run: Run) -> None:
    class Careful(Around):
        def middle(self, y: torch.Tensor) -> torch.Tensor:
            with torch.autocast(y.device.type, enabled=False):
                y = y.float()
                return y / (y.square().mean(1, keepdim=True) + 1e-5).sqrt()

    net = Careful().eval()
    fast = run.compile(net)
    with torch.no_grad(), torch.autocast(run.memory, HALF):
        for x in run.batches(3, 3, 4):
            run.step(fast(x))


@program(share=0.0)
def autocast_around_the_counter(run: Run) -> None:
    class Counts(Around):
        def setup(self) -> None:
            self.register_buffer("n", torch.zeros(()))

        def middle(self, y: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                self.n.add_(1)
            return y

    net = Counts()
    fast = run.compile(net)
    with torch.autocast(run.memory, HALF):
        for x in run.batches(3, 3, 4):
            run.step(fast(x), net.n)


@program(share=0.3)
def scaler_of_gradients(run: Run) -> None:
    net = around(nn.Tanh())
    fast = run.compile(net)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    scaler = torch.amp.GradScaler(run.memory, init_scale=1024.0, growth_interval=2)
    for step, x in enumerate(run.batches(4, 3, 4)):
        optimizer.zero_grad()
        loss = fast(x * (1e38 if step == 1 else 1)).square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        run.step(scaler.get_scale(), [each.detach() for each in net.parameters()])


@program(share=0.0)
def module_in_bfloat16(run: Run) -> None:
    net = around(nn.LayerNorm(8)).to(HALF).eval()
    fast = run.compile(net)
    with torch.no_grad():
        for x in run.batches(3, 3, 4):
            run.step(fast(x.to(HALF)))


@program(share=0.0)
def module_in_bfloat16_in_training(run: Run) -> None:
    net = around(nn.Tanh()).to(HALF)
    fast = run.compile(net)
    for x in run.batches(3, 3, 4):
        net.zero_grad()
        y = fast(x.to(HALF))
        y.sum().backward()
        run.step(y, net)


@program(share=0.0)
def module_in_float16(run: Run) -> None:
    net = around(nn.Sigmoid()).half().eval()
    fast = run.compile(net)
    with torch.no_grad():
        for x in run.batches(3, 3, 4):
            run.step(fast(x.half()))


@program(share=0.0)
def module_in_float64(run: Run) -> None:
    net = around(nn.Tanh()).double()
    fast = run.compile(net)
    for x in run.batches(3, 3, 4):
        y = fast(x.double())
        y.square().sum().backward()
        run.step(y, net)


@program()
def module_converted_after_compiling(run: Run) -> None:
    net = around(nn.Tanh()).eval()
    fast = run.compile(net)
    x = run.randn(3, 4)
    with torch.no_grad():
        run.step(fast(x))
        net.double()
        run.step(fast(x.double()))
        net.float()
        run.step(fast(x))


@program()
def argument_of_another_dtype_raises(run: Run) -> None:
    net = around(nn.Tanh()).eval()
    fast = run.compile(net)
    with torch.no_grad():
        run.step(fast(run.randn(3, 4)))
        run.raises(lambda: fast(run.randn(3, 4).double()))


@program()
def integers_in_and_tokens_out(run: Run) -> None:
    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(7, 8, padding_idx=0)
            self.head = nn.Linear(8, 7)

        def forward(self, index: torch.Tensor) -> Any:
            return self.head(self.table(index).mean(1).tanh())

    net = Tokens()
    fast = run.compile(net)
    for _ in range(3):
        index = run.randint(7, 3, 5)
        loss = F.cross_entropy(fast(index), index[:, 0])
        loss.backward()
        run.step(loss, net)


@program(share=0.3)
def float32_between_halves(run: Run) -> None:
    class Mixed(Around):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.first(x.float()).relu().to(HALF)
            return self.head(y.float()).to(x.dtype)

    net = Mixed()
    fast = run.compile(net)
    for x in run.batches(3, 3, 4):
        net.zero_grad()
        y = fast(x.to(HALF))
        y.float().sum().backward()
        run.step(y, [each.grad.to(HALF) for each in net.parameters()])
