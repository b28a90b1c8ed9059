"""Are a network's results right, and the same run after run, while others use the GPU?

    python -m benchmarks.cuda_steady resnet18 resnet34 --seconds 5

For each network, with random weights and calibrated normalizations: the largest error of minidnn
and of PyTorch's eager mode beside PyTorch's float32, by its largest value; then how many runs of a
bound program differ from its first, alone and beside a process that keeps the GPU busy.
``--strategies`` compiles by each of them; a strategy is compiled ``--times`` times.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from typing import Any

import torch

import minidnn as md
from benchmarks.cuda_zoo_cell import deviations, exact, moved, peer
from minidnn import models

LOAD = """
import time, torch
a = torch.randn(4096, 4096, device="cuda", dtype=torch.float16)
end = time.time() + {seconds}
print("on", flush=True)
while time.time() < end:
    for _ in range(20):
        a @ a
    torch.cuda.synchronize()
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("networks", nargs="+")
    parser.add_argument("--precision", default="float16", choices=("float16", "bfloat16"))
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--strategies", nargs="+", default=["model", "contractions", "layers"])
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--tune", default="quick")
    parser.add_argument("--seconds", type=float, default=3.0)
    options = parser.parse_args()
    for name in options.networks:
        size = 299 if name == "inception_v3" else 224
        torch.manual_seed(0)
        network = peer(name, size)
        dtype = getattr(torch, options.precision)
        x = torch.randn(options.batch, 3, size, size, device="cuda", dtype=dtype)
        right = exact(network, x)
        with torch.inference_mode():
            eager = deviations({"eager": moved(network, x, False)(x)}, right)["eager"]
        print(f"{name}: PyTorch's error {eager[0]:.1e}", flush=True)
        net = models.get_model(name)
        state = network.state_dict()
        net.load_state_dict({key: value.cpu().numpy() for key, value in state.items()})
        for strategy in options.strategies * options.times:
            print(f"{name} {strategy}: {steadiness(net, x, right, strategy, options)}", flush=True)


def steadiness(
    net: Any, x: Any, right: Any, strategy: str, options: argparse.Namespace
) -> dict[str, str]:
    exe = md.compile(
        net,
        tuple(x.shape),
        device="cuda",
        precision=options.precision,
        strategy=strategy,
        tune=options.tune,
    )
    run = exe.bind(x)
    run()
    first = run.outputs[0].clone()
    error = deviations({"minidnn": first}, right)["minidnn"]
    found = {"error": f"{error[0]:.1e}", "alone": differing(run, first, options.seconds)}
    command = [sys.executable, "-c", LOAD.format(seconds=2 * options.seconds + 1)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        found["beside another"] = differing(run, first, options.seconds)
    return found


def differing(run: Any, first: Any, seconds: float) -> str:
    """How many runs gave something else than the first, in so many seconds."""
    end = time.monotonic() + seconds
    count = different = 0
    while time.monotonic() < end:
        run()
        different += not torch.equal(run.outputs[0], first)
        count += 1
    return f"{different} of {count} runs differ"


if __name__ == "__main__":
    main()
