"""How long md.compile takes, with an empty cache and with one that has all kernels.

    python -m benchmarks.compile_time resnet50 vgg16 [--runs 7] [--json FILE]
    python -m benchmarks.compile_time resnet50 densenet201 --cold [--runs 3] [--json FILE]

Each run is a process of its own, in which the weights have been drawn and nothing has been
compiled before; networks take turns.  With ``--cold`` the cache folder is empty (ISPC itself is
there), so the run asks what the compilers are, builds the native runner and compiles all kernels.
Without it the folder is filled first, and a compiler that is started is an error.  Medians with
95 % intervals.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import minidnn as md
from benchmarks.figures import Results
from minidnn import models
from minidnn.backends.cpu.compilers.toolchain import ISPC_VARIABLE, find_ispc
from minidnn.cache import forbid_builds
from minidnn.measure import median


def compile_seconds(name: str, batch: int, cold: bool) -> float:
    """Seconds of md.compile in this process."""
    network = models.get_model(name)
    network.state_dict()  # draws the weights
    with contextlib.nullcontext() if cold else forbid_builds():
        start = time.perf_counter()
        md.compile(network, (batch, *network.input_shape), device="cpu")
        return time.perf_counter() - start


def in_new_process(name: str, batch: int, cold: bool, cache: str) -> float:
    """Seconds of md.compile in a process of its own, with this cache folder."""
    argv = [sys.executable, "-m", "benchmarks.compile_time", name, "--batch", str(batch), "--here"]
    found = subprocess.run(
        argv + ["--cold"] * cold,
        env=os.environ | {"MINIDNN_CACHE": cache, ISPC_VARIABLE: find_ispc().path},
        stdout=subprocess.PIPE,
        check=True,
    )
    return float(found.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description="How long md.compile takes.")
    parser.add_argument("networks", nargs="+", metavar="NETWORK")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--cold", action="store_true", help="with an empty cache folder")
    parser.add_argument("--cache", type=Path, help="the warm folder, kept if named")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        print(compile_seconds(options.networks[0], options.batch, options.cold))
        return
    samples: dict[str, list[float]] = {name: [] for name in options.networks}
    with tempfile.TemporaryDirectory() as folder:
        warm = str(options.cache or folder)
        for name in () if options.cold else options.networks:
            in_new_process(name, options.batch, True, warm)
        for _ in range(options.runs):
            for name, taken in samples.items():
                with tempfile.TemporaryDirectory() as empty:
                    used = empty if options.cold else warm
                    taken.append(in_new_process(name, options.batch, options.cold, used))
    part = "empty cache" if options.cold else "warm cache"
    for name, taken in samples.items():
        print(f"{name}, batch {options.batch}, {part}: {median(taken):.3f} s")
        if options.json:
            record = {"network": name, "batch": options.batch, "seconds": vars(median(taken))}
            Results(options.json).add(part, f"{name}, batch {options.batch}", record)


if __name__ == "__main__":
    main()
