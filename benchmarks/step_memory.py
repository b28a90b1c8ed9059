"""Memory of a training step on a GPU, beside that of PyTorch's eager mode, or of torch.compile.

python -m benchmarks.step_memory resnet50
python -m benchmarks.step_memory resnet50 densenet121 --precision float32 bfloat16
python -m benchmarks.step_memory resnet50 --batch 128 --precision bfloat16 --compiled default

Each side runs in a process of its own.  A line of JSON tells its bytes: "kept" are those that the
forward pass leaves to the backward pass; "peak" is the most that was allocated at once, parameters,
momenta and the batch included.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import minidnn as md
from minidnn import models

#: Of SGD: the rate, momentum and the decay of weights.
RATE, MOMENTUM, DECAY = 0.1, 0.9, 5e-4
#: The first steps allocate what later ones use again.
STEPS = 3


def of_minidnn(
    name: str, precision: str, shape: tuple[int, ...], given: argparse.Namespace
) -> dict[str, int]:
    import cupy

    from minidnn.report.training import kept_values

    trainer = md.Trainer(
        getattr(models, name)(),
        shape,
        md.losses.CrossEntropy(),
        md.optim.SGD(RATE, momentum=MOMENTUM, weight_decay=DECAY),
        device="cuda",
        precision=precision,
        **({"memory_limit": given.memory_limit} if given.memory_limit else {}),
    )
    x, target = cupy.random.randn(*shape, dtype="float32"), cupy.zeros(shape[:1], "int64")
    for _ in range(STEPS):
        trainer.step(x, target)
    cupy.cuda.runtime.deviceSynchronize()
    kept = sum(value.bytes for value in kept_values(trainer.step_program.plan))
    # A program allocates all that it ever needs before its first step, workspaces included.
    return {"kept": kept, "peak": cupy.get_default_memory_pool().used_bytes()}


def of_torch(
    name: str, precision: str, shape: tuple[int, ...], given: argparse.Namespace
) -> dict[str, int]:
    import torch

    from minidnn.bench.torchvision_models import models as torchs

    narrow = {"bfloat16": torch.bfloat16, "float16": torch.float16}.get(precision)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"
    net = getattr(torchs, name)().cuda().train().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(net.parameters(), RATE, MOMENTUM, weight_decay=DECAY, fused=True)
    x = torch.randn(shape, device="cuda").to(memory_format=torch.channels_last)
    target = torch.zeros(shape[:1], device="cuda", dtype=torch.int64)
    module = torch.compile(net, mode=given.compiled) if given.compiled else net
    kept = 0
    for _ in range(STEPS):
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        with torch.autocast("cuda", narrow, enabled=narrow is not None):
            loss = torch.nn.functional.cross_entropy(module(x), target)
        kept = torch.cuda.memory_allocated() - before
        loss.backward()
        optimizer.step()
        del loss
    return {"kept": kept, "peak": torch.cuda.max_memory_allocated()}


SIDES = {"minidnn": of_minidnn, "torch": of_torch}


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("networks", nargs="+")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--size", type=int, default=224, help="rows and columns of images")
    parser.add_argument("--precision", nargs="+", default=["float32"])
    parser.add_argument("--compiled", metavar="MODE", help="of torch.compile; none: eager")
    parser.add_argument("--memory-limit", type=int, help="bytes of a step of minidnn's")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    options = parser.parse_args(given)
    shape = (options.batch, 3, options.size, options.size)
    for name in options.networks:
        for precision in options.precision:
            if options.side is not None:
                print(json.dumps(SIDES[options.side](name, precision, shape, options)))
                continue
            row: dict[str, Any] = {"network": name, "batch": options.batch, "precision": precision}
            for side in SIDES:
                row[side] = _in_process(side, name, precision, options)
            row["ratio"] = round(row["torch"]["peak"] / row["minidnn"]["peak"], 3)
            print(json.dumps(row), flush=True)


def _in_process(side: str, name: str, precision: str, options: argparse.Namespace) -> Any:
    sizes: tuple[str, ...] = ("--batch", str(options.batch), "--size", str(options.size))
    sizes += ("--compiled", options.compiled) if options.compiled else ()
    sizes += ("--memory-limit", str(options.memory_limit)) if options.memory_limit else ()
    command = (name, *sizes, "--precision", precision, "--side", side)
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.step_memory", *command],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    main()
