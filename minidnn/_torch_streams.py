"""The address of PyTorch's current stream, which each call with its tensors on a GPU asks for.

It stands apart from :mod:`minidnn._torch_internals`, as what captures need takes seconds to import.
"""

from __future__ import annotations

from collections.abc import Callable

import torch


def _of_object(device: int) -> int:
    return int(torch.cuda.current_stream(device).cuda_stream)


#: The documented way makes an object, which takes ten times as long.
raw_stream: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", _of_object)
