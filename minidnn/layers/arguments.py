"""Checks of arguments that users give to networks and layers.

:func:`named_types` turns the shapes of a network's inputs into names and types.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from minidnn.errors import GraphError
from minidnn.graph.ir import Value
from minidnn.graph.trace import current_trace, is_tracing
from minidnn.graph.types import TensorType, plain

#: One shape, a shape per input, or shapes by the inputs' names; the batch included.
Shapes = Sequence[int] | Sequence[Sequence[int]] | Mapping[str, Sequence[int]]

#: Name (or None), sample shape and dtype of each input, as a network itself declares them.
Declared = tuple[tuple[str | None, tuple[int, ...], str], ...]


def named_types(
    network: str, declared: Declared | None, shapes: Shapes, dtype: str
) -> list[tuple[str, TensorType]]:
    """The name and type of each input of a network, in order.

    GraphError if ``shapes`` is not valid, or does not fit these inputs.

    Args:
        network: the name of the network's class, for errors.
        declared: the inputs that the network declares, if it does.
        shapes: of the inputs, with the batch.
        dtype: of inputs that are not declared.
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
        declaration = declared[i] if declared is not None else (None, None, dtype)
        name = declaration[0] or ("input" if len(listed) == 1 else f"input{i}")
        types.append((name, TensorType(tuple(shape), declaration[2])))
    return types


def _described(shapes: Any) -> str:
    """Describes an argument that is no shape; an array, whose shape was probably meant, by its type
    and shape alone."""
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


def check_count(owner: str, name: str, value: Any) -> int:
    """The argument, if it is an int of at least 1."""
    value = plain(value)
    if type(value) is not int or value < 1:
        raise GraphError(f"{owner}: {name}={value!r:.80}; valid is an int of at least 1")
    return value


def check_normalized_shape(owner: str, given: Any) -> tuple[int, ...]:
    """The extents of an input's last axes, from a sequence or from one int."""
    value = plain(given)
    sizes: Any = (value,) if isinstance(value, int) else value
    valid = isinstance(sizes, (tuple, list)) and sizes
    if not valid or not all(type(size) is int and size >= 1 for size in sizes):
        raise GraphError(
            f"{owner}: normalized_shape={given!r:.80}; valid is an int of at least 1, or a "
            "sequence of them"
        )
    return tuple(sizes)


def misfit(owner: str, message: str) -> GraphError:
    """The error of a layer whose input does not fit; it names the layer's path in the network."""
    path = current_trace().path if is_tracing() else ""
    return GraphError(f"node {path!r}: {owner}: {message}" if path else f"{owner}: {message}")


def check_rank(owner: str, x: Any, *ranks: int) -> None:
    """GraphError unless a layer's input is a value of one of these ranks."""
    valid = " or ".join(map(str, ranks))
    if not isinstance(x, Value):
        raise misfit(
            owner,
            f"input is {x!r:.80} ({type(x).__name__}); valid are symbolic values of rank {valid}",
        )
    if x.type.rank not in ranks:
        raise misfit(
            owner, f"input has shape {x.shape} of rank {x.type.rank}; valid is rank {valid}"
        )


def check_channels(owner: str, x: Value, channels: int) -> None:
    """GraphError unless axis 1 of a layer's input has this size."""
    if x.shape[1] != channels:
        raise misfit(
            owner, f"input has shape {x.shape} with {x.shape[1]} channels; valid are {channels}"
        )


def check_numbers(owner: str, name: str, value: Any, count: int, least: int | None) -> list[int]:
    """``count`` ints of at least ``least``, from a sequence or from one int for all."""
    value = plain(value)
    numbers = [value] * count if type(value) is int else value
    if (
        not isinstance(numbers, (tuple, list))
        or len(numbers) != count
        or not all(type(n) is int and (least is None or n >= least) for n in numbers)
    ):
        bound = "" if least is None else f" of at least {least}"
        many = f" or {count} of them" if count > 1 else ""
        raise GraphError(f"{owner}: {name}={value!r:.80}; valid is an int{bound}{many}")
    return list(numbers)
