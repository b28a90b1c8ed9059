"""Matches the entries of a state dict with the parameters of a network.

Where entries do not fit, advice says how more of them would.  Trainers and wrappers add prefixes to
the names of parameters (``module.`` of DataParallel, ``_orig_mod.`` of torch.compile, ``model.`` of
Lightning, ``ema.``), insert names within them, or nest state dicts in other dicts.  The advice
needs no list of them: it tries which prefix, dict or layer makes names and shapes fit.
"""

from __future__ import annotations

import difflib
import os
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from minidnn.errors import MiniDNNWarning, WeightsError
from minidnn.graph.types import TensorType
from minidnn.layers.parameter import Parameter, as_array, misfit_of

Shapes = Mapping[str, tuple[int, ...]]

#: Names that wrappers insert for the layer that they hold, and the wrappers; any part of a name may
#: be such a name.
WRAPPERS = {
    "module": "torch.nn.DataParallel and others",
    "_orig_mod": "torch.compile",
    "_fsdp_wrapped_module": "FSDP",
    "_checkpoint_wrapped_module": "activation checkpointing",
}
#: The depth to which nested dicts are searched, and the most lines of advice.
_DEEPEST = 4
_MOST_LINES = 3


def advice(shapes: Shapes, state: Mapping[Any, Any], fitting: int) -> list[str]:
    """Lines of advice by which more than ``fitting`` of a network's parameters find their entries.

    Args:
        shapes: the shapes of all parameters, by name.
        state: the state dict.
        fitting: the number of parameters that fit now.
    """
    candidates: list[tuple[int, str]] = []
    for path, entries in _dicts(state):
        keys = "".join(f"[{key!r}]" for key in path)
        nested = f"entry {keys} is a dict; " if keys else ""
        for prefix, count in _prefixes(shapes, entries).items():
            if not keys and not prefix:
                continue
            call = f"state{keys}" + (f", prefix={prefix!r}" if prefix else "")
            candidates.append(
                (count, f"{nested}load_state_dict({call}){_by_whom(prefix.split('.'))}")
            )
        candidates += _wrapped_within(shapes, entries, nested)
        if not keys:
            candidates += _of_layers(shapes, entries)
    best = max((count for count, _ in candidates), default=0)
    if best <= fitting:
        return []
    lines = [(count, text) for count, text in candidates if 2 * count > max(best, 2 * fitting)]
    lines.sort(key=lambda line: -line[0])
    return [
        f"{count} of {len(shapes)} parameters fit: {text}" for count, text in lines[:_MOST_LINES]
    ]


def _dicts(
    state: Mapping[Any, Any], path: tuple[Any, ...] = ()
) -> Iterator[tuple[tuple[Any, ...], Mapping[Any, Any]]]:
    """Yields the state dict and all dicts nested in it, each with the keys that lead to it."""
    yield path, state
    if len(path) < _DEEPEST:
        for key, value in state.items():
            if isinstance(value, Mapping):
                yield from _dicts(value, (*path, key))


def _arrays(state: Mapping[Any, Any]) -> Iterator[tuple[str, Any]]:
    """Yields the entries that are no dicts and have a string as key."""
    for name, value in state.items():
        if isinstance(name, str) and not isinstance(value, Mapping):
            yield name, value


def _fits(shape: tuple[int, ...] | None, value: Any) -> bool:
    """Whether a value has the shape of a parameter."""
    return shape is not None and tuple(getattr(value, "shape", None) or ()) == shape


def _prefixes(shapes: Shapes, state: Mapping[Any, Any]) -> Counter[str]:
    """The number of parameters that fit without a prefix of the entries' names, by prefix."""
    counts: Counter[str] = Counter()
    for name, value in _arrays(state):
        starts = [0, *(i + 1 for i, letter in enumerate(name) if letter == ".")]
        counts.update(name[:i] for i in starts if _fits(shapes.get(name[i:]), value))
    return counts


def _by_whom(parts: list[str]) -> str:
    """Names the wrappers that insert these parts of names."""
    who = [WRAPPERS[part] for part in parts if part in WRAPPERS]
    return f" (names of {' and of '.join(who)})" if who else ""


def _wrapped_within(
    shapes: Shapes, state: Mapping[Any, Any], held: str
) -> Iterator[tuple[int, str]]:
    """Yields advice about wrappers' names within names, where removing a prefix does not help."""
    count, used, within = 0, dict.fromkeys(WRAPPERS, 0), 0
    for name, value in _arrays(state):
        parts = name.split(".")
        inner = [part for part in parts if part not in WRAPPERS]
        if _fits(shapes.get(".".join(inner)), value):
            count += 1
            within += parts[len(parts) - len(inner) :] != inner
            for part in set(parts) & set(WRAPPERS):
                used[part] += 1
    if within:
        parts = [part for part, times in used.items() if times]
        text = "{'.'.join(p for p in name.split('.') if p not in %r): value for name, value in ...}"
        shown = " and ".join(repr(f"{part}.") for part in parts)
        yield count, f"{held}without {shown} within the names, {text % parts}{_by_whom(parts)}"


def _of_layers(shapes: Shapes, state: Mapping[Any, Any]) -> Iterator[tuple[int, str]]:
    """Yields advice about layers of the network whose own state dict this may be."""
    arrays = dict(_arrays(state))
    counts: Counter[str] = Counter()
    for name, shape in shapes.items():
        ends = [i for i, letter in enumerate(name) if letter == "."]
        counts.update(
            name[:i]
            for i in ends
            if name[i + 1 :] in arrays and _fits(shape, arrays[name[i + 1 :]])
        )
    for layer, count in counts.items():
        yield count, f"load_state_dict of the layer {layer!r}, whose state dict it seems to be"


#: The most names in one line of advice or of a warning.
_FEW = 4


class LoadedState(NamedTuple):
    """The names that ``load_state_dict`` did not match, as PyTorch returns them.

    Attributes:
        missing_keys: parameters that the state dict lacks; they stay as they were.
        unexpected_keys: entries that the network lacks; they were not read.
    """

    missing_keys: list[str]
    unexpected_keys: list[str]


@dataclass
class _Matched:
    """The arrays that are matched with parameters, and everything that does not fit."""

    arrays: list[tuple[Parameter, np.ndarray]] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    #: A line for each entry that is missing or does not fit, in the order of parameters.
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
    """Sets parameters from a state dict; see ``Layer.load_state_dict``.

    Args:
        network: the name of the network's class, for messages.
        named: all parameters under every name that they have.
        state: the state dict.
        ignored: prefixes of entries that are tolerated.
        strict, prefix, without: as ``Layer.load_state_dict`` takes them.
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
    """WeightsError unless the state dict is a mapping."""
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
    """The entries whose names begin with a prefix, with the prefix removed."""
    if not isinstance(prefix, str):
        raise WeightsError(f"prefix={prefix!r:.80}; valid is a text, such as 'module.'")
    if not prefix:
        return state
    names = [name for name in state if isinstance(name, str)]
    dotted = prefix if prefix.endswith(".") else f"{prefix}."
    chosen = dotted if any(name.startswith(dotted) for name in names) else prefix
    entries = {name[len(chosen) :]: state[name] for name in names if name.startswith(chosen)}
    if not entries:
        firsts = sorted({name.partition(".")[0] for name in names})
        raise WeightsError(
            f"prefix={prefix!r}: no entry of the state dict begins so; the first parts of its "
            f"{len(state)} names are {_few(firsts)}"
        )
    return entries


def _left_out(
    without: Any, named: Sequence[tuple[str, Parameter]], state: Mapping[Any, Any]
) -> tuple[Sequence[tuple[str, Parameter]], Mapping[Any, Any]]:
    """Parameters and entries without those that ``without`` names, by themselves or by a layer."""
    excluded = [without] if isinstance(without, str) else list(without)
    names = [*(name for name, _ in named), *(name for name in state if isinstance(name, str))]
    for part in excluded:
        if not any(_within(name, part) for name in names):
            parts = {".".join(name.split(".")[:n]) for name in names for n in range(1, 9)}
            near = difflib.get_close_matches(str(part), sorted(parts), 3, 0.0)
            raise WeightsError(
                f"without={part!r:.80}: neither the network nor the state dict has a layer or a "
                f"parameter of that name; near are {', '.join(map(repr, near)) or 'none'}"
            )
    out = {parameter for name, parameter in named if any(_within(name, part) for part in excluded)}
    aliases = {name for name, parameter in named if parameter in out}
    kept = {
        name: value
        for name, value in state.items()
        if name not in aliases and not any(_within(name, part) for part in excluded)
    }
    return [(name, parameter) for name, parameter in named if parameter not in out], kept


def _within(name: Any, part: Any) -> bool:
    """Whether an entry is ``part`` itself, or belongs to the layer of that name."""
    return isinstance(name, str) and (name == part or name.startswith(f"{part}."))


def _match(
    named: Sequence[tuple[str, Parameter]],
    state: Mapping[Any, Any],
    ignored: tuple[str, ...],
    strict: bool,
) -> _Matched:
    """Matches the entries of a state dict with parameters, which may have several names each."""
    names: dict[Parameter, list[str]] = {}
    for name, parameter in named:
        names.setdefault(parameter, []).append(name)
    matched = _Matched()
    for parameter, aliases in names.items():
        present = [name for name in aliases if name in state]
        if not present and not parameter.optional:
            matched.missing.append(aliases[0])
            if strict:
                matched.problems.append(f"missing: {aliases[0]} {parameter.type}")
        arrays = [_array(name, state[name], parameter.type, matched) for name in present]
        fitting = [array for array in arrays if array is not None]
        for name, array in zip(present[1:], fitting[1:], strict=False):
            if not np.array_equal(array, fitting[0], equal_nan=array.dtype.kind == "f"):
                matched.problems.append(
                    f"contradiction: {present[0]} and {name} are one shared parameter, but differ"
                )
        if fitting:
            matched.arrays.append((parameter, fitting[0]))
    known = {name for name, _ in named}
    matched.unexpected = [
        name
        for name in state
        if name not in known and not (isinstance(name, str) and name.startswith(ignored))
    ]
    return matched


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
    """Advice about names or, if only shapes differ, about leaving layers out."""
    lines = advice(shapes, state, len(matched.arrays))
    layers = list(dict.fromkeys(name.rpartition(".")[0] or name for name in matched.misshapen))
    others = len(matched.problems) - len(matched.misshapen)
    if not lines and matched.arrays and layers and not others and len(layers) <= _FEW:
        left = [*([without] if isinstance(without, str) else without), *layers]
        lines.append(f"without={left!r} leaves out what has another shape, which stays as it is")
    return lines


def _few(names: Sequence[Any]) -> str:
    """The first few names, and the number of the others."""
    more = f" and {len(names) - _FEW} more" if len(names) > _FEW else ""
    return ", ".join(f"{name!s:.80}" for name in names[:_FEW]) + more if names else "none"
