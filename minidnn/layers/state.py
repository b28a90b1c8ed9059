"""How the entries of a state dict find the parameters of a network."""

from __future__ import annotations

import difflib
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from minidnn.errors import MiniDNNWarning, WeightsError
from minidnn.graph.types import TensorType
from minidnn.layers.advice import advice
from minidnn.layers.parameter import Parameter, as_array, misfit_of

#: A state dict names at most so many layers in one line of advice or of a warning.
_FEW = 4


class LoadedState(NamedTuple):
    """What ``load_state_dict`` did not find, with PyTorch's names for it.

    Attributes:
        missing_keys: parameters that the state dict lacks; they stay as they were.
        unexpected_keys: entries that the network lacks; they were not read.
    """

    missing_keys: list[str]
    unexpected_keys: list[str]


@dataclass
class _Matched:
    """Which array goes to which parameter, and everything that does not fit."""

    arrays: list[tuple[Parameter, np.ndarray]] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    #: What is wrong with each parameter's entries or for want of them, in order.
    problems: list[str] = field(default_factory=list)
    #: Parameters whose entries have another shape.
    misshapen: list[str] = field(default_factory=list)


def load_state(
    network: str,
    named: Sequence[tuple[str, Parameter]],
    state: Any,
    ignored: tuple[str, ...],
    *,
    strict: bool,
    prefix: str,
    without: str | Sequence[str],
) -> LoadedState:
    """What ``Layer.load_state_dict`` does for a network of that class.

    Args:
        named: all parameters under every name that they have.
        ignored: entries that begin so are tolerated.
    """
    _check_state(state)
    state = below(prefix, state)
    named, state = _left_out(without, named, state)
    matched = _match(named, state, ignored, strict)
    if strict:
        matched.problems += [f"unexpected: {name}" for name in matched.unexpected]
    shapes = {name: parameter.type.shape for name, parameter in named}
    if matched.problems:
        lines = [*_advice(shapes, state, matched, without), *matched.problems]
        raise WeightsError(
            f"the state dict does not fit {network} ({len(matched.problems)} problems):\n  "
            + "\n  ".join(lines)
        )
    if not matched.arrays and matched.missing:
        lines = [
            f"nothing of the state dict fits {network}, so that none of its parameters was set "
            f"(missing: {_few(matched.missing)}; unexpected: {_few(matched.unexpected)})",
            *_advice(shapes, state, matched, without),
        ]
        warnings.warn("\n  ".join(lines), MiniDNNWarning, stacklevel=3)
    for parameter, array in matched.arrays:
        parameter.assign(array)
    return LoadedState(matched.missing, matched.unexpected)


def _check_state(state: Any) -> None:
    if isinstance(state, Mapping):
        return
    hint = ""
    if isinstance(state, (str, os.PathLike)):
        hint = ", such as minidnn.load_weights(path) reads"
    elif hasattr(state, "state_dict"):
        hint = ", such as its state_dict()"
    raise WeightsError(
        f"state={state!r:.80} is a {type(state).__name__}; valid is a dict of arrays{hint}"
    )


def below(prefix: Any, state: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """The entries whose names begin with a prefix, without it."""
    if not isinstance(prefix, str):
        raise WeightsError(f"prefix={prefix!r:.80}; valid is a text, such as 'module.'")
    if not prefix:
        return state
    names = [name for name in state if isinstance(name, str)]
    dotted = prefix if prefix.endswith(".") else f"{prefix}."
    chosen = dotted if any(name.startswith(dotted) for name in names) else prefix
    found = {name[len(chosen) :]: state[name] for name in names if name.startswith(chosen)}
    if not found:
        firsts = sorted({name.partition(".")[0] for name in names})
        raise WeightsError(
            f"prefix={prefix!r}: no entry of the state dict begins so; the first parts of its "
            f"{len(state)} names are {_few(firsts)}"
        )
    return found


def _left_out(
    without: Any, named: Sequence[tuple[str, Parameter]], state: Mapping[Any, Any]
) -> tuple[Sequence[tuple[str, Parameter]], Mapping[Any, Any]]:
    """Parameters and entries but for those of some names, each of an entry or of a layer."""
    given = [without] if isinstance(without, str) else list(without)
    names = [*(name for name, _ in named), *(name for name in state if isinstance(name, str))]
    for part in given:
        if not any(_within(name, part) for name in names):
            parts = {".".join(name.split(".")[:n]) for name in names for n in range(1, 9)}
            near = difflib.get_close_matches(str(part), sorted(parts), 3, 0.0)
            raise WeightsError(
                f"without={part!r:.80}: neither the network nor the state dict has a layer or a "
                f"parameter of that name; near are {', '.join(map(repr, near)) or 'none'}"
            )
    out = {parameter for name, parameter in named if any(_within(name, part) for part in given)}
    aliases = {name for name, parameter in named if parameter in out}
    kept = {
        name: value
        for name, value in state.items()
        if name not in aliases and not any(_within(name, part) for part in given)
    }
    return [(name, parameter) for name, parameter in named if parameter not in out], kept


def _within(name: Any, part: Any) -> bool:
    return isinstance(name, str) and (name == part or name.startswith(f"{part}."))


def _match(
    named: Sequence[tuple[str, Parameter]],
    state: Mapping[Any, Any],
    ignored: tuple[str, ...],
    strict: bool,
) -> _Matched:
    """Matches a state dict with parameters, each of which may have several names."""
    names: dict[Parameter, list[str]] = {}
    for name, parameter in named:
        names.setdefault(parameter, []).append(name)
    found = _Matched()
    for parameter, aliases in names.items():
        given = [name for name in aliases if name in state]
        if not given and not parameter.optional:
            found.missing.append(aliases[0])
            if strict:
                found.problems.append(f"missing: {aliases[0]} {parameter.type}")
        arrays = [_array(name, state[name], parameter.type, found) for name in given]
        fitting = [array for array in arrays if array is not None]
        for name, array in zip(given[1:], fitting[1:], strict=False):
            if not np.array_equal(array, fitting[0], equal_nan=array.dtype.kind == "f"):
                found.problems.append(
                    f"contradiction: {given[0]} and {name} are one shared parameter, but differ"
                )
        if fitting:
            found.arrays.append((parameter, fitting[0]))
    known = {name for name, _ in named}
    found.unexpected = [
        name
        for name in state
        if name not in known and not (isinstance(name, str) and name.startswith(ignored))
    ]
    return found


def _array(name: str, given: Any, type: TensorType, found: _Matched) -> np.ndarray | None:
    """The entry as an array; None, with a problem added, if it does not fit."""
    array, error = as_array(given)
    if array is None:
        found.problems.append(f"not an array: {name} ({error})")
        return None
    problem = misfit_of(array, type)
    if problem:
        found.problems.append(problem.format(name))
        if array.shape != type.shape:
            found.misshapen.append(name)
        return None
    return array


def _advice(
    shapes: Mapping[str, tuple[int, ...]],
    state: Mapping[Any, Any],
    matched: _Matched,
    without: str | Sequence[str],
) -> list[str]:
    lines = advice(shapes, state, len(matched.arrays))
    layers = list(dict.fromkeys(name.rpartition(".")[0] or name for name in matched.misshapen))
    others = len(matched.problems) - len(matched.misshapen)
    if not lines and matched.arrays and layers and not others and len(layers) <= _FEW:
        left = [*([without] if isinstance(without, str) else without), *layers]
        lines.append(f"without={left!r} leaves out what has another shape, which stays as it is")
    return lines


def _few(names: Sequence[Any]) -> str:
    more = f" and {len(names) - _FEW} more" if len(names) > _FEW else ""
    return ", ".join(f"{name!s:.80}" for name in names[:_FEW]) + more if names else "none"
