"""Named sizes: stand in a shape for the size of an axis that is known only in a call.

A *template* is the shape of an input with named sizes; most functions here check and convert
between shapes, templates and sizes by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from minidnn.errors import GraphError
from minidnn.graph.types import plain
from minidnn.runtime.interface import Endpoint

__all__ = [
    "Dim",
    "NamedShapes",
    "Template",
    "bound",
    "check_inputs",
    "dims_of",
    "sizes_of",
    "taken_options",
    "templates_of",
]


@dataclass(frozen=True)
class Dim:
    """A size that has a name, in a shape that :func:`minidnn.compile` takes.

    Axes of one name have one size in a call.

    Args:
        name: what messages and :meth:`minidnn.dynamic.executable.DynamicExecutable.warm` call it.
        least, most: the range of its sizes, both included.
        multiple: what all of them are multiples of.

    Raises:
        GraphError: an argument is not legal, or no multiple lies in the range.

    >>> shape = (md.Dim("batch", 1, 64), 3, md.Dim("height", 32, 1024, multiple=32), 224)
    """

    name: str
    least: int
    most: int
    multiple: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise GraphError(f"Dim: name={self.name!r:.80}; valid is a text that is not empty")
        for what in ("least", "most", "multiple"):
            size = plain(getattr(self, what))
            if type(size) is not int or size < 1:
                raise GraphError(
                    f"Dim {self.name!r}: {what}={size!r:.80}; valid is an int of at least 1"
                )
            object.__setattr__(self, what, size)
        if self.least > self.most:
            raise GraphError(
                f"Dim {self.name!r}: least={self.least}, most={self.most}; valid is a range"
            )
        if self.least % self.multiple or self.most % self.multiple:
            raise GraphError(
                f"Dim {self.name!r}: least={self.least}, most={self.most}, multiple="
                f"{self.multiple}; valid are ends that are multiples themselves"
            )

    def __str__(self) -> str:
        by = f" by {self.multiple}" if self.multiple > 1 else ""
        return f"{self.name} {self.least} to {self.most}{by}"

    @property
    def valid(self) -> str:
        """The sizes that are valid, as a text for messages."""
        by = f" that are multiples of {self.multiple}" if self.multiple > 1 else ""
        return f"{self.least} to {self.most}{by}"

    @property
    def halfway(self) -> int:
        """A valid size about halfway between the least and the most."""
        steps = (self.most - self.least) // self.multiple
        return self.least + steps // 2 * self.multiple

    def up_to(self, most: int) -> int:
        """The largest valid size that is at most ``most``; the least size if there is none."""
        return max(self.least, min(self.most, most) // self.multiple * self.multiple)

    def takes(self, size: Any) -> bool:
        """Whether ``size`` is valid."""
        return type(size) is int and self.least <= size <= self.most and size % self.multiple == 0


#: Shapes as ``compile`` takes them.
NamedShapes = (
    Sequence[int | Dim] | Sequence[Sequence[int | Dim]] | Mapping[str, Sequence[int | Dim]]
)

#: The shape of an input: numbers, and named sizes.
Template = tuple[int | Dim, ...]


def _found(shapes: Any) -> Iterator[Dim]:
    """All named sizes in shapes, in order, repeated where they are."""
    if isinstance(shapes, Dim):
        yield shapes
    elif isinstance(shapes, Mapping):
        for shape in shapes.values():
            yield from _found(shape)
    elif isinstance(shapes, (tuple, list)):
        for each in shapes:
            yield from _found(each)


def dims_of(shapes: Any) -> tuple[Dim, ...]:
    """The named sizes in shapes as ``compile`` takes them, each once, in order of appearance.

    GraphError if two of one name are not the same.
    """
    dims: dict[str, Dim] = {}
    for dim in _found(shapes):
        if dims.setdefault(dim.name, dim) != dim:
            raise GraphError(
                f"Dim {dim.name!r} is given as {dims[dim.name].valid}, and as {dim.valid}; valid "
                "is one range for one name"
            )
    return tuple(dims.values())


def taken_options(options: dict[str, Any]) -> dict[str, Any]:
    """Removes the options for named sizes (keep, keep_bytes, background) and returns them, see
    :func:`minidnn.compile`; GraphError if one is not valid."""
    keep, most_bytes = options.pop("keep", 8), options.pop("keep_bytes", None)
    if type(keep) is not int or keep < 1:
        raise GraphError(f"keep={keep!r:.80}; valid is an int of at least 1")
    if most_bytes is not None and (type(most_bytes) is not int or most_bytes < 1):
        raise GraphError(f"keep_bytes={most_bytes!r:.80}; valid is an int of at least 1, or None")
    background = options.pop("background", True)
    if type(background) is not bool:
        raise GraphError(f"background={background!r:.80}; valid are True and False")
    return {"keep": keep, "keep_bytes": most_bytes, "background": background}


def bound(shapes: Any, sizes: Mapping[str, int]) -> Any:
    """The shapes with numbers in place of named sizes."""
    if isinstance(shapes, Dim):
        return sizes[shapes.name]
    if isinstance(shapes, Mapping):
        return {name: bound(shape, sizes) for name, shape in shapes.items()}
    if isinstance(shapes, (tuple, list)):
        return tuple(bound(each, sizes) for each in shapes)
    return shapes


def templates_of(
    shapes: Any, small: Sequence[Endpoint], large: Sequence[Endpoint]
) -> tuple[Template, ...]:
    """The template of each input.

    ``shapes`` are as the caller gave them; ``small`` and ``large`` are the inputs for the least and
    the most sizes.  For an input without a given shape, an axis whose size differs between the two
    has the named size with just these ends.  GraphError if several have.
    """
    names = [each.name for each in small]
    if isinstance(shapes, Mapping):
        given = dict(shapes)
    elif any(isinstance(each, (tuple, list, Mapping)) for each in shapes):
        given = dict(zip(names, shapes, strict=True))
    else:
        given = {names[0]: shapes}
    dims = dims_of(shapes)
    templates = []
    for least, most in zip(small, large, strict=True):
        template = given.get(least.name)
        if template is None:
            axes = zip(least.shape, most.shape, strict=True)
            template = [_named(least.name, dims, axis, *pair) for axis, pair in enumerate(axes)]
        templates.append(tuple(template))
    return tuple(templates)


def _named(name: str, dims: Sequence[Dim], axis: int, least: int, most: int) -> int | Dim:
    """The size of an axis, or the named size with these ends if they differ."""
    if least == most:
        return least
    fits = [dim for dim in dims if (dim.least, dim.most) == (least, most)]
    if len(fits) != 1:
        raise GraphError(
            f"axis {axis} of input {name!r} changes with the named sizes, and which of them it is "
            f"is not said; valid is a shape for {name!r}, too"
        )
    return fits[0]


def sizes_of(
    inputs: Sequence[Endpoint], templates: Sequence[Template], shapes: Sequence[tuple[int, ...]]
) -> dict[str, int]:
    """The size of each name, by the shapes of arrays; GraphError if these do not fit."""
    sizes: dict[str, int] = {}
    first: dict[str, str] = {}
    for value, template, shape in zip(inputs, templates, shapes, strict=True):
        what = f"input {value.name!r} has shape {tuple(shape)}"
        if len(shape) != len(template):
            raise GraphError(
                f"{what} of rank {len(shape)}; valid is rank {len(template)}, {written(template)}"
            )
        for axis, (size, own) in enumerate(zip(shape, template, strict=True)):
            if not isinstance(own, Dim):
                if size != own:
                    raise GraphError(
                        f"{what}, whose axis {axis} is {size}; valid is {own}, as in "
                        f"{written(template)}"
                    )
                continue
            if not own.takes(size):
                raise GraphError(
                    f"{what}, whose axis {axis}, {own.name!r}, is {size}; valid are {own.valid}"
                )
            place = f"axis {axis} of input {value.name!r}"
            if sizes.setdefault(own.name, size) != size:
                raise GraphError(
                    f"{own.name!r} is {sizes[own.name]} along {first[own.name]} and {size} along "
                    f"{place}; valid is one size for one name"
                )
            first.setdefault(own.name, place)
    return sizes


def check_inputs(dims: Sequence[Dim], sizes: Mapping[str, Any], what: str) -> dict[str, int]:
    """Sizes by name, if there is one for each name and all are valid; GraphError otherwise.

    ``what``: the call that was given them, for the message.
    """
    names = [dim.name for dim in dims]
    if sorted(sizes) != sorted(names):
        raise GraphError(f"{what}: sizes of {sorted(sizes)}; valid are those of exactly {names}")
    checked = {}
    for dim in dims:
        size = plain(sizes[dim.name])
        if not dim.takes(size):
            raise GraphError(f"{what}: {dim.name}={size!r:.80}; valid are {dim.valid}")
        checked[dim.name] = size
    return checked


def written(template: Template) -> str:
    """A shape with its names, as a text for messages."""
    sizes = ", ".join(each.name if isinstance(each, Dim) else str(each) for each in template)
    return f"({sizes}{',' * (len(template) == 1)})"


def written_inputs(
    inputs: Sequence[Endpoint], templates: Sequence[Template], named: bool = False
) -> str:
    """The dtypes and shapes of all inputs, and their names if ``named``, as a text for messages."""
    return ", ".join(
        f"{f'{value.name}: ' if named else ''}{value.dtype}{written(template)}"
        for value, template in zip(inputs, templates, strict=True)
    )
