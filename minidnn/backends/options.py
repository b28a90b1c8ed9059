"""Checks of the options of ``md.compile`` that several backends take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from minidnn.errors import GraphError, UnsupportedError

ACCURACIES = ("normal", "direct", "high")
"""Values of the option ``accuracy``: any algorithm may be used; none that rounds more than a sum of
products; sums are added so that they round less, where a device has such kernels."""

TUNES = ("heuristic", "quick", "exhaustive")
"""Values of the option ``tune``: nothing is measured; the candidates that are likely to be fastest
are measured; all candidates are."""


def check_options(device: str, options: Mapping[str, Any], valid: Sequence[str]) -> None:
    """UnsupportedError if an option is none of ``valid``, the options of the device."""
    unknown = sorted(set(options) - set(valid))
    if unknown:
        verb = "is" if len(valid) == 1 else "are"
        raise UnsupportedError(
            f"option {unknown[0]!r} of device {device!r}; valid {verb} {_listed(valid)}"
        )


def memory_limit_option(options: Mapping[str, Any]) -> int | None:
    """The option ``memory_limit``; GraphError if it is no number of bytes."""
    limit = options.get("memory_limit")
    if limit is not None and (type(limit) is not int or limit < 0):
        raise GraphError(f"memory_limit={limit!r}; valid is a number of bytes, or None")
    return limit


def accuracy_option(options: Mapping[str, Any]) -> str:
    """The option ``accuracy``; GraphError if it is none of :data:`ACCURACIES`."""
    accuracy = options.get("accuracy", "normal")
    if accuracy not in ACCURACIES:
        raise GraphError(f"accuracy={accuracy!r}; valid are {_listed(ACCURACIES)}")
    return str(accuracy)


def tune_option(options: Mapping[str, Any], default: str) -> str:
    """The option ``tune``, of :data:`TUNES`; True is "quick" and False is "heuristic".

    Raises:
        GraphError: it is something else.
    """
    tune = options.get("tune", default)
    if type(tune) is bool:
        return "quick" if tune else "heuristic"
    if tune not in TUNES:
        raise GraphError(f"tune={tune!r}; valid are True, False, {_listed(TUNES)}")
    return str(tune)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))


def any_size_option(options: Mapping[str, Any]) -> bool:
    """Whether kernels are to serve any spatial size; GraphError if the option is no bool."""
    any_size = options.get("any_size", False)
    if type(any_size) is not bool:
        raise GraphError(f"any_size={any_size!r:.80}; valid are True and False")
    return any_size
