"""Engines for the tests of the processes that run them."""

from __future__ import annotations

import os
import sys
import time

import numpy as np

from minidnn.bench.worker import Engine


def doubling(start: float) -> Engine:
    """Returns twice of what it returned before."""
    value = [start]

    def run() -> np.ndarray:
        value[0] *= 2
        return np.array([value[0]])

    return Engine(run, about={"version": "1", "variable": os.environ.get("MINIDNN_TEST")})


def sleeping(seconds: float) -> Engine:
    return Engine(lambda: time.sleep(seconds))


def noisy() -> Engine:
    print("something that a library prints")
    os.system("echo and a program")
    return Engine(lambda: None)


def dying() -> Engine:
    def run() -> None:
        print("about to die", file=sys.stderr, flush=True)
        os._exit(3)

    return Engine(run)


def broken() -> Engine:
    raise ValueError("no such model")


def nothing() -> None:
    pass
