"""Checks of layers' arguments and inputs that several layers make."""

from __future__ import annotations

from typing import Any

from minidnn.errors import GraphError
from minidnn.graph.ir import Value
from minidnn.graph.plain import plain
from minidnn.graph.trace import current_trace, is_tracing


def check_count(owner: str, name: str, value: Any) -> int:
    """The argument, if it is an int of at least 1."""
    value = plain(value)
    if type(value) is not int or value < 1:
        raise GraphError(f"{owner}: {name}={value!r:.80}; valid is an int of at least 1")
    return value


def check_normalized_shape(owner: str, given: Any) -> tuple[int, ...]:
    """The last sizes of an input, given as a sequence or as the only one."""
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
    """The error of a layer whose input does not fit; it names the layer's place in the network."""
    path = current_trace().path if is_tracing() else ""
    return GraphError(f"node {path!r}: {owner}: {message}" if path else f"{owner}: {message}")


def check_rank(owner: str, x: Any, *ranks: int) -> None:
    """GraphError if a layer's input is no value, or has none of these ranks."""
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


def check_numbers(owner: str, name: str, value: Any, count: int, least: int | None) -> list[int]:
    """An int, which stands for each axis, or so many ints, of at least ``least``."""
    value = plain(value)
    given = [value] * count if type(value) is int else value
    if (
        not isinstance(given, (tuple, list))
        or len(given) != count
        or not all(type(n) is int and (least is None or n >= least) for n in given)
    ):
        bound = "" if least is None else f" of at least {least}"
        many = f" or {count} of them" if count > 1 else ""
        raise GraphError(f"{owner}: {name}={value!r:.80}; valid is an int{bound}{many}")
    return list(given)
