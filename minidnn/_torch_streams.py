"""The address of PyTorch's current CUDA stream, which every call with GPU tensors needs.

It is not in :mod:`minidnn._torch_internals`, which takes seconds to import for captures.
"""

from __future__ import annotations

from collections.abc import Callable

import torch


def _of_object(device: int) -> int:
    return int(torch.cuda.current_stream(device).cuda_stream)


#: Returns a device's current stream as an integer.  The documented way makes an object, which takes
#: ten times as long.
raw_stream: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", _of_object)
