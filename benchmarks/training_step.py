"""Seconds of a training step, beside PyTorch's eager mode and torch.compile.

python -m benchmarks.training_step resnet50 --precision bfloat16 --compiled reduce-overhead
python -m benchmarks.training_step resnet18 --device cpu --batch 8 --size 64 --threads 2

Steps are taken in turn, round after round; the median over the rounds counts.
"""

from __future__ import annotations

import argparse
import json
import time
from functools import partial
from statistics import median
from typing import Any

import numpy as np

import minidnn as md
from minidnn import models
from minidnn.measure import interleaved


def batch_of(given: argparse.Namespace) -> tuple[Any, Any]:
    """Images and targets, on the device."""
    import torch

    shape = (given.batch, 3, given.size, given.size)
    target = torch.randint(0, 1000, (given.batch,), device=given.device)
    return torch.randn(shape, device=given.device), target


def of_torch(
    name: str, precision: str, mode: str | None, given: argparse.Namespace, last: bool = True
) -> Any:
    """A function that makes a step of PyTorch's, compiled in a mode if one is given; ``last``: of
    images whose channels lie last."""
    import torch

    from minidnn.bench.torchvision_models import models as torchs

    device = given.device
    if given.threads is not None:
        torch.set_num_threads(given.threads)
    torch.backends.cuda.matmul.allow_tf32 = precision != "float32"
    torch.backends.cudnn.allow_tf32 = precision != "float32"
    torch.backends.cudnn.benchmark = True
    narrow = {"bfloat16": torch.bfloat16, "float16": torch.float16}.get(precision)
    layout = torch.channels_last if last else torch.contiguous_format
    net = getattr(torchs, name)().to(device).train().to(memory_format=layout)
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9, weight_decay=5e-4, fused=True)
    loss_of = torch.nn.CrossEntropyLoss()
    x, target = batch_of(given)
    x = x.to(memory_format=layout)
    forward = torch.compile(lambda x: loss_of(net(x), target), mode=mode) if mode else None
    scaler = torch.amp.GradScaler(device, enabled=precision == "float16")

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, narrow, enabled=narrow is not None):
            loss = loss_of(net(x), target) if forward is None else forward(x)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return step


def of_minidnn(name: str, precision: str, given: argparse.Namespace) -> Any:
    """A function that makes a step of ours."""
    options: dict[str, Any] = {} if given.threads is None else {"threads": given.threads}
    if given.memory_limit is not None:
        options["memory_limit"] = given.memory_limit
    trainer = md.Trainer(
        models.get_model(name),
        (given.batch, 3, given.size, given.size),
        md.losses.CrossEntropy(),
        md.optim.SGD(0.1, momentum=0.9, weight_decay=5e-4),
        device=given.device,
        precision=precision,
        **options,
    )
    x, target = batch_of(given)
    return lambda: trainer.step(x, target)


def seconds(step: Any, device: str) -> float:
    """Of a step, the device's work included."""
    import torch

    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    wait()
    begin = time.perf_counter()
    step()
    wait()
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("networks", nargs="+")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--threads", type=int, help="on the CPU (all usable cores)")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--size", type=int, default=224, help="rows and columns of images")
    parser.add_argument("--precision", nargs="+", default=["float32"])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--memory-limit", type=int, help="bytes of a step of minidnn's")
    modes = ("default", "reduce-overhead", "max-autotune")
    parser.add_argument(
        "--compiled", nargs="*", choices=modes, default=[], help="modes of torch.compile, too"
    )
    given = parser.parse_args()
    for name in given.networks:
        for precision in given.precision:
            row: dict[str, Any] = {"network": name, "batch": given.batch, "size": given.size}
            row |= {"device": given.device, "precision": precision}
            begin = time.perf_counter()
            sides = {"minidnn": of_minidnn(name, precision, given)}
            sides["minidnn"]()
            row["compile_seconds"] = round(time.perf_counter() - begin, 2)
            if precision == "float32":
                sides["eager planar"] = of_torch(name, precision, None, given, last=False)
            sides["eager"] = of_torch(name, precision, None, given)
            for mode in given.compiled:
                sides[f"compiled {mode}"] = of_torch(name, precision, mode, given)
            for step in sides.values():
                for _ in range(3):
                    step()
            takes = {side: partial(seconds, step, given.device) for side, step in sides.items()}
            for side, found in interleaved(takes, given.rounds).items():
                row[side] = round(1e3 * median(found), 3)
            row["ratio"] = round(
                min(row[side] for side in sides if side != "minidnn") / row["minidnn"], 3
            )
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    np.random.seed(0)
    main()
