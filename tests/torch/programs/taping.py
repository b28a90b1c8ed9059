"""Programs that hook into gradients: hooks, checkpoints, gradients of gradients, own functions."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from tests.torch.programs.harness import Run, program
from tests.torch.programs.parts import Around, around, convolutional, train


@program(quick=True)
def hook_on_an_intermediate_in_forward(run: Run) -> None:
    class Hooked(Around):
        def middle(self, y: torch.Tensor) -> torch.Tensor:
            if y.requires_grad:
                y.register_hook(lambda gradient: gradient * 0.5)
            return y

    net = Hooked()
    train(run, net, run.compile(net), 3)


@program()
def hook_on_an_intermediate_that_keeps_its_gradient(run: Run) -> None:
    class Keeps(Around):
        def middle(self, y: torch.Tensor) -> torch.Tensor:
            y.register_hook(self.keep)
            return y

        def keep(self, gradient: torch.Tensor) -> None:
            self.gradient = gradient

    net = Keeps()
    fast = run.compile(net)
    for x in run.batches(3, 3, 4):
        fast(x).square().sum().backward()
        run.step(net.gradient, net)


@program()
def retained_gradient_of_an_intermediate(run: Run) -> None:
    class Retains(Around):
        def middle(self, y: torch.Tensor) -> torch.Tensor:
            y.retain_grad()
            self.kept = [y]
            return y

    net = Retains()
    fast = run.compile(net)
    for x in run.batches(3, 3, 4):
        fast(x).square().sum().backward()
        run.step(net.kept[0].grad, net)


@program()
def hooks_on_parameters(run: Run) -> None:
    net = around(nn.Tanh())
    fast = run.compile(net)
    seen = []
    net[0].weight.register_hook(lambda gradient: gradient.clamp(-0.1, 0.1))
    net[3].bias.register_post_accumulate_grad_hook(lambda each: seen.append(each.grad.clone()))
    for x in run.batches(3, 3, 4):
        net.zero_grad()
        fast(x).square().sum().backward()
        run.step(net, seen)


@program()
def forward_hooks_that_record_activations(run: Run) -> None:
    net = convolutional()
    seen: dict[str, Any] = {}
    for name in ("0", "2"):
        layer = net.get_submodule(name)
        layer.register_forward_hook(lambda m, g, r, name=name: seen.__setitem__(name, r.detach()))
    fast = run.compile(net)
    for x in run.batches(3, 3, 1, 5, 5):
        fast(x).sum().backward()
        run.step(seen, net)


@program()
def forward_hook_that_changes_a_result(run: Run) -> None:
    net = around(nn.Sigmoid())
    fast = run.compile(net)
    for step, x in enumerate(run.batches(4, 3, 4)):
        if step == 1:
            handle = net[2].register_forward_hook(lambda m, g, result: result * 2)
        if step == 3:
            handle.remove()
        fast(x).sum().backward()
        run.step(net)


@program()
def hook_before_the_call(run: Run) -> None:
    net = around(nn.ReLU())
    net[2].register_forward_pre_hook(lambda module, given: (given[0] - 0.25,))
    net.register_forward_pre_hook(lambda module, given: (given[0] * 2,))
    train(run, net, run.compile(net), 3)


@program()
def backward_hook_of_a_module(run: Run) -> None:
    net = around(nn.Tanh())
    seen = []
    net[2].register_full_backward_hook(lambda m, given, got: seen.append((given[0], got[0])))
    fast = run.compile(net)
    for x in run.batches(3, 3, 4):
        fast(x).square().sum().backward()
        run.step(seen, net)


@program()
def backward_hook_that_changes_gradients(run: Run) -> None:
    """Guided backpropagation: rectifiers let only positive gradients through."""
    net = around(nn.ReLU())
    net[2].register_full_backward_hook(lambda module, given, got: (given[0].clamp(min=0),))
    fast = run.compile(net)
    for x in run.batches(3, 3, 4):
        x.requires_grad_()
        fast(x).square().sum().backward()
        run.step(x, net)


def _checkpointed(run: Run, middle: nn.Module, use_reentrant: bool) -> None:
    class Checkpoints(Around):
        def setup(self) -> None:
            self.block = middle

        def middle(self, y: torch.Tensor) -> torch.Tensor:
            if not self.training:
                return self.block(y)
            made: torch.Tensor = checkpoint(self.block, y, use_reentrant=use_reentrant)
            return made

    net = Checkpoints()
    train(run, net, run.compile(net), 3)


def _norm_block() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU())


@program()
def checkpoint_around_a_batch_norm(run: Run) -> None:
    _checkpointed(run, _norm_block(), False)


@program()
def reentrant_checkpoint_around_a_batch_norm(run: Run) -> None:
    _checkpointed(run, _norm_block(), True)


@program()
def checkpoint_of_a_sequence(run: Run) -> None:
    class Segments(Around):
        def setup(self) -> None:
            self.blocks = nn.Sequential(*(nn.Linear(8, 8) for _ in range(4)))

        def middle(self, y: torch.Tensor) -> torch.Tensor:
            made: torch.Tensor = checkpoint_sequential(self.blocks, 2, y, use_reentrant=False)
            return made

    net = Segments()
    train(run, net, run.compile(net), 3)


def _mask_is_the_same(run: Run, use_reentrant: bool) -> None:
    """The mask of the second forward pass is that of the first: the gradient shows it."""

    class Drops(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            dropped: torch.Tensor = checkpoint(
                lambda y: F.dropout(y * 1.0, 0.5, self.training), x, use_reentrant=use_reentrant
            )
            return dropped

    fast = run.compile(Drops())
    for _ in range(3):
        x = (run.randn(8, 8).abs() + 1).requires_grad_()
        y = fast(x)
        y.sum().backward()
        run.step(y.detach() - x.detach() * x.grad, bool((x.grad == 0).any()))


@program(share=0.0)
def checkpoint_around_a_dropout(run: Run) -> None:
    _mask_is_the_same(run, False)


@program(share=0.0)
def reentrant_checkpoint_around_a_dropout(run: Run) -> None:
    _mask_is_the_same(run, True)


@program(share=0.3)
def dropout_and_its_gradient(run: Run) -> None:
    fast = run.compile(nn.Sequential(nn.Dropout(0.5), nn.Identity()))
    for _ in range(3):
        x = (run.randn(8, 8).abs() + 1).requires_grad_()
        y = fast(x)
        y.sum().backward()
        gone = (x.grad == 0).float().mean()
        run.step(y.detach() - x.detach() * x.grad, bool(0.1 < gone < 0.9))


@program()
def checkpoint_of_the_optimized_module(run: Run) -> None:
    net = around(_norm_block())
    fast = run.compile(net)
    for x in run.batches(3, 3, 4):
        y = checkpoint(fast, x, use_reentrant=False)
        y.square().sum().backward()
        run.step(y, net)


@program(share=0.0, quick=True)
def gradient_penalty(run: Run) -> None:
    """WGAN-GP: the loss has the norm of a gradient in it."""
    net = around(nn.Tanh())
    fast = run.compile(net)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for x in run.batches(3, 3, 4):
        optimizer.zero_grad()
        x.requires_grad_()
        (gradient,) = torch.autograd.grad(fast(x).sum(), x, create_graph=True)
        loss = (gradient.norm(2, dim=1) - 1).square().mean()
        loss.backward()
        optimizer.step()
        run.step(gradient, loss, net)


@program(share=0.0)
def gradient_penalty_with_a_batch_norm(run: Run) -> None:
    net = around(nn.Sequential(nn.BatchNorm1d(8), nn.Softplus()))
    fast = run.compile(net)
    for x in run.batches(3, 4, 4):
        x.requires_grad_()
        (gradient,) = torch.autograd.grad(fast(x).sum(), x, create_graph=True)
        gradient.square().sum().backward()
        run.step(x, net)


@program(share=0.0)
def hessian_times_a_vector(run: Run) -> None:
    net = around(nn.Tanh()).eval()
    fast = run.compile(net)
    for x in run.batches(2, 3, 4):
        loss = fast(x).square().sum()
        gradients = torch.autograd.grad(loss, list(net.parameters()), create_graph=True)
        total = sum(each.sum() for each in gradients)
        run.step(torch.autograd.grad(total, list(net.parameters()), allow_unused=True))


@program(share=0.0)
def gradient_inside_forward(run: Run) -> None:
    """A network of energies gives forces, which are trained."""

    class Forces(Around):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x.requires_grad_()
            energy = self.head(self.first(x).tanh()).sum()
            (force,) = torch.autograd.grad(energy, x, create_graph=self.training)
            return -force

    net = Forces()
    fast = run.compile(net)
    for x in run.batches(3, 3, 4):
        y = fast(x)
        y.square().sum().backward()
        run.step(y, net)


class Reversed(torch.autograd.Function):
    """Identity whose gradient is turned around (domain adaptation)."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, scale: float) -> torch.Tensor:
        ctx.scale = scale
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return -ctx.scale * gradients[0], None


@program(share=0.3)
def gradient_reversal(run: Run) -> None:
    class Reverses(Around):
        def middle(self, y: torch.Tensor) -> torch.Tensor:
            made: torch.Tensor = Reversed.apply(y, 0.5)
            return made

    net = Reverses()
    train(run, net, run.compile(net), 3)


class Binarized(torch.autograd.Function):
    """Sign with a straight-through gradient where the operand is small."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.sign()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (x,) = ctx.saved_tensors
        return gradients[0] * (x.abs() <= 1)


@program(share=0.3)
def binarized_weights(run: Run) -> None:
    class Binary(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.linear(x, Binarized.apply(self.weight), self.bias)

    net = nn.Sequential(Binary(4, 8), nn.ReLU(), nn.Linear(8, 2))
    train(run, net, run.compile(net), 3)


@program()
def straight_through_by_detach(run: Run) -> None:
    class Rounds(Around):
        def middle(self, y: torch.Tensor) -> torch.Tensor:
            return y + ((y * 4).round() / 4 - y).detach()

    net = Rounds()
    train(run, net, run.compile(net), 3)


@program()
def stopped_gradient_in_one_branch(run: Run) -> None:
    """SimSiam: each view predicts the other, whose gradient is stopped."""

    class Siamese(Around):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            one, two = self.first(x), self.first(x.flip(1))
            p, q = self.head(one.relu()), self.head(two.relu())
            loss = F.cosine_similarity(p, one[:, :2].detach(), dim=1)
            return -(loss + F.cosine_similarity(q, two[:, :2].detach(), dim=1)).mean()

    net = Siamese()
    fast = run.compile(net)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for x in run.batches(4, 3, 4):
        optimizer.zero_grad()
        loss = fast(x)
        loss.backward()
        optimizer.step()
        run.step(loss, net)


@program()
def backward_twice_through_one_graph(run: Run) -> None:
    net = around(nn.Tanh())
    fast = run.compile(net)
    for x in run.batches(3, 3, 4):
        y = fast(x)
        y[:, 0].sum().backward(retain_graph=True)
        y[:, 1].square().sum().backward()
        run.step(y, net)
        run.raises(y.sum().backward)


@program()
def two_forward_passes_before_one_backward(run: Run) -> None:
    net = convolutional()
    fast = run.compile(net)
    for x in run.batches(3, 3, 1, 5, 5):
        one, two = fast(x), fast(x.flip(3))
        F.mse_loss(one, two).backward()
        run.step(one, two, net)


@program()
def gradients_accumulated_over_batches(run: Run) -> None:
    net = around(nn.LayerNorm(8))
    fast = run.compile(net)
    optimizer = torch.optim.AdamW(net.parameters(), 0.05)
    for step in range(6):
        (fast(run.randn(3, 4)).square().mean() / 3).backward()
        if step % 3 == 2:
            nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
        run.step(net)


@program()
def part_of_the_results_is_used(run: Run) -> None:
    class Heads(Around):
        def forward(self, x: torch.Tensor) -> Any:
            y = self.first(x).relu()
            return self.head(y), y * 2, y.sum(1)

    net = Heads()
    fast = run.compile(net)
    for step, x in enumerate(run.batches(3, 3, 4)):
        net.zero_grad()
        fast(x)[step].sum().backward()
        run.step(net)


@program()
def saved_tensors_offloaded(run: Run) -> None:
    net = around(nn.GELU())
    fast = run.compile(net)
    for x in run.batches(3, 3, 4):
        hooks = torch.autograd.graph.saved_tensors_hooks(torch.clone, torch.clone)
        with hooks:
            y = fast(x)
        y.square().sum().backward()
        run.step(y, net)
