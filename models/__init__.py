"""The zoo: networks by name, installed as ``minidnn.models``.

    from minidnn import models
    net = models.resnet50()
    net = models.network("resnet50")        # the same, from a name that a user typed

Parameter names and shapes are torchvision's.  The file of a network is imported when the network
is first asked for, and each file is also a script: ``python -m minidnn.models.digits --help``.
"""

import sys
from collections.abc import Callable
from difflib import get_close_matches
from importlib import import_module
from types import ModuleType
from typing import Any

from minidnn.errors import GraphError

# Network -> the file of this folder that defines a function of that name.
_NETWORKS = {
    "digits": "digits",
}

__all__ = ["network", *_NETWORKS]


def network(name: str, **options: Any) -> Any:
    """Build the network called ``name``; ``options`` go to its function.

    Raises GraphError, naming what would be close, when there is no such network.
    """
    return _builder(name)(**options)


def _builder(name: str) -> Callable[..., Any]:
    if name not in _NETWORKS:
        close = get_close_matches(name, _NETWORKS, n=3)
        hint = f"; did you mean {' or '.join(map(repr, close))}?" if close else ""
        raise GraphError(f"name={name!r}: no such network{hint} There are: {', '.join(_NETWORKS)}")
    builder: Callable[..., Any] = getattr(import_module(f".{_NETWORKS[name]}", __name__), name)
    return builder


def __getattr__(name: str) -> Callable[..., Any]:
    if name not in _NETWORKS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
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
