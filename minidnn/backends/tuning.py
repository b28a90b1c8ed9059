"""``tune=``: whether a backend measures what it chooses between."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from minidnn.errors import GraphError

TUNES = ("heuristic", "quick", "exhaustive")
"""Nothing is measured; what is likely to be the fastest is; everything is."""


def tune_option(options: Mapping[str, Any], default: str) -> str:
    """The option ``tune`` of a backend; True is "quick" and False is "heuristic".

    Raises:
        GraphError: it is something else.
    """
    tune = options.get("tune", default)
    if type(tune) is bool:
        return "quick" if tune else "heuristic"
    if tune not in TUNES:
        names = ", ".join(map(repr, TUNES))
        raise GraphError(f"tune={tune!r}; valid are True, False, {names}")
    return str(tune)
