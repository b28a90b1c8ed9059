"""Seconds of a training step on a GPU, beside PyTorch's eager mode and torch.compile.

python -m benchmarks.training_step resnet18 resnet50 --batch 32 --precision float32 tf32
"""

from __future__ import annotations

import argparse
import json
import time
from statistics import median
from typing import Any

import numpy as np

import minidnn as md
from minidnn import models


def of_torch(name: str, batch: int, precision: str, compiled: bool) -> Any:
    """A function that makes a step of PyTorch's."""
    import torch
    import torchvision

    torch.backends.cuda.matmul.allow_tf32 = precision != "float32"
    torch.backends.cudnn.allow_tf32 = precision != "float32"
    torch.backends.cudnn.benchmark = True
    narrow = {"bfloat16": torch.bfloat16, "float16": torch.float16}.get(precision)
    layout = torch.contiguous_format if precision == "float32" else torch.channels_last
    net = getattr(torchvision.models, name)().cuda().train().to(memory_format=layout)
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9, weight_decay=5e-4, fused=True)
    loss_of = torch.nn.CrossEntropyLoss()
    x = torch.randn(batch, 3, 224, 224, device="cuda").to(memory_format=layout)
    target = torch.randint(0, 1000, (batch,), device="cuda")
    forward = torch.compile(lambda x: loss_of(net(x), target)) if compiled else None

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", narrow, enabled=narrow is not None):
            loss = loss_of(net(x), target) if forward is None else forward(x)
        loss.backward()
        optimizer.step()

    return step


def of_minidnn(name: str, batch: int, precision: str) -> Any:
    """A function that makes a step of ours, and the trainer."""
    import torch

    net = getattr(models, name)()
    optimizer = md.optim.SGD(0.1, momentum=0.9, weight_decay=5e-4)
    trainer = md.Trainer(
        net,
        (batch, 3, 224, 224),
        md.losses.CrossEntropy(),
        optimizer,
        device="cuda",
        precision=precision,
    )
    x = torch.randn(batch, 3, 224, 224, device="cuda")
    target = torch.randint(0, 1000, (batch,), device="cuda")
    return lambda: trainer.step(x, target)


def seconds(step: Any, rounds: int) -> list[float]:
    """Of each step, the device's work included."""
    import torch

    for _ in range(3):
        step()
    found = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        step()
        torch.cuda.synchronize()
        found.append(time.perf_counter() - begin)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("networks", nargs="+")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--precision", nargs="+", default=["float32"])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--compiled", action="store_true", help="torch.compile, too")
    given = parser.parse_args()
    for name in given.networks:
        for precision in given.precision:
            row: dict[str, Any] = {"network": name, "batch": given.batch, "precision": precision}
            begin = time.perf_counter()
            sides = {"minidnn": of_minidnn(name, given.batch, precision)}
            sides["minidnn"]()
            row["compile_seconds"] = round(time.perf_counter() - begin, 2)
            sides["eager"] = of_torch(name, given.batch, precision, False)
            if given.compiled:
                sides["compiled"] = of_torch(name, given.batch, precision, True)
            for side, step in sides.items():
                row[side] = round(1e3 * median(seconds(step, given.rounds)), 3)
            row["ratio"] = round(
                min(v for k, v in row.items() if k in ("eager", "compiled")) / row["minidnn"], 3
            )
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    np.random.seed(0)
    main()
