"""``load_weights``, which reads every format and name, and the table of published weights.

Published weights are torchvision's ImageNet weights of the zoo's networks.  Source: the
``*_Weights`` enumerations of torchvision 0.28.  The hexadecimal digits in a file's name are the
first ones of its SHA-256, as PyTorch's hub defines; downloads are checked against them.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import DownloadError, WeightsError
from . import pytorch, safetensors, trained
from ._file import Array, MappedFile, Unread
from ._zip import looks_like_zip
from .pytorch import Key

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
        interpolation: with which an image is resized, ``"bilinear"`` or ``"bicubic"``.
    """

    network: str
    version: str
    enum: str
    url: str
    resize: int
    crop: int
    megabytes: float
    interpolation: str = "bilinear"

    @property
    def name(self) -> str:
        """For example ``ResNet50_Weights.IMAGENET1K_V2``."""
        return f"{self.enum}.{self.version}"

    @property
    def hash_prefix(self) -> str:
        """The first digits of the file's SHA-256."""
        return self.url.rpartition("-")[2].removesuffix(".pth")


# Network, enumeration, version, file, resize, crop, MiB, interpolation if it is not bilinear.  The
# last version of a network is its default, as in torchvision.
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
mobilenet_v2 MobileNet_V2 1 mobilenet_v2-b0353104 256 224 13.555
mobilenet_v2 MobileNet_V2 2 mobilenet_v2-7ebf99e0 232 224 13.598
mobilenet_v3_large MobileNet_V3_Large 1 mobilenet_v3_large-8738ca79 256 224 21.114
mobilenet_v3_large MobileNet_V3_Large 2 mobilenet_v3_large-5c1a4163 232 224 21.107
mobilenet_v3_small MobileNet_V3_Small 1 mobilenet_v3_small-047dcff4 256 224 9.829
efficientnet_b0 EfficientNet_B0 1 efficientnet_b0_rwightman-7f5810bc 256 224 20.451 bicubic
efficientnet_b1 EfficientNet_B1 1 efficientnet_b1_rwightman-bac287d4 256 240 30.134 bicubic
efficientnet_b1 EfficientNet_B1 2 efficientnet_b1-c27df63c 255 240 30.136
efficientnet_b2 EfficientNet_B2 1 efficientnet_b2_rwightman-c35c1473 288 288 35.174 bicubic
efficientnet_b3 EfficientNet_B3 1 efficientnet_b3_rwightman-b3899882 320 300 47.184 bicubic
efficientnet_b4 EfficientNet_B4 1 efficientnet_b4_rwightman-23ab8bcd 384 380 74.489 bicubic
efficientnet_v2_s EfficientNet_V2_S 1 efficientnet_v2_s-dd5fe13b 384 384 82.704
regnet_x_400mf RegNet_X_400MF 1 regnet_x_400mf-adf1edd5 256 224 21.258
regnet_x_400mf RegNet_X_400MF 2 regnet_x_400mf-62229a5f 232 224 21.257
regnet_x_800mf RegNet_X_800MF 1 regnet_x_800mf-ad17e45c 256 224 27.945
regnet_x_800mf RegNet_X_800MF 2 regnet_x_800mf-94a99ebd 232 224 27.945
regnet_y_400mf RegNet_Y_400MF 1 regnet_y_400mf-c65dace8 256 224 16.806
regnet_y_400mf RegNet_Y_400MF 2 regnet_y_400mf-e6988f5f 232 224 16.806
regnet_y_800mf RegNet_Y_800MF 1 regnet_y_800mf-1b27b58c 256 224 24.774
regnet_y_800mf RegNet_Y_800MF 2 regnet_y_800mf-58fc7688 232 224 24.774
shufflenet_v2_x0_5 ShuffleNet_V2_X0_5 1 shufflenetv2_x0.5-f707e7126e 256 224 5.282
shufflenet_v2_x1_0 ShuffleNet_V2_X1_0 1 shufflenetv2_x1-5666bf0f80 256 224 8.791
mnasnet0_5 MNASNet0_5 1 mnasnet0.5_top1_67.823-3ffadce67e 256 224 8.591
mnasnet1_0 MNASNet1_0 1 mnasnet1.0_top1_73.512-f206786ef8 256 224 16.915
convnext_tiny ConvNeXt_Tiny 1 convnext_tiny-983f1562 236 224 109.119
convnext_small ConvNeXt_Small 1 convnext_small-0c510722 230 224 191.703
resnext50_32x4d ResNeXt50_32X4D 1 resnext50_32x4d-7cdf4587 256 224 95.789
resnext50_32x4d ResNeXt50_32X4D 2 resnext50_32x4d-1a0047aa 232 224 95.833
resnext101_32x8d ResNeXt101_32X8D 1 resnext101_32x8d-8ba56ff5 256 224 339.586
resnext101_32x8d ResNeXt101_32X8D 2 resnext101_32x8d-110c445d 232 224 339.673
wide_resnet50_2 Wide_ResNet50_2 1 wide_resnet50_2-95faca4d 256 224 131.82
wide_resnet50_2 Wide_ResNet50_2 2 wide_resnet50_2-9ba9bcbe 232 224 263.124
vit_b_16 ViT_B_16 1 vit_b_16-c867db91 256 224 330.285
"""


def _parse(line: str) -> KnownWeights:
    network, enum, version, file, resize, crop, size, *interpolation = line.split()
    return KnownWeights(
        network,
        f"IMAGENET1K_V{version}",
        f"{enum}_Weights",
        f"{_BASE}{file}.pth",
        int(resize),
        int(crop),
        float(size),
        *interpolation,
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
    matches = [known for known in KNOWN_WEIGHTS if head in (known.network, known.enum)]
    if version not in ("", "DEFAULT"):
        versions = ", ".join(known.version for known in matches)
        matches = [known for known in matches if known.version == version]
        if versions and not matches:
            raise WeightsError(f"weights {name!r} are not known; versions of {head}: {versions}")
    if matches:
        return matches[-1]
    names = list(dict.fromkeys(known.network for known in KNOWN_WEIGHTS))
    close = difflib.get_close_matches(head.lower().removesuffix("_weights"), names, 1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    raise WeightsError(
        f"weights {name!r} are not known; {hint}valid are a path with a folder or an extension, "
        f"{', '.join(names)}, or torchvision's names like 'ResNet50_Weights.IMAGENET1K_V2'"
    )


# Patterns of parameter names in published files, and the networks' names for them.
_OLD_NAMES = (
    (
        re.compile(
            r"(.*denselayer\d+\.(?:norm|relu|conv))\."
            r"([12]\.(?:weight|bias|running_mean|running_var))"
        ),
        r"\1\2",
    ),
    (re.compile(r"(.*encoder_layer_\d+\.mlp\.)linear_1(\.(?:weight|bias))"), r"\g<1>0\2"),
    (re.compile(r"(.*encoder_layer_\d+\.mlp\.)linear_2(\.(?:weight|bias))"), r"\g<1>3\2"),
)


def rename_old(tensors: dict[str, Any]) -> dict[str, Any]:
    """Renames the tensors of published files as the networks name them: ``norm.1`` of DenseNets
    becomes ``norm1``, and ``linear_1`` of vision transformers becomes ``0``.

    Raises:
        WeightsError: both names are there.
    """
    renamed: dict[str, Any] = {}
    for old, tensor in tensors.items():
        matches = ((pattern.fullmatch(old), newer) for pattern, newer in _OLD_NAMES)
        new = next((match.expand(newer) for match, newer in matches if match), old)
        if new != old and new in tensors:
            raise WeightsError(f"the weights hold both {old!r} and its newer name {new!r}")
        renamed[new] = tensor
    return renamed


def load_weights(
    source: str | os.PathLike[str],
    *,
    key: str | Sequence[str] | None = None,
    copy: bool = False,
    progress: bool | None = None,
) -> dict[str, Array]:
    """Reads weights from a file, or torchvision's from the cache or the network.

    For example::

        net.load_state_dict(md.load_weights("resnet50"))
        net.load_state_dict(md.load_weights("checkpoint.pth", key="state_dict"))

    The format is told from the content: safetensors, or what ``torch.save`` writes, now (zip) and
    before PyTorch 1.6.  Nothing in a file is ever executed.

    Args:
        source: a path, or a name of torchvision's ImageNet weights: ``"resnet50"`` (its default,
            the newest), ``"resnet50.IMAGENET1K_V1"`` or ``"ResNet50_Weights.IMAGENET1K_V2"``.
            A string without folder and extension is a name; ``"./resnet50"`` is a path.
        key: the entry that holds the state dict, in a checkpoint that is a dict of several things;
            several of them for a dict within a dict.  Other entries may hold anything: they are
            not read.  Of a checkpoint of :class:`~minidnn.Trainer` parameters alone are given:
            "parameters" are the last ones, and "average" their moving averages, which None gives
            with a warning that says so, if there are any.
        copy: gives writable arrays with memory of their own.  Otherwise they are read-only views
            of the mapped file, read when they are used; such a file must not be changed in place.
        progress: shows a bar while downloading; None means: when there is a terminal.

    Returns:
        The tensors by name, in the file's order: float64, float32, float16, int64, int32, int16,
        int8, uint8 or bool; bfloat16 as float32, which holds each of its values exactly.  Old names
        of DenseNet's parameters are replaced by torchvision's.  In the place of a tensor of another
        dtype (float8, complex, ...) or kind (sparse, quantized) stands an
        :class:`~minidnn.weights.Unread`, which has its dtype and shape and becomes a WeightsError
        where an array is made of it.

    Raises:
        WeightsError: neither a path nor a known name; a file that is missing, damaged, hostile
            or of another kind.
        DownloadError: the file could not be fetched, or is not what was announced.

    >>> md.save_weights(net.state_dict(), "weights.safetensors")
    >>> net.load_state_dict(md.load_weights("weights.safetensors"))
    """
    if not isinstance(source, (str, os.PathLike)):
        raise WeightsError(
            f"source={source!r:.80} is a {type(source).__name__}; valid are a path and a name of "
            "published weights"
        )
    path = Path(source)
    known = find_known(source) if isinstance(source, str) else None
    if known is not None:
        from .download import fetch  # imports HTTP and TLS, which files do not need

        try:
            path = fetch(known.url, known.hash_prefix, progress=progress)
        except DownloadError as error:
            raise DownloadError(
                f"{error}\n  (instead of {source!r}, the path of a file with weights is valid, too)"
            ) from error
    tensors = rename_old(_read(MappedFile(path), key))
    if copy:
        return {name: _copied(tensor) for name, tensor in tensors.items()}
    return tensors


def _copied(tensor: Any) -> Any:
    return tensor if isinstance(tensor, Unread) else np.array(tensor)


def _read(file: MappedFile, key: Key) -> dict[str, Any]:
    if looks_like_zip(file):
        return pytorch.read_zip(file, key)
    if pytorch.looks_like_legacy(file):
        return pytorch.read_legacy(file, key)
    if safetensors.looks_like_safetensors(file):
        if trained.KEY in safetensors.read_metadata(file):
            return trained.parameters_in(file.path, safetensors.read_safetensors(file), key)
        if key is not None:
            raise file.error(f"is a safetensors file, which has no entry key={key!r}")
        return safetensors.read_safetensors(file)
    begin = file.data[:512]
    what = other_format(begin) or f"begins with {begin[:8]!r}, which is no format that is known"
    raise file.error(f"{what}; valid are safetensors files and what torch.save writes")


def other_format(begin: bytes) -> str | None:
    """What a file of an unsupported format seems to be, judged by its first bytes, as the beginning
    of an error message; None if that is unknown."""
    if not begin:
        return "is empty"
    if begin[257:262] == b"ustar":
        return "is a tar archive of PyTorch before 0.1.10: save it again with a newer torch.save"
    if begin.lstrip()[:1] == b"<":
        return "is an HTML or XML page, perhaps an error message of the server it came from"
    if begin.startswith(b"version https://git-lfs"):
        return "is a Git LFS pointer: fetch the file itself with 'git lfs pull'"
    if begin.startswith(b"\x89HDF"):
        return "is an HDF5 file"
    if begin[:1] == b"\x80":
        return "is a pickle that torch.save did not write"
    return None
