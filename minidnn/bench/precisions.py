"""What PyTorch computes with at each precision."""

from __future__ import annotations

import torch


def dtype_of(precision: str) -> torch.dtype:
    """The type of what is computed on."""
    return {"float16": torch.float16, "bfloat16": torch.bfloat16}.get(precision, torch.float32)


def allow(precision: str) -> None:
    """PyTorch measures its algorithms, and uses TF32 just where the precision is that."""
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
