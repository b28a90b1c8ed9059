"""Train the network of ``models/digits.py`` and write ``models/digits.safetensors``.

    python tools/train_digits.py --cross-validate     # what the settings below were chosen by
    python tools/train_digits.py                      # train, write the weights, report

Data: ``sklearn.datasets.load_digits`` in its fixed order, pixels scaled to 0…1.  Only the first
1,437 images are trained on.  The last 360 are held out: they choose nothing (settings come from
five contiguous folds of the first 1,437, where these give 98.7 %) and are looked at once, after
the weights are written.

The network is trained with PyTorch, as a mirror of ``models/digits.py`` with the same parameter
names; tests/digits compares the two.  Seeds are fixed and PyTorch runs on one thread, so that one
machine and PyTorch version give the same file again.
"""

from __future__ import annotations

import argparse
import copy
import math
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

TRAINED = 1437
OUTPUT = Path(__file__).resolve().parent.parent / "models" / "digits.safetensors"


@dataclass(frozen=True)
class Settings:
    """Everything that cross-validation may choose."""

    epochs: int = 100
    batch: int = 64
    rate: float = 1e-2
    decay: float = 1e-3
    smoothing: float = 0.1
    degrees: float = 15.0
    shift: float = 0.20
    scale: float = 0.15
    shear: float = 0.15
    noise: float = 0.05
    average: float = 0.99


class Block(nn.Module):
    """Two 3x3 convolutions and a shortcut, as ``models.digits.Block``."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU()
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            conv = nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False)
            self.shortcut = nn.Sequential(conv, nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return self.relu(y + self.shortcut(x))


class Digits(nn.Module):
    """The mirror of ``models.digits.Digits``: same structure, same parameter names."""

    def __init__(self, width: int = 20) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()
        )
        self.blocks = nn.Sequential(
            Block(width, width, 1), Block(width, 2 * width, 2), Block(2 * width, 2 * width, 1)
        )
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.head = nn.Linear(2 * width, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.flatten(self.pool(self.blocks(self.stem(x)))))


def load() -> tuple[Tensor, Tensor]:
    """Return all images (1797, 1, 8, 8), float32 in 0…1, and their labels, in the fixed order."""
    data = load_digits()
    images = torch.from_numpy(data.images.astype(np.float32) / 16).unsqueeze(1)
    return images, torch.from_numpy(data.target.astype(np.int64))


def augment(images: Tensor, s: Settings, random: torch.Generator) -> Tensor:
    """Rotate, shift, scale and shear each image on its own, and add noise."""
    count = len(images)

    def uniform(limit: float) -> Tensor:
        return (torch.rand(count, generator=random) * 2 - 1) * limit

    angle, shear = uniform(math.radians(s.degrees)), uniform(s.shear)
    across, down = 1 + uniform(s.scale), 1 + uniform(s.scale)
    cos, sin = torch.cos(angle), torch.sin(angle)
    row0 = torch.stack([cos * across, (shear * cos - sin) * down, uniform(s.shift)], dim=1)
    row1 = torch.stack([sin * across, (shear * sin + cos) * down, uniform(s.shift)], dim=1)
    theta = torch.stack([row0, row1], dim=1)
    grid = F.affine_grid(theta, list(images.shape), align_corners=False)
    moved = F.grid_sample(images, grid, mode="bilinear", align_corners=False)
    noise = torch.randn(moved.shape, generator=random) * s.noise
    return (moved + noise).clamp(0, 1)


def train(images: Tensor, labels: Tensor, s: Settings, seed: int) -> Digits:
    """Return the network, with the running average of its weights, after ``s.epochs`` epochs."""
    torch.manual_seed(seed)
    random = torch.Generator().manual_seed(seed)
    net = Digits()
    mean = copy.deepcopy(net).eval()
    steps = s.epochs * math.ceil(len(images) / s.batch)
    optimizer = torch.optim.AdamW(net.parameters(), lr=s.rate, weight_decay=s.decay)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, s.rate, total_steps=steps)
    step = 0
    for _ in range(s.epochs):
        for rows in torch.randperm(len(images), generator=random).split(s.batch):
            net.train()
            scores = net(augment(images[rows], s, random))
            loss = F.cross_entropy(scores, labels[rows], label_smoothing=s.smoothing)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            step += 1
            # Early on the average follows closely, so that the start does not linger in it.
            update_average(mean, net, min(s.average, step / (10 + step)))
    return mean


@torch.no_grad()
def update_average(mean: Digits, net: Digits, keep: float) -> None:
    """Move every number of ``mean`` towards ``net`` by ``1 - keep``."""
    for old, new in zip(mean.state_dict().values(), net.state_dict().values(), strict=True):
        if old.is_floating_point():
            old.lerp_(new, 1 - keep)
        else:
            old.copy_(new)


@torch.no_grad()
def wrong(net: Digits, images: Tensor, labels: Tensor) -> int:
    """Return how many images the network gets wrong."""
    return int((net(images).argmax(dim=1) != labels).sum())


def cross_validate(images: Tensor, labels: Tensor, s: Settings, seeds: int) -> None:
    """Print the errors on five contiguous folds (writers stay together) of the trained images."""
    total = 0
    for seed in range(seeds):
        errors = []
        for fold in torch.arange(TRAINED).chunk(5):
            rest = torch.ones(TRAINED, dtype=torch.bool)
            rest[fold] = False
            net = train(images[:TRAINED][rest], labels[:TRAINED][rest], s, seed)
            errors.append(wrong(net, images[fold], labels[fold]))
        total += sum(errors)
        print(f"seed {seed}: errors by fold {errors}", flush=True)
    print(f"accuracy: {100 * (1 - total / (seeds * TRAINED)):.2f} % on {seeds} x {TRAINED} images")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--cross-validate", action="store_true", help="five folds, no file written")
    parser.add_argument("--seeds", type=int, default=1, help="repetitions of cross-validation")
    parser.add_argument("--seed", type=int, default=0, help="seed of the training (default 0)")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="default %(default)s")
    for name, value in vars(Settings()).items():
        parser.add_argument(f"--{name}", type=type(value), default=value)
    arguments = parser.parse_args()
    settings = Settings(**{name: getattr(arguments, name) for name in vars(Settings())})
    torch.set_num_threads(1)
    images, labels = load()
    start = time.perf_counter()
    if arguments.cross_validate:
        cross_validate(images, labels, settings, arguments.seeds)
    else:
        net = train(images[:TRAINED], labels[:TRAINED], settings, arguments.seed)
        save_file(
            {k: v.contiguous() for k, v in net.state_dict().items() if v.is_floating_point()},
            arguments.output,
            metadata={"trained_by": "tools/train_digits.py", "settings": repr(settings)},
        )
        held_out = len(images) - TRAINED
        missed = wrong(net, images[TRAINED:], labels[TRAINED:])
        print(f"{arguments.output}: {arguments.output.stat().st_size} bytes")
        print(f"accuracy: {100 * (1 - missed / held_out):.1f} % of the {held_out} held out")
    print(f"{time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
