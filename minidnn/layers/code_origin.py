"""Whose code makes a network's graph: layers of the user's may look at sizes, minidnn's do not."""

from __future__ import annotations

from functools import partial
from typing import Any

from minidnn.layers.functional import Model
from minidnn.layers.layer import Layer

__all__ = ["has_user_code"]

#: Packages whose layers make the same nodes whatever the size of the batch is.
_OURS = ("minidnn.layers.", "minidnn.models.")


def has_user_code(network: Layer) -> bool:
    """Whether code that is not minidnn's makes nodes of a network's graph."""
    return any(_is_others(layer) for _, layer in network.named_layers())


def _is_others(layer: Layer) -> bool:
    kinds = type(layer).__mro__[: type(layer).__mro__.index(Layer)]
    made = [kind.__module__ for kind in kinds] + [type(layer).forward.__module__]
    if "forward" in vars(layer) or not all(f"{each}.".startswith(_OURS) for each in made):
        return True
    return isinstance(layer, Model) and not all(map(_is_ours, layer.functions))


def _is_ours(function: Any) -> bool:
    """Whether what a model calls is a layer, of which is asked by itself, or minidnn's."""
    if isinstance(function, partial):  # a layer with options, or a function that waited for values
        function = function.args[0]
    return isinstance(function, Layer) or f"{function.__module__}.".startswith("minidnn.")
