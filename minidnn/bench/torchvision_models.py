"""torchvision's models, beside a CPU-only PyTorch, too.

from minidnn.bench.torchvision_models import models
net = models.resnet50(weights=None)
"""

from __future__ import annotations

from importlib.util import find_spec

from minidnn.frontends.torch.torchvision import make_importable

if find_spec("torchvision") is None:
    raise ModuleNotFoundError(
        "torchvision is not installed (pip install 'minidnn[bench]'; beside a CPU-only PyTorch: "
        "pip install --no-deps torchvision)"
    )
make_importable()

from torchvision import models  # noqa: E402 (the operators must be there first)

__all__ = ["models"]
