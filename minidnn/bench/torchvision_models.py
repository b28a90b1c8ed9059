"""torchvision's models, importable with a CPU-only PyTorch as well; and PyTorch's precisions.

from minidnn.bench.torchvision_models import models

net = models.resnet50(weights=None)
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import torch

from minidnn.frontends.torch.torchvision import make_importable

if find_spec("torchvision") is None:
    raise ModuleNotFoundError(
        "torchvision is not installed (pip install 'minidnn[bench]'; beside a CPU-only PyTorch: "
        "pip install --no-deps torchvision)"
    )
make_importable()

from torchvision import models  # noqa: E402 (the operators must be there first)

__all__ = ["models", "unfilled"]


def unfilled(name: str, **options: Any) -> Any:
    """torchvision's network in evaluation mode, with weights on the meta device, which a state dict
    with ``assign=True`` replaces.

    A RegNet is made on the CPU, since it computes its numbers of channels with tensors.
    """
    if name == "inception_v3":
        options = {"aux_logits": False, "init_weights": False} | options
    with torch.device("cpu" if name.startswith("regnet") else "meta"):
        return getattr(models, name)(weights=None, **options).eval()


def dtype_of(precision: str) -> torch.dtype:
    """The dtype of tensors in a precision."""
    return {"float16": torch.float16, "bfloat16": torch.bfloat16}.get(precision, torch.float32)


def allow(precision: str) -> None:
    """Turns on cudnn.benchmark, and allows TF32 only if that is the precision."""
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
