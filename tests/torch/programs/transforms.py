"""Programs of torch.func, vmap, tracing, threads, ranks, and PyTorch's other machinery."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, grad, jacrev, jvp, vmap

from tests.torch.programs.harness import Run, program
from tests.torch.programs.parts import Around, around, convolutional, train


@program(share=0.0)
def gradients_of_each_sample(run: Run) -> None:
    net = around(nn.Tanh())
    fast = run.compile(net)
    state = {name: each.detach() for name, each in net.named_parameters()}
    prefix = "_orig_mod." if hasattr(fast, "_orig_mod") else ""

    def loss(parameters: Any, x: torch.Tensor) -> torch.Tensor:
        named = {prefix + name: each for name, each in parameters.items()}
        found: torch.Tensor = functional_call(fast, named, (x[None],))
        return found.square().sum()

    for x in run.batches(2, 3, 4):
        run.step(vmap(grad(loss), in_dims=(None, 0))(state, x))


@program(share=0.0)
def called_with_other_parameters(run: Run) -> None:
    net = around(nn.Tanh()).eval()
    fast = run.compile(net)
    prefix = "_orig_mod." if hasattr(fast, "_orig_mod") else ""
    x = run.randn(3, 4)
    with torch.no_grad():
        for factor in (1.0, 2.0, 0.5):
            named = {prefix + n: p * factor for n, p in net.named_parameters()}
            run.step(functional_call(fast, named, (x,)), fast(x))


@program(share=0.0)
def ensemble_by_vmap(run: Run) -> None:
    net = around(nn.Tanh()).eval()
    fast = run.compile(net)
    with torch.no_grad():
        for x in run.batches(2, 5, 3, 4):
            run.step(vmap(fast)(x))


@program(share=0.0)
def jacobian_of_a_network(run: Run) -> None:
    net = around(nn.Tanh()).eval()
    fast = run.compile(net)
    for x in run.batches(2, 4):
        run.step(jacrev(fast)(x))


@program(share=0.0)
def forward_derivative(run: Run) -> None:
    net = around(nn.Tanh()).eval()
    fast = run.compile(net)
    for x in run.batches(2, 3, 4):
        run.step(jvp(fast, (x,), (torch.ones_like(x),)))


@program(share=0.0)
def vmap_inside_forward(run: Run) -> None:
    class Maps(Around):
        def middle(self, y: torch.Tensor) -> torch.Tensor:
            return vmap(lambda row: row * row.sum())(y)

    net = Maps()
    train(run, net, run.compile(net), 3)


@program()
def called_in_threads(run: Run) -> None:
    net = around(nn.Tanh()).eval()
    fast = run.compile(net)
    xs = list(run.batches(4, 3, 4))
    found: dict[int, torch.Tensor] = {}
    with torch.no_grad():
        run.step(fast(xs[0]))

    def work(place: int) -> None:
        with torch.no_grad():
            for _ in range(5):
                found[place] = fast(xs[place])

    threads = [threading.Thread(target=work, args=(place,)) for place in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    run.step([found[place] for place in range(4)])


@program()
def backward_in_another_thread(run: Run) -> None:
    net = convolutional()
    fast = run.compile(net)
    for x in run.batches(3, 3, 1, 5, 5):
        loss = fast(x).square().mean()
        thread = threading.Thread(target=loss.backward)
        thread.start()
        thread.join()
        run.step(loss, net)


@contextmanager
def _one_rank() -> Iterator[None]:
    """A process group of this process alone."""
    with tempfile.TemporaryDirectory() as folder:
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{folder}/meet", rank=0, world_size=1
        )
        try:
            yield
        finally:
            torch.distributed.destroy_process_group()


@program(share=0.0, quick=True)
def data_parallel_around_the_optimized_module(run: Run) -> None:
    with _one_rank():
        net = convolutional()
        fast = nn.parallel.DistributedDataParallel(run.compile(net))
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        for x in run.batches(3, 3, 1, 5, 5):
            optimizer.zero_grad()
            loss = fast(x).square().mean()
            loss.backward()
            optimizer.step()
            run.step(loss, net)


@program(share=0.0)
def data_parallel_inside_the_optimized_module(run: Run) -> None:
    with _one_rank():
        net = convolutional().to(run.memory)
        fast = run.compile(nn.parallel.DistributedDataParallel(net))
        for x in run.batches(3, 3, 1, 5, 5):
            net.zero_grad()
            loss = fast(x).square().mean()
            loss.backward()
            run.step(loss, net)


@program(share=0.0)
def synchronized_batch_norm_of_one_rank(run: Run) -> None:
    with _one_rank():
        net = nn.SyncBatchNorm.convert_sync_batchnorm(convolutional())
        fast = run.compile(net.eval())
        with torch.no_grad():
            for x in run.batches(2, 3, 1, 5, 5):
                run.step(fast(x), net)


@program(share=0.0)
def traced_by_jit(run: Run) -> None:
    net = around(nn.Tanh()).eval()
    fast = run.compile(net)
    if hasattr(fast, "_orig_mod"):  # which jit.trace does not take, whatever the backend
        fast = net
    traced = torch.jit.trace(fast, run.randn(3, 4))
    with torch.no_grad():
        for x in run.batches(2, 3, 4):
            run.step(traced(x))


@program()
def optimizer_with_a_closure(run: Run) -> None:
    net = around(nn.Tanh())
    fast = run.compile(net)
    optimizer = torch.optim.LBFGS(net.parameters(), 0.1, max_iter=3)
    for x in run.batches(3, 3, 4):

        def closure(x: torch.Tensor = x) -> torch.Tensor:
            optimizer.zero_grad()
            loss: torch.Tensor = fast(x).square().mean()
            loss.backward()
            return loss

        loss = optimizer.step(closure)
        run.step(loss, net)


@program()
def sharpness_aware_steps(run: Run) -> None:
    """SAM: weights move up, a second gradient is taken there, and they move back."""
    net = around(nn.Tanh())
    fast = run.compile(net)
    for x in run.batches(3, 3, 4):
        fast(x).square().mean().backward()
        with torch.no_grad():
            moves = [0.05 * each.grad for each in net.parameters()]
            for parameter, move in zip(net.parameters(), moves, strict=True):
                parameter.add_(move)
        net.zero_grad()
        fast(x).square().mean().backward()
        with torch.no_grad():
            for parameter, move in zip(net.parameters(), moves, strict=True):
                parameter.sub_(move).sub_(0.1 * parameter.grad)
        run.step(net)


@program()
def meta_learning_of_one_inner_step(run: Run) -> None:
    """First-order MAML: a copy learns, and its gradients are given to the original."""
    import copy

    net = around(nn.Tanh())
    fast = run.compile(net)
    for x in run.batches(3, 3, 4):
        saved = copy.deepcopy(net.state_dict())
        net.zero_grad()
        fast(x).square().mean().backward()
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.sub_(0.1 * parameter.grad)
        net.zero_grad()
        fast(x + 1).square().mean().backward()
        net.load_state_dict(saved)
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.sub_(0.1 * parameter.grad)
        run.step(net)


@program(share=0.3)
def random_numbers_in_forward(run: Run) -> None:
    """Drawn by PyTorch's generator: the same seed gives the same noise."""

    class Noisy(Around):
        def middle(self, y: torch.Tensor) -> torch.Tensor:
            return y + 0.1 * torch.randn_like(y)

    net = Noisy()
    fast = run.compile(net)
    for seed, x in enumerate(run.batches(3, 3, 4)):
        torch.manual_seed(seed)
        y = fast(x)
        y.square().sum().backward()
        run.step(y, net)


@program(share=0.3)
def variational_autoencoder(run: Run) -> None:
    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mean, self.scale, self.out = nn.Linear(4, 2), nn.Linear(4, 2), nn.Linear(2, 4)

        def forward(self, x: torch.Tensor) -> Any:
            mean, log = self.mean(x), self.scale(x)
            z = mean + (0.5 * log).exp() * torch.randn_like(mean)
            divergence = -0.5 * (1 + log - mean.square() - log.exp()).sum()
            return self.out(z), divergence

    net = Encoder()
    fast = run.compile(net)
    for seed, x in enumerate(run.batches(3, 3, 4)):
        torch.manual_seed(seed)
        y, divergence = fast(x)
        loss = F.mse_loss(y, x) + 0.1 * divergence
        loss.backward()
        run.step(y, loss, net)


@program(share=0.3)
def random_state_after_calls(run: Run) -> None:
    """What the caller draws afterwards does not depend on how often a module was captured."""
    net = around(nn.Tanh()).eval()
    fast = run.compile(net)
    with torch.no_grad():
        for x in run.batches(3, 3, 4):
            fast(x)
            run.step(torch.rand(2))
