"""The states in a trainer's checkpoint: a network's parameters and statistics, under their own
names, and states of training, such as momenta and moving averages, under names with a mark.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from minidnn.errors import GraphError, MiniDNNWarning, WeightsError

_T = TypeVar("_T")

#: The key in a checkpoint's metadata under which everything but the states is stored.
KEY = "minidnn.trainer"
#: The versions of the parameters that :func:`parameters_in` can return.
PARTS = ("average", "parameters")

#: Separates the kind of a training state from the name of its parameter; layers' paths lack it.
_MARK = "@"
#: States of the graph itself: those of the random number generator of dropout.
_OWN = ("random.seed", "random.step")


def state_name(kind: str, parameter: str = "") -> str:
    """The name of a training state, such as the momentum of a parameter."""
    return f"{kind}{_MARK}{parameter}"


def is_kept_beside(name: str) -> bool:
    """Whether a state belongs to training, and not to the network's parameters and statistics."""
    return _MARK in name or name in _OWN


def check_names(network: str, names: Iterable[str]) -> None:
    """Raises GraphError if a parameter has a name that is reserved for training states."""
    for name in names:
        if is_kept_beside(name):
            raise GraphError(
                f"{network} has a parameter {name!r}; valid for training is a name without "
                f"{_MARK!r} that is none of {', '.join(_OWN)}, which it needs for itself"
            )


def renamed(states: Mapping[str, _T]) -> dict[str, _T]:
    """Renames the states of a checkpoint of format 2, which has a dot in the place of the mark."""

    def now(name: str) -> str:
        kind, dot, rest = name.partition(".")
        if kind == "loss_scale":
            return state_name(kind, rest)
        return state_name(kind, rest) if dot and rest in states else name

    return {now(name): state for name, state in states.items()}


def parameters_in(path: Any, states: Mapping[str, _T], part: Any = None) -> dict[str, _T]:
    """Returns the network's parameters and statistics among the states of a checkpoint.

    By default, parameters that have a moving average are replaced by it, with a warning that says
    so.  ``part`` selects one of :data:`PARTS`; WeightsError is raised if the checkpoint lacks it.
    """
    states = states if any(_MARK in name for name in states) else renamed(states)
    parameters = {name: state for name, state in states.items() if not is_kept_beside(name)}
    averages = {
        name: states[state_name("average", name)]
        for name in parameters
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
    return parameters if part == "parameters" else {**parameters, **averages}
