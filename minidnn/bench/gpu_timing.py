"""Times on a GPU, by events, memory on it, and how far results lie from PyTorch's float32."""

from __future__ import annotations

import copy
import gc
import math
from collections.abc import Callable, Mapping
from typing import Any

import cupy
import torch

from minidnn._torch_internals import wait_on_gpu

Run = Callable[[], object]
ROUND_MS = 8.0
LONG_MS = 25.0
"""A call of this length needs no second one beside it to be timed."""
MOST_CALLS = 1000


def interleaved(runs: Mapping[str, Run], rounds: int) -> dict[str, list[float]]:
    """Milliseconds of one call, for each round, in which every run is called for ROUND_MS."""
    counts = {name: calls_in(run, ROUND_MS) for name, run in runs.items()}
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            times[name].append(timed(run, counts[name]))
    return times


def calls_in(run: Run, milliseconds: float) -> int:
    """How many calls last about so long, at least two if they are not long themselves."""
    run()
    once = timed(run, 2)
    least = 1 if once > LONG_MS else 2
    return max(least, min(MOST_CALLS, math.ceil(milliseconds / max(once, 1e-3))))


def timed(run: Run, count: int) -> float:
    """Milliseconds of each of so many calls, which do not wait for one another."""
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    wait_on_gpu(200_000)  # the GPU does not wait for the first launch
    before.record()
    for _ in range(count):
        run()
    after.record()
    after.synchronize()
    return float(before.elapsed_time(after)) / count


def exact(network: Any, x: Any) -> Any:
    """What PyTorch computes in float32 without TF32, a few images at a time."""
    backends = torch.backends
    flags = (backends.cuda.matmul.allow_tf32, backends.cudnn.allow_tf32, backends.cudnn.benchmark)
    backends.cuda.matmul.allow_tf32 = backends.cudnn.allow_tf32 = False
    backends.cudnn.benchmark = False
    try:
        net = copy.deepcopy(network).to("cuda", torch.float32)
        with torch.inference_mode():
            return torch.cat([net(part.float()) for part in x.split(16)])
    finally:
        backends.cuda.matmul.allow_tf32, backends.cudnn.allow_tf32, backends.cudnn.benchmark = flags


def deviations(outputs: Mapping[str, Any], reference: Any) -> dict[str, float]:
    """How far outputs lie from the reference at most, as a part of its largest value."""
    largest = reference.abs().max()
    return {
        name: float((y.float() - reference).abs().max() / largest) for name, y in outputs.items()
    }


def memory_kept() -> int:
    """Bytes of the GPU that PyTorch and CuPy keep for this process, in use or for its next use.

    What CUDA says is free would count what other processes take and give back meanwhile.
    """
    pool = cupy.get_default_memory_pool()
    return int(torch.cuda.memory_reserved()) + int(pool.total_bytes())


def release_memory() -> None:
    """Gives back what is garbage or kept for the next use."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    cupy.get_default_memory_pool().free_all_blocks()
