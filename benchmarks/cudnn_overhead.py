"""Host overhead of the cuDNN binding: a warm call against the same bare C call.

Run on a machine with a GPU: ``python -m benchmarks.cudnn_overhead [--json FILE]``.  Each figure is
the median over rounds of the mean time of one call, in microseconds, on a problem so small that
the GPU keeps up.  What counts is the difference to the bare call, not the call.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from minidnn.measure import write_figures


def microseconds(call: Callable[[], object], wait: Callable[[], object]) -> float:
    """Median over 15 rounds of the mean host time of one call."""
    rounds = []
    for _ in range(15):
        wait()
        start = time.perf_counter()
        for _ in range(200):
            call()
        rounds.append((time.perf_counter() - start) / 200 * 1e6)
        wait()
    return statistics.median(rounds)


def cases() -> dict[str, tuple[Callable[[], object], Callable[[], object]]]:
    """Return name -> (call through the binding, the bare C call)."""
    import cupy

    from minidnn.cudnn import activation, compat, convolution, library, pooling
    from minidnn.cudnn.activation import activation_descriptor
    from minidnn.cudnn.dtypes import ONE, ZERO
    from minidnn.cudnn.enums import ActivationMode, NanPropagation, PoolingMode
    from minidnn.cudnn.graph import Graph
    from minidnn.cudnn.handle import current_handle
    from minidnn.cudnn.pooling import PoolingDescriptor
    from minidnn.cudnn.tensor import TensorDescriptor
    from minidnn.cudnn.workspace import acquire

    lib, handle = library.load(), current_handle()
    x = cupy.random.randn(1, 16, 8, 8).astype("f")
    w = cupy.random.randn(16, 16, 3, 3).astype("f")
    y, half = cupy.empty_like(x), cupy.empty((1, 16, 4, 4), "f")
    plan = convolution.plan("forward", x, w, y, padding=1)
    state = plan.state
    memory = acquire(state.workspace)
    bare_arguments = (
        handle, ONE, plan.first, x.data.ptr, plan.second, w.data.ptr, state.conv_value,
        state.algorithm, memory.ptr if memory else None, state.workspace, ZERO, plan.out,
        y.data.ptr,
    )  # fmt: skip
    relu = ActivationMode.CUDNN_ACTIVATION_RELU
    xd, yd = TensorDescriptor.of(x), TensorDescriptor.of(half)
    act = activation_descriptor(relu)
    nan = NanPropagation.CUDNN_PROPAGATE_NAN
    pool = PoolingDescriptor.of(PoolingMode.CUDNN_POOLING_MAX, (2, 2), (0, 0), (2, 2), nan)
    point_arguments = (handle, act.value, ONE, xd.value, x.data.ptr, ZERO, xd.value, y.data.ptr)
    pool_arguments = (handle, pool.value, ONE, xd.value, x.data.ptr, ZERO, yd.value, half.data.ptr)
    ones = (1, 1)
    g = Graph()
    g.output(g.convolution(*g.tensors(x, w), padding=1), like=y)
    prepared = g.build(choose="heuristic")
    bound = prepared.bind(x, w, out=y)
    graph_plan, pack = prepared._descriptor.pointer, bound._pack_pointer
    kept: Any = (xd, yd, act, pool, memory, plan, bound)

    def through_compat() -> None:
        compat.convolution_forward(
            x, w, None, y, ones, ones, ones, 1, auto_tune=False, tensor_core="auto"
        )

    def bare_convolution(kept: Any = kept) -> object:
        return lib.cudnnConvolutionForward(*bare_arguments)

    def bare_execution(kept: Any = kept) -> object:
        return lib.cudnnBackendExecute(handle, graph_plan, pack)

    return {
        "convolution.forward": (
            lambda: convolution.forward(x, w, y, padding=1),
            bare_convolution,
        ),
        "compat.convolution_forward": (through_compat, bare_convolution),
        "ConvolutionPlan.run": (
            lambda: plan.run(x.data.ptr, w.data.ptr, y.data.ptr),
            bare_convolution,
        ),
        "graph: bound plan": (bound, bare_execution),
        "graph: plan(x, w, out=y)": (lambda: prepared(x, w, out=y), bare_execution),
        "activation.forward": (
            lambda: activation.forward(x, y, mode=relu),
            lambda: lib.cudnnActivationForward(*point_arguments),
        ),
        "pooling.forward": (
            lambda: pooling.forward(x, half, window=2),
            lambda: lib.cudnnPoolingForward(*pool_arguments),
        ),
    }


def machine() -> dict[str, str]:
    """Return what the figures depend on."""
    import cupy

    from minidnn.cudnn import library

    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "-i", "0"]
    driver = subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()
    names = [
        line for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line
    ]
    return {
        "card": cupy.cuda.runtime.getDeviceProperties(0)["name"].decode(),
        "driver": driver,
        "runtime_cuda": str(cupy.cuda.runtime.runtimeGetVersion()),
        "cudnn": library.version_text(library.version()),
        "cupy": cupy.__version__,
        "python": platform.python_version(),
        "host": names[0].partition(":")[2].strip() if names else platform.machine(),
    }


def main() -> None:
    """Print the table, and write it as JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="file for the figures")
    arguments = parser.parse_args()
    import cupy

    wait = cupy.cuda.runtime.deviceSynchronize
    rows = {}
    for name, (call, bare) in cases().items():
        call()
        floor, total = microseconds(bare, wait), microseconds(call, wait)
        rows[name] = {"bare_us": floor, "call_us": total, "overhead_us": total - floor}
        print(f"{name:28} bare {floor:6.2f}  call {total:6.2f}  overhead {total - floor:6.2f} us")
    if arguments.json:
        write_figures(arguments.json, {"machine": machine(), "rows": rows})


if __name__ == "__main__":
    main()
