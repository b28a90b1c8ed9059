"""torchvision's later networks: ``md.optimize`` beside PyTorch's own modes, on the CPU.

    python -m benchmarks.beyond [--networks mobilenet_v2 --batch 1 16] --json FILE
    python -m benchmarks.beyond --json FILE --table

Engines are ``optimize`` and PyTorch's ``eager``, ``channels_last`` and ``compile`` (TorchInductor,
parameters frozen), each in a process of its own, run in turn on the same weights and input.  What
the file has already is not measured again, and none is begun after ``--limit`` seconds.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.figures import Results, line, markdown
from minidnn.bench.measure import alternate
from minidnn.bench.networks import BEYOND
from minidnn.bench.peers import TORCH_MODES, load_inputs
from minidnn.bench.process import EngineError, EngineProcess
from minidnn.bench.worker import LoadedEngine
from minidnn.measure import compared
from minidnn.runtime.cores import usable_cores

OWN = "optimize"


def network(name: str) -> Any:
    """torchvision's module, its weights and statistics such that values neither vanish nor grow
    without bounds."""
    import torch
    from torch import nn

    from minidnn.bench.torchvision_models import models

    torch.manual_seed(0)
    unset = {"aux_logits": False, "init_weights": False} if name == "googlenet" else {}
    net = getattr(models, name)(weights=None, **unset).eval().requires_grad_(False)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.uniform_(-0.1, 0.1)
            module.running_var.uniform_(0.5, 1.5)
        if type(module).__name__ == "CNBlock":
            module.layer_scale.data.fill_(0.5)
    return net


def optimized(name: str, inputs: str, threads: int) -> LoadedEngine:
    """The engine of ``md.optimize``."""
    import torch

    import minidnn as md

    torch.set_num_threads(1)  # it only hands tensors over
    x = torch.from_numpy(load_inputs(inputs)[0])
    fast = md.optimize(network(name), x, device="cpu", threads=threads, strict=True)

    def run() -> Any:
        with torch.inference_mode():
            return fast(x)

    return LoadedEngine(
        run, lambda result: [result.numpy()], {"parts": len(fast.programs[0].parts)}
    )


def measure(name: str, batch: int, options: argparse.Namespace) -> dict[str, Any]:
    """The record of one network and batch: seconds by engine, deviations, failures."""
    x = np.random.default_rng(1).standard_normal((batch, 3, 224, 224), np.float32)
    failed: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        inputs = str(Path(folder) / "inputs.npz")
        np.savez(inputs, x=x)
        common = {"inputs": inputs, "threads": options.threads}
        engines: dict[str, EngineProcess] = {}
        outputs: dict[str, np.ndarray] = {}
        for engine in (OWN, *options.modes):
            target, given = f"{__spec__.name}:optimized", {"name": name, **common}
            if engine != OWN:
                target = "minidnn.bench.peers:torch"
                made = {"network": f"{__spec__.name}:network", "options": {"name": name}}
                given = {**made, "mode": engine, **common}
            try:
                process = stack.enter_context(EngineProcess(engine, target, given))
                outputs[engine] = process.outputs()[0]
                engines[engine] = process
            except EngineError as error:
                failed[engine] = str(error)[:300]
                print(name, batch, engine, "failed:", failed[engine], flush=True)
        times = alternate(engines, options.rounds, options.seconds)
        about = {engine: process.about for engine, process in engines.items()}
    largest = np.abs(outputs[OWN]).max()
    deviations = {e: float(np.abs(y - outputs[OWN]).max() / largest) for e, y in outputs.items()}
    about = {"deviations": deviations, "failed": failed, "about": about}
    return {**compared(times, OWN), **about}


def row(key: str, record: dict[str, Any]) -> list[str]:
    """A row of the table: milliseconds, and how much faster than PyTorch's best."""
    times, ratios = record["seconds"], record["ratio"]
    cells = [f"{1e3 * times[e]['value']:.4g}" if e in times else "" for e in (OWN, *TORCH_MODES)]
    if ratios:
        best = min(ratios, key=lambda engine: float(times[engine]["value"]))
        cells.append("{value:.2f} ({low:.2f} to {high:.2f})".format(**ratios[best]))
    return [key, *cells]


def table(part: Mapping[str, Any]) -> str:
    titles = ("network", *(f"{engine}, ms" for engine in (OWN, *TORCH_MODES)), "to PyTorch's best")
    return markdown(titles, (row(key, record) for key, record in part.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--networks", nargs="+", default=BEYOND, choices=BEYOND, metavar="NET")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--modes", nargs="*", default=TORCH_MODES, choices=TORCH_MODES)
    parser.add_argument("--rounds", type=int, default=9, help="alternations (9)")
    parser.add_argument("--seconds", type=float, default=0.3, help="a burst's length (0.3)")
    parser.add_argument("--threads", type=int, default=usable_cores(), help="all cores by default")
    parser.add_argument("--limit", type=float, default=math.inf, help="begin none after so long")
    parser.add_argument("--json", type=Path, required=True, help="where figures are written")
    parser.add_argument("--table", action="store_true", help="only print what the file has")
    options = parser.parse_args()
    results = Results(options.json, measures=not options.table)
    part = results.part(f"{options.threads} threads")
    begin = time.monotonic()
    for batch in options.batch if not options.table else ():
        for name in options.networks:
            key = f"{name}, batch {batch}"
            if key not in part and time.monotonic() - begin < options.limit:
                results.add(f"{options.threads} threads", key, measure(name, batch, options))
                print(line(row(key, part[key])), flush=True)
    print(f"\n{results.machine}\n\n{table(part)}")


if __name__ == "__main__":
    main()
