"""Measures networks on a GPU: time by CUDA events, memory, and deviation from PyTorch's float32."""

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
"""A call of at least this length is timed by itself; shorter ones are timed two or more
together."""
MOST_CALLS = 1000


def interleaved(runs: Mapping[str, Run], rounds: int) -> dict[str, list[float]]:
    """Milliseconds of a call of each run, for each round; a run is called for ROUND_MS in a
    round."""
    counts = {name: calls_in(run, ROUND_MS) for name, run in runs.items()}
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            times[name].append(timed(run, counts[name]))
    return times


def calls_in(run: Run, milliseconds: float) -> int:
    """How many calls last about ``milliseconds``; at least two, unless a call exceeds LONG_MS."""
    run()
    once = timed(run, 2)
    least = 1 if once > LONG_MS else 2
    return max(least, min(MOST_CALLS, math.ceil(milliseconds / max(once, 1e-3))))


def timed(run: Run, count: int) -> float:
    """Milliseconds of a call, on average over ``count`` calls that are launched back to back."""
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    wait_on_gpu(200_000)  # the GPU does not wait for the first launch
    before.record()
    for _ in range(count):
        run()
    after.record()
    after.synchronize()
    return float(before.elapsed_time(after)) / count


def exact(network: Any, x: Any) -> Any:
    """PyTorch's output in float32 without TF32, computed a few images at a time."""
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
    """The largest difference of each output to the reference, relative to its largest value."""
    largest = reference.abs().max()
    return {
        name: float((y.float() - reference).abs().max() / largest) for name, y in outputs.items()
    }


def memory_kept() -> int:
    """Bytes of GPU memory that PyTorch's and CuPy's allocators hold for this process, in use or
    not.

    The free memory that CUDA reports would also vary with other processes' allocations.
    """
    pool = cupy.get_default_memory_pool()
    return int(torch.cuda.memory_reserved()) + int(pool.total_bytes())


def release_memory() -> None:
    """Collects garbage, and releases the unused memory of both allocators."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    cupy.get_default_memory_pool().free_all_blocks()
