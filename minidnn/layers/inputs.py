"""The inputs of a network: from the shapes that a user gives to names and types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from minidnn.errors import GraphError
from minidnn.graph.plain import plain
from minidnn.graph.types import TensorType

#: One shape, a shape per input, or shapes by the inputs' names; the batch included.
Shapes = Sequence[int] | Sequence[Sequence[int]] | Mapping[str, Sequence[int]]

#: Name (or None), sample shape and dtype of each input, as a network itself declares them.
Declared = tuple[tuple[str | None, tuple[int, ...], str], ...]


def named_types(
    network: str, declared: Declared | None, shapes: Shapes, dtype: str
) -> list[tuple[str, TensorType]]:
    """The name and type of each input of the network of that class, in order.

    ``dtype`` is that of inputs which are not ``declared``.  GraphError if ``shapes`` is none,
    or not for these inputs.
    """
    shapes = plain(shapes)
    if isinstance(shapes, Mapping):
        if declared is None or any(name is None for name, _, _ in declared):
            raise GraphError(
                f"shape={shapes!r} names inputs, but {network} has no named "
                "inputs; give them in the order of forward's arguments"
            )
        names = [str(name) for name, _, _ in declared]
        if sorted(names) != sorted(shapes):
            raise GraphError(f"shape names {sorted(shapes)}; valid is exactly {sorted(names)}")
        listed: list[Any] = [shapes[name] for name in names]
    elif not isinstance(shapes, (tuple, list)):
        raise GraphError(
            f"{_described(shapes)}; valid is a shape, the batch included, such as "
            "(1, 3, 224, 224), a sequence of shapes, or a dict of them by input name"
        )
    elif len(shapes) and not any(isinstance(each, (Sequence, Mapping)) for each in shapes):
        listed = [shapes]  # one shape; whether its sizes are numbers is checked below
    else:
        listed = list(shapes)
    if declared is not None and len(declared) != len(listed):
        raise GraphError(f"shape gives {len(listed)} inputs; the model has {len(declared)}")
    types = []
    for i, shape in enumerate(listed):
        _check_shape(i, shape)
        own = declared[i] if declared is not None else (None, None, dtype)
        name = own[0] or ("input" if len(listed) == 1 else f"input{i}")
        types.append((name, TensorType(tuple(shape), own[2])))
    return types


def _described(shapes: Any) -> str:
    """What was given instead of shapes; an array, of which the shape was probably meant, by its
    type alone."""
    own = getattr(shapes, "shape", None)
    if own is not None:
        return f"shape is a {type(shapes).__name__} of shape {tuple(own)}, which is an array itself"
    return f"shape={shapes!r:.100} ({type(shapes).__name__})"


def _check_shape(index: int, shape: Any) -> None:
    valid = isinstance(shape, Sequence) and len(shape) >= 1
    if not valid or not all(type(size) is int and size >= 1 for size in shape):
        raise GraphError(
            f"input {index}: shape={shape!r:.100}; valid is a sequence of ints of at least 1, "
            "the batch size first"
        )
