"""Are a network's results right, and the same run after run, while others use the GPU?

    python -m benchmarks.cuda_steady resnet18 resnet34 --draws 5 --seconds 2

For each network, with random weights and calibrated normalizations: the largest error of minidnn
and of PyTorch's eager mode beside PyTorch's float32, by its largest value; then how many runs of a
bound program differ from its first, alone and beside a process that keeps the GPU busy.
``--strategies`` compiles by each of them.  ``--draws`` compiles that many times more by
configurations that are drawn at random from those that tuning measures: which of them is fastest
depends on what else the GPU does meanwhile, so a wrong one may be chosen on another day only.  Ends
with 1 if a result was wrong or runs differed.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch

import minidnn as md
from minidnn import models
from minidnn.backends.cuda.contraction import tune
from minidnn.bench.gpu_cell import module_of, moved
from minidnn.bench.gpu_timing import deviations, exact
from minidnn.cudnn.graph.timing import race

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
DRAWN = "drawn"
MOST_ERROR = 3.0
"""Times PyTorch's own: more is wrong."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("networks", nargs="+")
    parser.add_argument("--precision", default="float16", choices=("float16", "bfloat16"))
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--strategies", nargs="+", default=["model", "contractions", "layers"])
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--tune", default="quick")
    parser.add_argument("--seconds", type=float, default=2.0)
    options = parser.parse_args()
    wrong = 0
    for name in options.networks:
        size = 299 if name == "inception_v3" else 224
        torch.manual_seed(0)
        network = module_of(name, (size, size))
        dtype = getattr(torch, options.precision)
        x = torch.randn(options.batch, 3, size, size, device="cuda", dtype=dtype)
        right = exact(network, x)
        with torch.inference_mode():
            eager = deviations({"eager": moved(network, x, False)(x)}, right)["eager"]
        print(f"{name}: PyTorch's error {eager:.1e}", flush=True)
        net = models.get_model(name)
        state = network.state_dict()
        net.load_state_dict({key: value.cpu().numpy() for key, value in state.items()})
        for how in (*options.strategies, *[DRAWN] * options.draws):
            run = compiled(net, x, how, options)
            error, differing = steadiness(run, right, options.seconds)
            bad = not error <= MOST_ERROR * eager or any(count for count, _ in differing)
            wrong += bad
            alone, beside = (f"{count} of {runs}" for count, runs in differing)
            print(
                f"{name} {how}: error {error:.1e}; {alone} runs alone and {beside} beside another "
                f"process differ{': WRONG' if bad else ''}",
                flush=True,
            )
    sys.exit(wrong > 0)


def compiled(net: Any, x: Any, how: str, options: argparse.Namespace) -> Any:
    """The network bound to its input, by a strategy or by configurations drawn at random."""

    def bound(strategy: str) -> Any:
        exe = md.compile(
            net,
            tuple(x.shape),
            device="cuda",
            precision=options.precision,
            strategy=strategy,
            tune=options.tune,
        )
        return exe.bind(x)

    if how != DRAWN:
        return bound(how)
    with drawn():
        return bound("model")


@contextmanager
def drawn() -> Iterator[None]:
    """Meanwhile configurations that can run are ranked at random, and nothing is remembered."""

    def ranked(contestants: Sequence[Any]) -> list[float | None]:
        return [None if time is None else random.random() for time in race(contestants)]

    class Forgetful:
        def read(self, key: str) -> None:
            return None

        def put(self, key: str, data: bytes, *, label: str) -> None:
            pass

    with patch.object(tune, "race", ranked), patch.object(tune, "_store", Forgetful()):
        yield


def steadiness(run: Any, right: Any, seconds: float) -> tuple[float, list[tuple[int, int]]]:
    """The largest error of all runs; how many differ from the first, of how many, alone and beside
    another process."""
    run()
    first = run.outputs[0].clone()
    errors = [deviations({"minidnn": first}, right)["minidnn"]]
    found = [differing(run, first, right, seconds, errors)]
    command = [sys.executable, "-c", LOAD.format(seconds=2 * seconds + 1)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        found.append(differing(run, first, right, seconds, errors))
    return max(errors), found


def differing(
    run: Any, first: Any, right: Any, seconds: float, errors: list[float]
) -> tuple[int, int]:
    """How many runs gave something else than the first, in so many seconds; adds their errors."""
    end = time.monotonic() + seconds
    count = different = 0
    while time.monotonic() < end:
        run()
        if not torch.equal(run.outputs[0], first):
            different += 1
            errors.append(deviations({"minidnn": run.outputs[0]}, right)["minidnn"])
        count += 1
    return different, count


if __name__ == "__main__":
    main()
