"""torchvision beside a PyTorch that it was not built for.

torchvision on PyPI is built for CUDA.  Beside a CPU-only PyTorch its compiled part does not load
and importing it fails, because it describes operators that nobody defined.  Its networks need none
of them, so two empty definitions are enough.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import torch

# Kept for the process's lifetime: the definitions vanish with it.
_libraries: list[torch.library.Library] = []


def make_importable() -> None:
    """Has ``import torchvision`` succeed where its compiled part does not load.  Nothing happens
    where torchvision is missing, or imported already."""
    if "torchvision" in sys.modules or _libraries:
        return
    spec = find_spec("torchvision")
    if spec is None or spec.origin is None or _loads(Path(spec.origin).parent):
        return
    library = torch.library.Library("torchvision", "DEF")
    library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _libraries.append(library)


def _loads(folder: Path) -> bool:
    """Whether torchvision's compiled part loads."""
    for path in sorted(folder.glob("_C*.so")):
        try:
            torch.ops.load_library(str(path))
        except OSError:
            return False
        return True
    return False
