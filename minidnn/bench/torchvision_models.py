"""torchvision's models beside a CPU-only PyTorch.

    from minidnn.bench.torchvision_models import models
    net = models.resnet50(weights=None)

torchvision on PyPI is built for CUDA.  Beside a CPU-only PyTorch its compiled part does not load
and importing it fails, because it describes operators that nobody defined.  Its networks need none
of them, so two empty definitions are enough.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import torch

# Kept for the process's lifetime: the definitions vanish with it.
_library: torch.library.Library | None = None


def _compiled_part_loads() -> bool:
    spec = find_spec("torchvision")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(
            "torchvision is not installed (pip install 'minidnn[bench]'; beside a CPU-only "
            "PyTorch: pip install --no-deps torchvision)"
        )
    for path in sorted(Path(spec.origin).parent.glob("_C*.so")):
        try:
            torch.ops.load_library(str(path))
        except OSError:
            return False
        return True
    return False


if not _compiled_part_loads():
    _library = torch.library.Library("torchvision", "DEF")
    _library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from torchvision import models  # noqa: E402 (the operators must be there first)

__all__ = ["models"]
