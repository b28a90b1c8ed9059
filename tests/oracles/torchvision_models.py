"""torchvision's models beside a CPU-only PyTorch: see :mod:`minidnn.bench.torchvision_models`."""

from __future__ import annotations

from minidnn.bench.torchvision_models import models, unfilled

__all__ = ["models", "unfilled"]
