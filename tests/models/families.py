"""A small member of each later family of the zoo, and torchvision's of the same shape."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from minidnn import models
from minidnn.layers import Layer
from minidnn.models.convnext import ConvNeXt
from minidnn.models.efficientnet import EfficientNet, Stage
from minidnn.models.regnet import Design, RegNet
from minidnn.models.vit import VisionTransformer

torch = pytest.importorskip("torch")
from tests.oracles.torchvision_models import models as torchvision  # noqa: E402

CLASSES = 5


def efficientnet() -> tuple[Layer, Any]:
    """With a fused block that widens and one that does not, and blocks of both kinds that add."""
    rows = ((1, 3, 1, 8, 8, 2), (4, 3, 2, 8, 16, 2), (6, 5, 2, 16, 24, 2))
    stages = tuple(Stage(*row, fused=i < 2) for i, row in enumerate(rows))
    module = torchvision.efficientnet
    kinds = (module.FusedMBConvConfig, module.FusedMBConvConfig, module.MBConvConfig)
    settings = [kind(*row) for kind, row in zip(kinds, rows, strict=True)]
    ours = EfficientNet(stages, 32, 0.2, CLASSES)
    return ours, module.EfficientNet(settings, 0.2, 0.2, CLASSES)


def regnet(squeeze: float) -> tuple[Layer, Any]:
    sizes = (5, 16, 12.0, 1.8, 8)
    module = torchvision.regnet
    params = module.BlockParams.from_init_params(*sizes, se_ratio=squeeze or None)
    return RegNet(Design(*sizes, squeeze), CLASSES), module.RegNet(params, CLASSES)


def convnext() -> tuple[Layer, Any]:
    module = torchvision.convnext
    pairs = ((8, 12), (12, 16), (16, 24), (24, None))
    settings = [module.CNBlockConfig(*pair, 1) for pair in pairs]
    ours = ConvNeXt(tuple((channels, 1) for channels, _ in pairs), 0.1, CLASSES)
    return ours, module.ConvNeXt(settings, 0.1, num_classes=CLASSES)


def vit() -> tuple[Layer, Any]:
    sizes = (32, 16, 2, 2, 8, 12)
    theirs = torchvision.vision_transformer.VisionTransformer(*sizes, num_classes=CLASSES)
    return VisionTransformer(*sizes, CLASSES), theirs


def named(name: str) -> tuple[Layer, Any]:
    theirs = getattr(torchvision, name)(weights=None, num_classes=CLASSES)
    return models.get_model(name, num_classes=CLASSES), theirs


#: Name -> what makes both, and rows and columns of a picture.
FAMILIES: dict[str, tuple[Callable[[], tuple[Layer, Any]], int]] = {
    "mobilenet_v2": (partial(named, "mobilenet_v2"), 45),
    "mobilenet_v3": (partial(named, "mobilenet_v3_small"), 45),
    "efficientnet": (efficientnet, 29),
    "regnet_x": (partial(regnet, 0.0), 32),
    "regnet_y": (partial(regnet, 0.25), 45),
    "shufflenet_v2": (partial(named, "shufflenet_v2_x0_5"), 45),
    "mnasnet": (partial(named, "mnasnet0_5"), 45),
    "convnext": (convnext, 45),
    "vit": (vit, 32),
}
