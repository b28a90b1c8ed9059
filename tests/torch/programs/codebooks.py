"""Programs of layers that keep state for training: codebooks, queues, averages, norms."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.torch.programs.harness import Run, program
from tests.torch.programs.parts import Around, around, convolutional, train


class Quantizer(nn.Module):
    """A codebook that follows what it quantizes by moving averages (VQ-VAE)."""

    def __init__(self) -> None:
        super().__init__()
        codes = torch.randn(5, 8)
        self.register_buffer("codes", codes)
        self.register_buffer("sums", codes.clone())
        self.register_buffer("counts", torch.ones(5))

    def forward(self, y: torch.Tensor) -> torch.Tensor:
        index = torch.cdist(y, self.codes).argmin(1)
        quantized = self.codes[index]
        if self.training:
            chosen = F.one_hot(index, 5).to(y.dtype)
            with torch.no_grad():
                self.counts.mul_(0.9).add_(chosen.sum(0), alpha=0.1)
                self.sums.mul_(0.9).add_(chosen.T @ y, alpha=0.1)
                self.codes.copy_(self.sums / self.counts.clamp(min=1e-3)[:, None])
        return y + (quantized - y).detach()


@program(share=0.2, quick=True)
def vector_quantizer_with_averages(run: Run) -> None:
    net = around(Quantizer())
    train(run, net, run.compile(net), 5)


@program(share=0.2)
def vector_quantizer_with_a_loss(run: Run) -> None:
    class Learned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.codes = nn.Embedding(5, 4)

        def forward(self, x: torch.Tensor) -> Any:
            index = (x[:, None] - self.codes.weight).square().sum(2).argmin(1)
            quantized = self.codes(index)
            loss = F.mse_loss(quantized, x.detach()) + 0.25 * F.mse_loss(quantized.detach(), x)
            return x + (quantized - x).detach(), loss, index

    net = Learned()
    fast = run.compile(net)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for x in run.batches(4, 6, 4):
        x.requires_grad_()
        optimizer.zero_grad()
        y, loss, index = fast(x)
        (y.sum() + loss).backward()
        optimizer.step()
        run.step(y, loss, index, x, net)


class Queue(nn.Module):
    """MoCo: a query, a key by an average of the network, and a queue of keys before."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(4, 6)
        self.key = copy.deepcopy(self.query).requires_grad_(False)
        self.register_buffer("queue", F.normalize(torch.randn(6, 8), dim=0))
        self.register_buffer("pointer", torch.zeros(1, dtype=torch.long))

    @torch.no_grad()
    def follow(self) -> None:
        for own, other in zip(self.query.parameters(), self.key.parameters(), strict=True):
            other.data = other.data * 0.9 + own.data * 0.1

    @torch.no_grad()
    def enqueue(self, keys: torch.Tensor) -> None:
        at = int(self.pointer)
        self.queue[:, at : at + len(keys)] = keys.T
        self.pointer[0] = (at + len(keys)) % 8

    def forward(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        query = F.normalize(self.query(x), dim=1)
        with torch.no_grad():
            self.follow()
            key = F.normalize(self.key(other), dim=1)
        near = (query * key).sum(1, keepdim=True)
        far = query @ self.queue.clone().detach()
        self.enqueue(key)
        return torch.cat([near, far], 1) / 0.2


@program(share=0.2, quick=True)
def momentum_contrast(run: Run) -> None:
    net = Queue()
    fast = run.compile(net)
    optimizer = torch.optim.SGD(net.query.parameters(), 0.1)
    for x in run.batches(5, 2, 4):
        optimizer.zero_grad()
        logits = fast(x, x + 0.1)
        loss = F.cross_entropy(logits, torch.zeros(2, dtype=torch.long, device=x.device))
        loss.backward()
        optimizer.step()
        run.step(logits, loss, net)


@program(share=0.2)
def queue_that_is_rolled(run: Run) -> None:
    """A memory bank whose oldest rows go, by assignment to the buffer."""

    class Bank(Around):
        def setup(self) -> None:
            self.register_buffer("bank", torch.zeros(6, 8))

        def middle(self, y: torch.Tensor) -> torch.Tensor:
            if self.training:
                self.bank: torch.Tensor = torch.cat([y.detach(), self.bank[: -len(y)]])
            return y + self.bank.mean(0)

    net = Bank()
    train(run, net, run.compile(net), 5)


@program(quick=True)
def student_and_teacher(run: Run) -> None:
    """BYOL and DINO: the teacher is an average of the student, through ``.data``, in evaluation."""
    student = convolutional()
    teacher = copy.deepcopy(student).requires_grad_(False).eval()
    fast, slow = run.compile(student), run.compile(teacher)
    optimizer = torch.optim.SGD(student.parameters(), 0.5)
    for x in run.batches(5, 3, 1, 6, 6):
        with torch.no_grad():
            target = slow(x)
        optimizer.zero_grad()
        loss = F.mse_loss(fast(x), target + 1)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for own, other in zip(student.parameters(), teacher.parameters(), strict=True):
                other.data.mul_(0.5).add_(own.detach().data, alpha=0.5)
        run.step(target, loss, teacher)


@program()
def average_of_the_weights(run: Run) -> None:
    net = around(nn.LayerNorm(8))
    fast = run.compile(net)
    average = torch.optim.swa_utils.AveragedModel(net)
    optimizer = torch.optim.Adam(net.parameters(), 0.05)
    for x in run.batches(4, 3, 4):
        optimizer.zero_grad()
        fast(x).square().mean().backward()
        optimizer.step()
        average.update_parameters(net)
        run.step(net, average)
    net.load_state_dict(average.module.state_dict())
    fast.eval()
    with torch.no_grad():
        run.step(fast(run.randn(3, 4)))


@program()
def critic_with_clipped_weights(run: Run) -> None:
    """WGAN: weights are clamped through ``.data`` between steps, and seen in evaluation."""
    net = around(nn.LeakyReLU(0.2))
    fast = run.compile(net)
    optimizer = torch.optim.RMSprop(net.parameters(), 0.05)
    for x in run.batches(4, 3, 4):
        optimizer.zero_grad()
        (fast(x).mean() - fast(x + 1).mean()).backward()
        optimizer.step()
        for parameter in net.parameters():
            parameter.data.clamp_(-0.1, 0.1)
        fast.eval()
        with torch.no_grad():
            run.step(fast(x), net)
        fast.train()


@program()
def data_scaled_between_evaluations(run: Run) -> None:
    net = around(nn.Sigmoid()).eval()
    fast = run.compile(net)
    x = run.randn(3, 4)
    with torch.no_grad():
        for _ in range(4):
            run.step(fast(x))
            net[0].weight.data.mul_(0.5)
            net[3].bias.data += 1


class Renorm(nn.Module):
    """Batch renormalization (Ioffe 2017)."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(8)), nn.Parameter(torch.zeros(8))
        self.register_buffer("mean", torch.zeros(8))
        self.register_buffer("std", torch.ones(8))
        self.register_buffer("steps", torch.tensor(0, dtype=torch.long))

    def forward(self, y: torch.Tensor) -> torch.Tensor:
        if self.training:
            mean, std = y.mean(0), y.std(0, unbiased=False) + 1e-2
            most = (1 + 0.5 * self.steps).clamp(1, 3)
            scale = torch.maximum(torch.minimum(std.detach() / self.std, most), 1 / most)
            shift = ((mean.detach() - self.mean) / self.std).clamp(-1, 1)
            y = (y - mean) / std * scale + shift
            self.mean += 0.1 * (mean.detach() - self.mean)
            self.std += 0.1 * (std.detach() - self.std)
            self.steps += 1
        else:
            y = (y - self.mean) / self.std
        return self.weight * y + self.bias


@program(share=0.3, looseness=5.0, quick=True)
def batch_renormalization(run: Run) -> None:
    net = around(Renorm())
    train(run, net, run.compile(net), 5)


@program(share=0.2)
def spectral_norm_by_hooks(run: Run) -> None:
    net = nn.Sequential(nn.utils.spectral_norm(nn.Linear(4, 8)), nn.ReLU(), nn.Linear(8, 2))
    train(run, net, run.compile(net), 4)


@program(share=0.2)
def spectral_norm_by_parametrization(run: Run) -> None:
    first = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 8))
    net = nn.Sequential(first, nn.ReLU(), nn.Linear(8, 2))
    train(run, net, run.compile(net), 4)


@program(share=0.2)
def spectral_norm_written_by_hand(run: Run) -> None:
    class Spectral(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(8, 4))
            self.register_buffer("u", F.normalize(torch.randn(8), dim=0))
            self.register_buffer("v", F.normalize(torch.randn(4), dim=0))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.training:
                with torch.no_grad():
                    self.v.copy_(F.normalize(self.weight.T @ self.u, dim=0))
                    self.u.copy_(F.normalize(self.weight @ self.v, dim=0))
            sigma = self.u.clone() @ (self.weight @ self.v.clone())
            return F.linear(x, self.weight / sigma)

    net = nn.Sequential(Spectral(), nn.ReLU(), nn.Linear(8, 2))
    train(run, net, run.compile(net), 4)


@program(share=0.2)
def weight_norm_by_hooks(run: Run) -> None:
    net = nn.Sequential(nn.utils.weight_norm(nn.Linear(4, 8)), nn.ReLU(), nn.Linear(8, 2))
    train(run, net, run.compile(net), 4)


@program(share=0.2)
def weight_norm_by_parametrization(run: Run) -> None:
    first = nn.utils.parametrizations.weight_norm(nn.Linear(4, 8))
    net = nn.Sequential(first, nn.ReLU(), nn.Linear(8, 2))
    train(run, net, run.compile(net), 4)


@program(share=0.2)
def symmetric_parametrization(run: Run) -> None:
    class Symmetric(nn.Module):
        def forward(self, weight: torch.Tensor) -> torch.Tensor:
            return weight.triu() + weight.triu(1).transpose(-1, -2)

    middle = nn.Linear(8, 8)
    nn.utils.parametrize.register_parametrization(middle, "weight", Symmetric())
    net = around(middle)
    train(run, net, run.compile(net), 3)


@program(share=0.2)
def standardized_weights(run: Run) -> None:
    """Convolutions whose weights are standardized at each call (big transfer, NFNet)."""

    class Standardized(nn.Conv2d):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            var, mean = torch.var_mean(self.weight, dim=(1, 2, 3), keepdim=True, correction=0)
            weight = (self.weight - mean) * torch.rsqrt(var + 1e-5)
            return F.conv2d(x, weight, self.bias, padding=1)

    net = nn.Sequential(Standardized(2, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Conv2d(4, 1, 1))
    train(run, net, run.compile(net), 3, (2, 2, 5, 5))


@program()
def batch_norm_with_cumulative_average(run: Run) -> None:
    net = around(nn.BatchNorm1d(8, momentum=None))
    train(run, net, run.compile(net), 4)


@program()
def batch_norm_without_statistics(run: Run) -> None:
    net = around(nn.BatchNorm1d(8, track_running_stats=False))
    train(run, net, run.compile(net), 3)


@program()
def batch_norm_that_is_called_twice(run: Run) -> None:
    class Twice(Around):
        def setup(self) -> None:
            self.norm = nn.BatchNorm1d(8)

        def middle(self, y: torch.Tensor) -> torch.Tensor:
            return self.norm(self.norm(y) + y)

    net = Twice()
    train(run, net, run.compile(net), 4)


@program()
def functional_batch_norm_with_own_statistics(run: Run) -> None:
    class Own(Around):
        def setup(self) -> None:
            self.register_buffer("m", torch.zeros(8))
            self.register_buffer("v", torch.ones(8))

        def middle(self, y: torch.Tensor) -> torch.Tensor:
            return F.batch_norm(y, self.m, self.v, training=self.training, momentum=0.2)

    net = Own()
    train(run, net, run.compile(net), 4)


@program()
def instance_norm_with_statistics(run: Run) -> None:
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.InstanceNorm2d(4, affine=True, track_running_stats=True), nn.ReLU()
    )
    train(run, net, run.compile(net), 3, (2, 1, 5, 5))


@program()
def statistics_reset_between_epochs(run: Run) -> None:
    """As update_bn of stochastic weight averaging does."""
    net = convolutional()
    fast = run.compile(net)
    for _ in range(2):
        net[1].reset_running_stats()
        with torch.no_grad():
            for x in run.batches(2, 3, 1, 5, 5):
                run.step(fast(x), net)
