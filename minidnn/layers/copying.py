"""Copies and pickles of layers: what can be pickled, and what to write instead of what cannot."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import partial
from types import FunctionType, ModuleType
from typing import Any

from minidnn.errors import UnsupportedError


def importable(value: Any) -> bool:
    """Whether pickle finds a function or a class again by its name; other things it need not.

    Of a partial function it is that of the function itself.
    """
    while isinstance(value, partial):
        value = value.func
    if not isinstance(value, (FunctionType, type)):
        return True
    found: Any = sys.modules.get(value.__module__)
    for name in value.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is value


def check_picklable(layer: Any) -> None:
    """UnsupportedError that names the class or the attribute for which a layer cannot be pickled.

    What lies deeper in attributes is left to pickle itself.
    """
    kind = type(layer)
    if not importable(kind):
        raise UnsupportedError(
            f"{kind.__name__} cannot be pickled, as pickle looks for the class "
            f"{kind.__qualname__!r} in the module {kind.__module__!r}, where it is not; valid is a "
            "class at the top of a module, or minidnn.save_graph(network, path, shape)"
        )
    for name, value in vars(layer).items():
        if isinstance(value, ModuleType) or not importable(value):
            raise UnsupportedError(
                f"{kind.__name__}.{name} = {value!r:.80} cannot be pickled; valid is a function or "
                "a class at the top of a module, or minidnn.save_graph(network, path, shape)"
            )


def set_state(layer: Any, state: Mapping[str, Any]) -> None:
    """Gives a layer that was made without ``__init__`` what its ``__getstate__`` gave."""
    if hasattr(type(layer), "__setstate__"):
        layer.__setstate__(state)
    else:
        vars(layer).update(state)
