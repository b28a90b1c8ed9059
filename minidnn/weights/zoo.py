"""Where torchvision's ImageNet weights of the classic networks are, and how they want their images.

Source: the ``*_Weights`` enumerations of torchvision 0.28.  The digits in a file's name are the
first of its SHA-256, as PyTorch's hub defines; that is how a download is checked.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from typing import Any

from ..errors import WeightsError

_BASE = "https://download.pytorch.org/models/"


@dataclasses.dataclass(frozen=True)
class KnownWeights:
    """One file of weights.

    Attributes:
        network: name of the function that makes the network (``"resnet50"``).
        version: ``"IMAGENET1K_V1"`` or ``"IMAGENET1K_V2"``.
        enum: torchvision's name of the enumeration (``"ResNet50_Weights"``).
        url: of the file.
        resize: pixels of an image's shorter side before the crop of its centre.
        crop: pixels of the cropped square.
        megabytes: size of the file in MiB, as torchvision says; for showing only.
    """

    network: str
    version: str
    enum: str
    url: str
    resize: int
    crop: int
    megabytes: float

    @property
    def name(self) -> str:
        """For example ``ResNet50_Weights.IMAGENET1K_V2``."""
        return f"{self.enum}.{self.version}"

    @property
    def hash_prefix(self) -> str:
        """The first digits of the file's SHA-256."""
        return self.url.rpartition("-")[2].removesuffix(".pth")


# Network, enumeration, version, file, resize, crop, MiB.  The last version of a network is its
# default, as in torchvision.
_TABLE = """
alexnet AlexNet 1 alexnet-owt-7be5be79 256 224 233.087
vgg11 VGG11 1 vgg11-8a719046 256 224 506.84
vgg11_bn VGG11_BN 1 vgg11_bn-6002323d 256 224 506.881
vgg13 VGG13 1 vgg13-19584684 256 224 507.545
vgg13_bn VGG13_BN 1 vgg13_bn-abd245e5 256 224 507.59
vgg16 VGG16 1 vgg16-397923af 256 224 527.796
vgg16_bn VGG16_BN 1 vgg16_bn-6c64b313 256 224 527.866
vgg19 VGG19 1 vgg19-dcbb9e9d 256 224 548.051
vgg19_bn VGG19_BN 1 vgg19_bn-c79401a0 256 224 548.143
resnet18 ResNet18 1 resnet18-f37072fd 256 224 44.661
resnet34 ResNet34 1 resnet34-b627a593 256 224 83.275
resnet50 ResNet50 1 resnet50-0676ba61 256 224 97.781
resnet50 ResNet50 2 resnet50-11ad3fa6 232 224 97.79
resnet101 ResNet101 1 resnet101-63fe2227 256 224 170.511
resnet101 ResNet101 2 resnet101-cd907fc2 232 224 170.53
resnet152 ResNet152 1 resnet152-394f9c45 256 224 230.434
resnet152 ResNet152 2 resnet152-f82ba261 232 224 230.474
squeezenet1_0 SqueezeNet1_0 1 squeezenet1_0-b66bff10 256 224 4.778
squeezenet1_1 SqueezeNet1_1 1 squeezenet1_1-b8a52dc0 256 224 4.729
densenet121 DenseNet121 1 densenet121-a639ec97 256 224 30.845
densenet161 DenseNet161 1 densenet161-8d451a50 256 224 110.369
densenet169 DenseNet169 1 densenet169-b2777c0a 256 224 54.708
densenet201 DenseNet201 1 densenet201-c1103571 256 224 77.373
inception_v3 Inception_V3 1 inception_v3_google-0cc3c7bd 342 299 103.903
"""


def _parse(line: str) -> KnownWeights:
    network, enum, version, file, resize, crop, size = line.split()
    return KnownWeights(
        network,
        f"IMAGENET1K_V{version}",
        f"{enum}_Weights",
        f"{_BASE}{file}.pth",
        int(resize),
        int(crop),
        float(size),
    )


KNOWN_WEIGHTS = tuple(_parse(line) for line in _TABLE.split("\n") if line)

_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_]*(\.(IMAGENET1K_[A-Z0-9_]+|DEFAULT))?")


def find_known(name: str) -> KnownWeights | None:
    """The weights that a name means, or None when it has the form of a path.

    Args:
        name: a network (``"resnet50"``: torchvision's default, its last version), a network with
            a version (``"resnet50.IMAGENET1K_V1"``), or torchvision's full name
            (``"ResNet50_Weights.IMAGENET1K_V2"``, ``"ResNet50_Weights.DEFAULT"``).

    Raises:
        WeightsError: the name has the form of one of these but is not known.
    """
    if not _PLAIN.fullmatch(name):
        return None
    head, _, version = name.partition(".")
    found = [known for known in KNOWN_WEIGHTS if head in (known.network, known.enum)]
    if version not in ("", "DEFAULT"):
        versions = ", ".join(known.version for known in found)
        found = [known for known in found if known.version == version]
        if versions and not found:
            raise WeightsError(f"weights {name!r} are not known; versions of {head}: {versions}")
    if found:
        return found[-1]
    names = list(dict.fromkeys(known.network for known in KNOWN_WEIGHTS))
    close = difflib.get_close_matches(head.lower().removesuffix("_weights"), names, 1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    raise WeightsError(
        f"weights {name!r} are not known; {hint}valid are a path with a folder or an extension, "
        f"{', '.join(names)}, or torchvision's names like 'ResNet50_Weights.IMAGENET1K_V2'"
    )


_OLD_DENSENET = re.compile(
    r"(.*denselayer\d+\.(?:norm|relu|conv))\.([12]\.(?:weight|bias|running_mean|running_var))"
)


def rename_densenet(tensors: dict[str, Any]) -> dict[str, Any]:
    """DenseNet's published files say ``norm.1`` where the networks say ``norm1``.

    Raises:
        WeightsError: both names are there.
    """
    renamed: dict[str, Any] = {}
    for old, tensor in tensors.items():
        match = _OLD_DENSENET.fullmatch(old)
        new = match[1] + match[2] if match else old
        if match and new in tensors:
            raise WeightsError(f"the weights hold both {old!r} and its newer name {new!r}")
        renamed[new] = tensor
    return renamed
