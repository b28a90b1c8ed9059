"""Programs that take gradients through modules in evaluation mode."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.torch.programs.harness import Run, program
from tests.torch.programs.parts import around, convolutional

IMAGES = (3, 1, 6, 6)


@program(quick=True)
def fine_tuning_in_evaluation_mode(run: Run) -> None:
    """Batch normalization is frozen by ``eval()``, and everything learns."""
    net = convolutional().eval()
    fast = run.compile(net)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for x in run.batches(4, *IMAGES):
        optimizer.zero_grad()
        loss = F.cross_entropy(fast(x), run.randint(2, 3))
        loss.backward()
        optimizer.step()
        run.step(loss, net)


@program()
def only_batch_norms_in_evaluation_mode(run: Run) -> None:
    net = convolutional()
    fast = run.compile(net)
    net[1].eval()
    for x in run.batches(3, *IMAGES):
        fast(x).square().sum().backward()
        run.step(net)


@program()
def batch_norms_frozen_by_requires_grad(run: Run) -> None:
    net = convolutional()
    net[1].requires_grad_(False).eval()
    fast = run.compile(net)
    for x in run.batches(3, *IMAGES):
        fast(x).square().sum().backward()
        run.step(net)


@program(quick=True)
def optimized_trunk_of_a_larger_model(run: Run) -> None:
    """The trunk is in evaluation mode, and its parameters are the optimizer's, too."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            trunk = convolutional().eval()
            self.net = trunk
            self.trunk = run.compile(trunk)
            self.head = nn.Linear(2, 3).to(run.memory)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.trunk(x).relu())

    model = Model()
    optimizer = torch.optim.Adam([*model.net.parameters(), *model.head.parameters()], 0.05)
    for x in run.batches(4, *IMAGES):
        optimizer.zero_grad()
        y = model(x)
        y.square().mean().backward()
        optimizer.step()
        run.step(y, model.net, model.head)


@program()
def frozen_trunk_and_a_head(run: Run) -> None:
    trunk = convolutional().eval().requires_grad_(False)
    fast = run.compile(trunk)
    head = nn.Linear(2, 3).to(run.memory)
    optimizer = torch.optim.SGD(head.parameters(), 0.1)
    for x in run.batches(3, *IMAGES):
        optimizer.zero_grad()
        features = fast(x)
        head(features).square().mean().backward()
        optimizer.step()
        run.step(features, trunk, head)


@program()
def fast_gradient_sign(run: Run) -> None:
    net = convolutional().eval()
    fast = run.compile(net)
    for x in run.batches(3, *IMAGES):
        x.requires_grad_()
        loss = F.cross_entropy(fast(x), run.randint(2, 3))
        net.zero_grad()
        loss.backward()
        with torch.no_grad():
            adversarial = (x + 0.1 * x.grad.sign()).clamp(-2, 2)
            run.step(loss, x, fast(adversarial), net)


@program()
def projected_gradient_descent(run: Run) -> None:
    net = convolutional().eval().requires_grad_(False)
    fast = run.compile(net)
    x, target = run.randn(*IMAGES), run.randint(2, 3)
    attacked = x.clone()
    for _ in range(4):
        attacked.requires_grad_()
        (gradient,) = torch.autograd.grad(F.cross_entropy(fast(attacked), target), attacked)
        attacked = (attacked.detach() + 0.05 * gradient.sign()).clamp(x - 0.1, x + 0.1)
        run.step(gradient, attacked)


@program()
def class_activation_by_gradients(run: Run) -> None:
    """Grad-CAM: a hook on a layer keeps its result and the gradient that comes back."""
    net = convolutional().eval()
    kept: dict[str, Any] = {}

    def keep(_module: Any, _given: Any, result: torch.Tensor) -> None:
        kept["result"] = result
        result.register_hook(lambda gradient: kept.__setitem__("gradient", gradient))

    net[2].register_forward_hook(keep)
    fast = run.compile(net)
    for x in run.batches(3, *IMAGES):
        y = fast(x)
        y[:, 1].sum().backward()
        weights = kept["gradient"].mean((2, 3), keepdim=True)
        run.step(y, (weights * kept["result"]).sum(1).relu(), net)


@program()
def saliency_of_an_image(run: Run) -> None:
    net = convolutional().eval()
    fast = run.compile(net)
    for x in run.batches(3, *IMAGES):
        x.requires_grad_()
        y = fast(x)
        y.gather(1, y.argmax(1, keepdim=True)).sum().backward()
        run.step(x.grad.abs().amax(1))


@program()
def integrated_gradients(run: Run) -> None:
    net = around(nn.Softplus()).eval()
    fast = run.compile(net)
    x = run.randn(1, 4)
    total = torch.zeros_like(x)
    for part in torch.linspace(0.2, 1, 5).tolist():
        at = (part * x).requires_grad_()
        (gradient,) = torch.autograd.grad(fast(at)[0, 0], at)
        total = total + gradient / 5
        run.step(gradient, total * x)


@program()
def perceptual_loss_through_a_frozen_network(run: Run) -> None:
    critic = convolutional().eval().requires_grad_(False)
    fast = run.compile(critic)
    image, goal = run.randn(*IMAGES).requires_grad_(), run.randn(*IMAGES)
    optimizer = torch.optim.Adam([image], 0.1)
    with torch.no_grad():
        wanted = fast(goal)
    for _ in range(4):
        optimizer.zero_grad()
        loss = F.mse_loss(fast(image), wanted)
        loss.backward()
        optimizer.step()
        run.step(loss, image)


@program()
def generator_and_discriminator(run: Run) -> None:
    makes = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 4))
    judges = nn.Sequential(nn.Linear(4, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1))
    generator, critic = run.compile(makes), run.compile(judges)
    one, other = (torch.optim.Adam(net.parameters(), 0.02) for net in (makes, judges))
    for real in run.batches(4, 3, 4):
        noise = run.randn(3, 2)
        other.zero_grad()
        lossd = F.softplus(critic(generator(noise).detach())).mean()
        (lossd + F.softplus(-critic(real)).mean()).backward()
        other.step()
        one.zero_grad()
        lossg = F.softplus(-critic(generator(noise))).mean()
        lossg.backward()
        one.step()
        run.step(lossd, lossg, makes, judges)


@program()
def evaluation_with_gradients_and_a_dropout(run: Run) -> None:
    net = around(nn.Dropout(0.5)).eval()
    fast = run.compile(net)
    for x in run.batches(3, 3, 4):
        y = fast(x)
        y.sum().backward()
        run.step(y, net)


@program()
def statistics_after_gradients_in_evaluation(run: Run) -> None:
    """Train, evaluate with gradients, train again: statistics move only in training."""
    net = around(nn.BatchNorm1d(8))
    fast = run.compile(net)
    for step, x in enumerate(run.batches(4, 3, 4)):
        fast.train(step % 2 == 0)
        fast(x).square().sum().backward()
        run.step(net)


@program()
def training_mode_without_gradients(run: Run) -> None:
    """Monte Carlo: statistics move, nothing requires a gradient."""
    net = around(nn.BatchNorm1d(8))
    fast = run.compile(net)
    with torch.no_grad():
        for x in run.batches(3, 3, 4):
            run.step(fast(x), net)
    fast(run.randn(3, 4)).sum().backward()
    run.step(net)


@program()
def inference_mode_and_training_in_turn(run: Run) -> None:
    net = around(nn.BatchNorm1d(8))
    fast = run.compile(net)
    for x in run.batches(3, 3, 4):
        fast.train()
        fast(x).sum().backward()
        fast.eval()
        with torch.inference_mode():
            run.step(fast(x).clone(), net)


@program(share=0.2)
def gradient_enabled_inside_no_grad(run: Run) -> None:
    """A module that takes a gradient of its own while it is evaluated (energy-based models)."""

    class Energy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(4, 8), nn.SiLU(), nn.Linear(8, 1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.enable_grad():
                x = x.detach().requires_grad_()
                (force,) = torch.autograd.grad(self.net(x).sum(), x)
            return -force

    net = Energy().eval()
    fast = run.compile(net)
    with torch.no_grad():
        for x in run.batches(3, 3, 4):
            run.step(fast(x))


@program(share=0.3)
def part_with_gradients_inside_no_grad(run: Run) -> None:
    class Part(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                y = self.one(x).relu()
                with torch.enable_grad():
                    z = self.two(y)
            return z.tanh()

    net = Part()
    fast = run.compile(net)
    for x in run.batches(3, 3, 4):
        y = fast(x)
        y.sum().backward()
        run.step(y, net)
        with torch.no_grad():
            run.step(fast(x))


@program()
def layers_frozen_by_no_grad(run: Run) -> None:
    class Frozen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.trunk, self.head = nn.Linear(4, 8), nn.Linear(8, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                y = self.trunk(x).relu()
            return self.head(y)

    net = Frozen()
    fast = run.compile(net)
    for x in run.batches(3, 3, 4):
        y = fast(x)
        y.sum().backward()
        run.step(y, net)


@program()
def set_grad_enabled_by_mode(run: Run) -> None:
    class Sets(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.set_grad_enabled(self.training):
                y = self.one(x).relu()
            return self.two(y)

    net = Sets()
    fast = run.compile(net)
    for step, x in enumerate(run.batches(4, 3, 4)):
        net.zero_grad()
        fast.train(step % 2 == 0)
        fast(x).sum().backward()
        run.step(net)
