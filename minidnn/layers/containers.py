"""Layers made of layers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from minidnn._habits import instead_of_layer
from minidnn.errors import GraphError
from minidnn.layers.inputs import Declared
from minidnn.layers.layer import Layer

__all__ = ["LayerList", "Sequential"]


def _check(owner: str, name: str, layer: Any) -> Layer:
    if not isinstance(layer, Layer):
        raise GraphError(
            f"{owner}: entry {name!r} is {layer!r:.80} ({type(layer).__name__}); valid are layers"
            f"{instead_of_layer(layer)}"
        )
    return layer


class LayerList(Layer):
    """Layers kept in order under the names "0", "1", ...; calling them is up to their owner.

    Args:
        layers: any layers.

    >>> class Branches(Layer):
    ...     def __init__(self, *bodies):
    ...         self.bodies = LayerList(*bodies)
    ...     def forward(self, x):
    ...         for body in self.bodies:
    ...             x = x + body(x)
    ...         return x
    """

    def __init__(self, *layers: Layer) -> None:
        for layer in layers:
            self.append(layer)

    def append(self, layer: Layer) -> LayerList:
        name = str(len(self))
        if hasattr(self, name):
            raise GraphError(f"{type(self).__name__}: the name {name!r} of the new layer is taken")
        setattr(self, name, _check(type(self).__name__, name, layer))
        return self

    def __iter__(self) -> Iterator[Layer]:
        return (layer for _, layer in self.children())

    def __len__(self) -> int:
        return sum(1 for _ in self.children())

    def __getitem__(self, index: int) -> Layer:
        layers = list(self)
        if type(index) is not int or not -len(layers) <= index < len(layers):
            raise GraphError(
                f"{type(self).__name__}: index {index!r}; valid is an int from {-len(layers)} to "
                f"{len(layers) - 1}, as it has {len(layers)} layers"
            )
        return layers[index]


class Sequential(LayerList):
    """Calls its layers one after another.

    Args:
        layers: layers, or one dict of named layers, as ``torch.nn.Sequential`` takes them.

    Raises:
        GraphError: an argument is no layer.

    >>> net = Sequential(Conv2d(3, 8, 3), ReLU())
    >>> named = Sequential({"conv": Conv2d(3, 8, 3), "relu": ReLU()})
    """

    def __init__(self, *layers: Layer | Mapping[str, Layer]) -> None:
        if len(layers) == 1 and isinstance(layers[0], Mapping):
            for name, layer in layers[0].items():
                valid = isinstance(name, str) and name and "." not in name
                if not valid or hasattr(type(self), name) or name.startswith("_"):
                    raise GraphError(
                        f"Sequential: name {name!r}; valid is a non-empty name without dots that "
                        "is no attribute of Sequential and begins with no underscore"
                    )
                setattr(self, name, _check("Sequential", name, layer))
        else:
            super().__init__(*layers)  # type: ignore[arg-type]

    def _declared_inputs(self) -> Declared | None:
        first = next(iter(self), None)
        return None if first is None else first._declared_inputs()

    def forward(self, x: Any) -> Any:
        for layer in self:
            x = layer(x)
        return x
