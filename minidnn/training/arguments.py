"""Checks of numeric arguments, for losses, optimizers, schedules and the trainer."""

from __future__ import annotations

from math import inf, isfinite
from typing import Any

from minidnn.errors import GraphError
from minidnn.graph.types import plain


def check_number(owner: object, name: str, value: Any, least: float, most: float = inf) -> None:
    """GraphError unless it is a finite number within these bounds.

    The message names the class of ``owner``, or nothing if that is None.
    """
    given = plain(value)
    is_number = isinstance(given, (int, float)) and not isinstance(given, bool) and isfinite(given)
    if not is_number or not least <= given <= most:
        bound = f"of at least {least}" if most == inf else f"from {least} to {most}"
        caller = "" if owner is None else f"{type(owner).__name__}: "
        raise GraphError(f"{caller}{name}={value!r:.80}; valid is a number {bound}")


def check_integer(owner: object, name: str, value: Any, least: int) -> None:
    """GraphError unless it is an integer of at least ``least``."""
    given = plain(value)
    if type(given) is not int or given < least:
        raise GraphError(
            f"{type(owner).__name__}: {name}={value!r:.80}; valid is an int of at least {least}"
        )
