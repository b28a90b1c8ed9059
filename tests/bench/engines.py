"""Engines for the tests of the processes that run them."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import numpy as np

from minidnn.bench.worker import LoadedEngine


def doubling(start: float) -> LoadedEngine:
    """Returns twice of what it returned before."""
    value = [start]

    def run() -> np.ndarray:
        value[0] *= 2
        return np.array([value[0]])

    return LoadedEngine(run, about={"version": "1", "variable": os.environ.get("MINIDNN_TEST")})


def sleeping(seconds: float) -> LoadedEngine:
    return LoadedEngine(lambda: time.sleep(seconds))


def noisy() -> LoadedEngine:
    print("something that a library prints")
    os.system("echo and a program")
    return LoadedEngine(lambda: None)


def dying() -> LoadedEngine:
    def run() -> None:
        print("about to die", file=sys.stderr, flush=True)
        os._exit(3)

    return LoadedEngine(run)


def broken(**_: Any) -> LoadedEngine:
    raise ValueError("no such model")


def nothing() -> None:
    pass


def summing(
    inputs: str,
    threads: int,
    log: str,
    name: str,
    factor: float = 1.0,
    sleep: float = 0.001,
    **_: Any,
) -> LoadedEngine:
    """As a peer is made for a case: sums of images, slowly; notes that it was started."""
    with open(log, "a", encoding="ascii") as file:
        file.write(f"{name}\n")
    with np.load(inputs) as arrays:
        result = factor * arrays["x"].sum(axis=(1, 2, 3))

    def run() -> np.ndarray:
        time.sleep(sleep)
        return result

    return LoadedEngine(run, about={"version": "1.2+x", "precision": "f32"})


def cell(
    network: str, shape: list[int], precision: str, engines: list[str], burst: float
) -> LoadedEngine:
    """As all engines of a cell on a GPU are made; "torch-calls" cannot be, nor can minidnn for
    batches of 13."""
    about: dict[str, dict[str, Any]] = {}
    for name in engines:
        if name == "torch-calls" or (name == "minidnn" and shape[0] == 13):
            about[name] = {"error": f"ValueError: no {name}"}
            continue
        about[name] = {"compile_seconds": 0.5, "memory_bytes": 1 << 20, "version": "1.2+x"}
        about[name] |= {"precision": precision, "deviation": 0.25}
        about[name] |= {"sees": os.environ["CUDA_VISIBLE_DEVICES"], "shape": shape, "burst": burst}
    there = [name for name, record in about.items() if "error" not in record]
    number = 0

    def run() -> list[float]:
        nonlocal number
        number += 1
        return [(1 + place) * number * 1e-3 for place in range(len(there))]

    return LoadedEngine(run, lambda seconds: [seconds], {"engines": about})
