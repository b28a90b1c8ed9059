"""The zoo: networks by name, installed as ``minidnn.models``.

    from minidnn import models
    net = models.resnet50()
    net = models.get_model("resnet50", weights="DEFAULT")   # by a name that a user typed

Parameter names and shapes are torchvision's.  Every network has ``input_shape``: the (channels,
rows, columns) that it was made for.  The file of a network is imported when the network is first
asked for, and each file is also a script: ``python -m minidnn.models.resnet --help``.
"""

import sys
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

from minidnn.errors import GraphError, did_you_mean

# Network -> the file of this folder that defines a function of that name.
_CLASSIC = {
    "alexnet": "alexnet",
    "vgg11": "vgg",
    "vgg11_bn": "vgg",
    "vgg13": "vgg",
    "vgg13_bn": "vgg",
    "vgg16": "vgg",
    "vgg16_bn": "vgg",
    "vgg19": "vgg",
    "vgg19_bn": "vgg",
    "resnet18": "resnet",
    "resnet34": "resnet",
    "resnet50": "resnet",
    "resnet101": "resnet",
    "resnet152": "resnet",
    "squeezenet1_0": "squeezenet",
    "squeezenet1_1": "squeezenet",
    "densenet121": "densenet",
    "densenet161": "densenet",
    "densenet169": "densenet",
    "densenet201": "densenet",
    "inception_v3": "inception",
}
_LATER = {
    "mobilenet_v2": "mobilenetv2",
    "mobilenet_v3_large": "mobilenetv3",
    "mobilenet_v3_small": "mobilenetv3",
    "efficientnet_b0": "efficientnet",
    "efficientnet_b1": "efficientnet",
    "efficientnet_b2": "efficientnet",
    "efficientnet_b3": "efficientnet",
    "efficientnet_b4": "efficientnet",
    "efficientnet_v2_s": "efficientnet",
    "regnet_x_400mf": "regnet",
    "regnet_x_800mf": "regnet",
    "regnet_y_400mf": "regnet",
    "regnet_y_800mf": "regnet",
    "shufflenet_v2_x0_5": "shufflenetv2",
    "shufflenet_v2_x1_0": "shufflenetv2",
    "mnasnet0_5": "mnasnet",
    "mnasnet1_0": "mnasnet",
    "convnext_tiny": "convnext",
    "convnext_small": "convnext",
    "resnext50_32x4d": "resnext",
    "resnext101_32x8d": "resnext",
    "wide_resnet50_2": "resnext",
    "vit_b_16": "vit",
}
_NETWORKS = {"digits": "digits"} | _CLASSIC | _LATER

#: torchvision's networks of the paper on depth-first fusion, of which results are compared.
CLASSIC = tuple(_CLASSIC)

__all__ = ["CLASSIC", "get_model", "list_models", *_NETWORKS]


def list_models() -> list[str]:
    """The names that :func:`get_model` takes.

    Returns:
        Their names, in order.

    >>> "resnet18" in models.list_models()
    """
    return list(_NETWORKS)


def get_model(name: str, **options: Any) -> Any:
    """The network of that name.

    Args:
        name: one of :func:`list_models`.
        options: of the function of that name.  torchvision's networks take ``weights`` (None for
            random ones, a path, or a name as :func:`minidnn.load_weights` takes it: "DEFAULT" and
            "IMAGENET1K_V1" are those of the network), ``num_classes`` (1000) and ``seed`` (0), from
            which random weights are drawn.

    Returns:
        A layer; its ``input_shape`` is that of one image.

    Raises:
        GraphError: there is no such network; it names what there is.

    >>> net = models.get_model("digits", weights="DEFAULT")
    >>> print(net.input_shape)
    """
    return _builder(name)(**options)


def _builder(name: str) -> Callable[..., Any]:
    if name not in _NETWORKS:
        hint = did_you_mean(name, _NETWORKS, 3) or ";"
        raise GraphError(f"name={name!r}: no such network{hint} valid are {', '.join(_NETWORKS)}")
    builder: Callable[..., Any] = getattr(import_module(f".{_NETWORKS[name]}", __name__), name)
    return builder


def __getattr__(name: str) -> Callable[..., Any]:
    if name not in _NETWORKS:
        hint = did_you_mean(name, __all__)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")
    return _builder(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Zoo(ModuleType):
    """This package's own class, so that ``models.alexnet`` is always the function.

    Importing the file ``alexnet.py`` binds the module to that name in its package, as for every
    submodule, and would hide the function of the same name.
    """

    def __setattr__(self, name: str, value: object) -> None:
        if isinstance(value, ModuleType) and name in _NETWORKS:
            value = getattr(value, name)
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Zoo
