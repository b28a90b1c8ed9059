"""A network with two heads, as a script that may be told to end.

python -m tests.chains.two_heads RUN.checkpoint

Trains a module of PyTorch's with md.Trainer, from the checkpoint if there is one, and prints a line
after each step.  SIGTERM saves and ends it; what it then has not done the next call does.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import minidnn as md

EPOCHS = 6
LABELS = np.random.default_rng(0).integers(0, 3, 96)
NOISE = np.random.default_rng(1).standard_normal((96, 1, 8, 8)) / 4
PICTURES = (NOISE + LABELS[:, None, None, None]).astype(np.float32)


class TwoHeads(nn.Module):
    """A head over means of channels, and one over all pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.main, self.aux = nn.Linear(8, 3), nn.Linear(512, 3)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        y = self.body(x)
        return {"main": self.main(y.mean((2, 3))), "aux": self.aux(y.flatten(1))}


class Steps(md.callbacks.Callback):
    """Prints a line after each step."""

    def after_step(self, trainer: Any) -> None:
        print("step", flush=True)


def train(checkpoint: Path) -> Any:
    """The trainer at the end, whatever that is."""
    torch.manual_seed(0)
    cross = md.losses.CrossEntropy()
    trainer = md.Trainer(
        TwoHeads(),
        (16, 1, 8, 8),
        {"main": cross, "aux": (cross, 0.4)},
        md.optim.Adam(0.02),
        device="reference",
    )
    if checkpoint.exists():
        trainer.restore(checkpoint)
    data = md.data.Loader(md.data.Arrays(PICTURES, LABELS), 16, shuffle=True)
    trainer.fit(data, EPOCHS, callbacks=[md.callbacks.Checkpoint(checkpoint), Steps()])
    return trainer


if __name__ == "__main__":
    print("interrupted" if train(Path(sys.argv[1])).interrupted else "done")
