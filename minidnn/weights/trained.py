"""What is in a trainer's checkpoint: parameters, and by other names what training keeps beside."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from minidnn.errors import GraphError, MiniDNNWarning, WeightsError

_T = TypeVar("_T")

#: The entry of a checkpoint's metadata that has all but the states.
KEY = "minidnn.trainer"
#: What :func:`parameters_in` gives by name.
PARTS = ("average", "parameters")

#: Between the kind of a state and the name of its parameter.  No path of a layer has it.
_MARK = "@"
#: States of the graph itself, from which dropout draws.
_OWN = ("random.seed", "random.step")


def state_name(kind: str, parameter: str = "") -> str:
    """The name of what is kept of a kind for a parameter, such as its momentum."""
    return f"{kind}{_MARK}{parameter}"


def is_kept_beside(name: str) -> bool:
    """Whether a state is none of the network's parameters and statistics."""
    return _MARK in name or name in _OWN


def check_names(network: str, names: Iterable[str]) -> None:
    """GraphError if a parameter has a name that training needs for itself."""
    for name in names:
        if is_kept_beside(name):
            raise GraphError(
                f"{network} has a parameter {name!r}; valid for training is a name without "
                f"{_MARK!r} that is none of {', '.join(_OWN)}, which it needs for itself"
            )


def renamed(states: Mapping[str, _T]) -> dict[str, _T]:
    """States of a checkpoint of format 2, where a dot stood in the place of the mark."""

    def now(name: str) -> str:
        kind, dot, rest = name.partition(".")
        if kind == "loss_scale":
            return state_name(kind, rest)
        return state_name(kind, rest) if dot and rest in states else name

    return {now(name): state for name, state in states.items()}


def parameters_in(path: Any, states: Mapping[str, _T], part: Any = None) -> dict[str, _T]:
    """The network's parameters and statistics among the states of a checkpoint.

    By default, those of which there is a moving average are given as that, with a warning that says
    so.  ``part`` asks for one of :data:`PARTS`.  WeightsError if it is not there.
    """
    states = states if any(_MARK in name for name in states) else renamed(states)
    own = {name: state for name, state in states.items() if not is_kept_beside(name)}
    averages = {
        name: states[state_name("average", name)]
        for name in own
        if state_name("average", name) in states
    }
    if part is not None and (part not in PARTS or (part == "average" and not averages)):
        valid = PARTS if averages else PARTS[1:]
        raise WeightsError(
            f"{path}: key={part!r:.80}; valid for this checkpoint of a trainer are "
            f"{', '.join(map(repr, valid))} and None"
        )
    if averages and part is None:
        warnings.warn(
            f"{path}: this checkpoint has a moving average of {len(averages)} parameters, which is "
            "given; key='average' says the same, and key='parameters' asks for the last ones",
            MiniDNNWarning,
            stacklevel=4,
        )
    return own if part == "parameters" else {**own, **averages}
