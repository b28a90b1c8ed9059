"""Containers: layers that hold other layers, in order or by name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from minidnn._habits import instead_of_layer
from minidnn.errors import GraphError
from minidnn.layers.arguments import Declared
from minidnn.layers.layer import Layer

__all__ = ["LayerList", "ModuleDict", "ModuleList", "Sequential"]


def _check(owner: str, name: str, layer: Any) -> Layer:
    """The entry, if it is a layer; else GraphError."""
    if not isinstance(layer, Layer):
        raise GraphError(
            f"{owner}: entry {name!r} is {layer!r:.80} ({type(layer).__name__}); valid are layers"
            f"{instead_of_layer(layer)}"
        )
    return layer


def _set(owner: Layer, title: str, name: Any, layer: Any) -> None:
    """Sets a layer as an attribute of its container; GraphError if name or layer is not valid."""
    valid = isinstance(name, str) and name and "." not in name
    if not valid or hasattr(type(owner), name) or name.startswith("_"):
        raise GraphError(
            f"{title}: name {name!r}; valid is a non-empty name without dots that is no attribute "
            f"of {title} and begins with no underscore"
        )
    setattr(owner, name, _check(title, name, layer))


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
                _set(self, "Sequential", name, layer)
        else:
            super().__init__(*layers)  # type: ignore[arg-type]

    def _declared_inputs(self) -> Declared | None:
        first = next(iter(self), None)
        return None if first is None else first._declared_inputs()

    def forward(self, x: Any) -> Any:
        for layer in self:
            x = layer(x)
        return x


class ModuleList(LayerList):
    """:class:`LayerList` with PyTorch's argument.

    Args:
        modules: an iterable of layers, or None.

    Raises:
        GraphError: an entry is no layer.

    >>> class Branches(Layer):
    ...     def __init__(self):
    ...         self.bodies = ModuleList([Conv2d(3, 3, 1), Conv2d(3, 3, 1)])
    ...     def forward(self, x):
    ...         for body in self.bodies:
    ...             x = x + body(x)
    ...         return x
    """

    def __init__(self, modules: Iterable[Layer] | None = None) -> None:
        if isinstance(modules, Layer):
            raise GraphError(f"ModuleList: modules={modules!r:.80}; valid is a list of layers")
        super().__init__(*(modules or ()))

    def extend(self, modules: Iterable[Layer]) -> ModuleList:
        for layer in modules:
            self.append(layer)
        return self


class ModuleDict(Layer):
    """Layers under names, in order; calling them is up to their owner.

    Args:
        modules: a mapping from names to layers, or pairs of them, or None.

    Raises:
        GraphError: a name is not valid, or an entry is no layer.

    >>> class Choice(Layer):
    ...     def __init__(self, kind):
    ...         self.kinds, self.kind = ModuleDict({"relu": ReLU(), "tanh": Tanh()}), kind
    ...     def forward(self, x):
    ...         return self.kinds[self.kind](x)
    """

    def __init__(
        self, modules: Mapping[str, Layer] | Iterable[tuple[str, Layer]] | None = None
    ) -> None:
        self.update(modules or {})

    def update(self, modules: Mapping[str, Layer] | Iterable[tuple[str, Layer]]) -> None:
        for name, layer in dict(modules).items():
            self[name] = layer

    def __setitem__(self, name: str, layer: Layer) -> None:
        _set(self, "ModuleDict", name, layer)

    def __getitem__(self, name: str) -> Layer:
        layers = dict(self.children())
        if name not in layers:
            raise GraphError(f"ModuleDict: no layer {name!r}; valid are {', '.join(layers)}")
        return layers[name]

    def __delitem__(self, name: str) -> None:
        self[name]
        delattr(self, name)

    def __contains__(self, name: object) -> bool:
        return name in dict(self.children())

    def __iter__(self) -> Iterator[str]:
        return iter(dict(self.children()))

    def __len__(self) -> int:
        return len(dict(self.children()))

    def keys(self) -> Iterable[str]:
        return dict(self.children()).keys()

    def values(self) -> Iterable[Layer]:
        return dict(self.children()).values()

    def items(self) -> Iterable[tuple[str, Layer]]:
        return dict(self.children()).items()
