"""Makes torchvision importable with a PyTorch that it was not built for.

torchvision on PyPI is built for CUDA.  With a CPU-only PyTorch its extension library does not load,
and importing it fails, because it registers fake implementations of operators that nothing has
defined.  Its networks need none of these operators, so two definitions without an implementation
are enough.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import torch

# Kept alive for the process's lifetime: the definitions vanish with the library object.
_libraries: list[torch.library.Library] = []


def make_importable() -> None:
    """Makes ``import torchvision`` succeed where its extension library does not load.  Nothing
    happens where torchvision is missing, or imported already."""
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
    """Whether torchvision's extension library loads."""
    for path in sorted(folder.glob("_C*.so")):
        try:
            torch.ops.load_library(str(path))
        except OSError:
            return False
        return True
    return False
