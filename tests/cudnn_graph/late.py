"""A kernel that lets the next one start at once, and only then, after a while, writes.

What is launched with programmatic stream serialization may begin when the kernel in front of it
says so, and must wait for its end before it reads what that kernel writes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

_SOURCE = """
extern "C" __global__ void late(unsigned int *to, const unsigned int *from, long long words,
                                long long cycles) {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
    const long long begin = clock64();
    while (clock64() - begin < cycles) {
    }
    const long long step = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < words; i += step)
        to[i] = from[i];
}
"""
_CYCLES = 60_000
"""Of the GPU's clock, about 30 us: long enough for the next kernel to begin."""
_BLOCKS = 8
"""So few leave multiprocessors free, where the next kernel begins: cuDNN's fill shared memory."""
_TIMES = 4


@cache
def _kernel() -> Any:
    import cupy

    return cupy.RawKernel(_SOURCE, "late")


def read_early(run: Callable[[], object], out: Any, operands: dict[str, Any]) -> dict[str, str]:
    """Which operands ``run`` reads before a kernel in front of it has written them: how often
    ``out`` then differs from what it is when nothing is in flight, on a stream and in a CUDA graph.

    ``run`` works on CuPy's current stream; arrays are PyTorch's, of whole words.
    """
    import cupy
    import torch

    from minidnn.cudnn.graph.timing import capture

    stream = cupy.cuda.Stream(non_blocking=True)

    def finished(start: Callable[[], object]) -> Any:
        out.zero_()
        torch.cuda.synchronize()
        with stream:
            start()
        stream.synchronize()
        return out.clone()

    expected = finished(run)
    assert torch.isfinite(expected).all() and expected.any()
    found = {}
    for name, operand in operands.items():
        good, wrong = operand.clone(), torch.full_like(operand, float("nan"))
        words = good.numel() * good.element_size() // 4

        def enqueue(to: Any = operand, good: Any = good, bad: Any = wrong, n: int = words) -> None:
            for source, cycles in ((bad, 0), (good, _CYCLES)):
                _kernel()((_BLOCKS,), (256,), (to.data_ptr(), source.data_ptr(), n, cycles))
            run()

        finished(enqueue)  # loads the kernel, which cannot be done in a capture
        with stream:
            graph = capture(stream, enqueue)
        for what, start in (("stream", enqueue), ("graph", lambda g=graph: g.launch(stream))):
            count = sum(not torch.equal(finished(start), expected) for _ in range(_TIMES))
            if count:
                found[f"{name}, {what}"] = f"{count} of {_TIMES} wrong"
    return found
