"""Where the parameters of a network are in a state dict that does not fit it.

Trainers and wrappers put names before those of the network's parameters (``module.`` of
DataParallel, ``_orig_mod.`` of torch.compile, ``model.`` of Lightning, ``ema.``), within them, or
state dicts into other dicts.  Nothing is known here of whom: whatever makes names and shapes fit is
found.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

Shapes = Mapping[str, tuple[int, ...]]

#: Layers that only hold another one, and who puts them around it; they may stand within names.
WRAPPERS = {
    "module": "torch.nn.DataParallel and others",
    "_orig_mod": "torch.compile",
    "_fsdp_wrapped_module": "FSDP",
    "_checkpoint_wrapped_module": "activation checkpointing",
}
_DEEPEST = 4
_MOST_LINES = 3


def advice(shapes: Shapes, state: Mapping[Any, Any], fitting: int) -> list[str]:
    """Lines that say how more of a network's parameters than ``fitting`` find their entries.

    ``shapes`` has every parameter's shape by its name.
    """
    found: list[tuple[int, str]] = []
    for path, entries in _dicts(state):
        keys = "".join(f"[{key!r}]" for key in path)
        held = f"entry {keys} is a dict; " if keys else ""
        for prefix, count in _prefixes(shapes, entries).items():
            if not keys and not prefix:
                continue
            given = f"state{keys}" + (f", prefix={prefix!r}" if prefix else "")
            found.append((count, f"{held}load_state_dict({given}){_by_whom(prefix.split('.'))}"))
        found += _wrapped_within(shapes, entries, held)
        if not keys:
            found += _of_layers(shapes, entries)
    best = max((count for count, _ in found), default=0)
    if best <= fitting:
        return []
    lines = [(count, text) for count, text in found if 2 * count > max(best, 2 * fitting)]
    lines.sort(key=lambda line: -line[0])
    return [
        f"{count} of {len(shapes)} parameters fit: {text}" for count, text in lines[:_MOST_LINES]
    ]


def _dicts(
    state: Mapping[Any, Any], path: tuple[Any, ...] = ()
) -> Iterator[tuple[tuple[Any, ...], Mapping[Any, Any]]]:
    """The state dict and those within it, with the keys that lead there."""
    yield path, state
    if len(path) < _DEEPEST:
        for key, value in state.items():
            if isinstance(value, Mapping):
                yield from _dicts(value, (*path, key))


def _arrays(state: Mapping[Any, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in state.items():
        if isinstance(name, str) and not isinstance(value, Mapping):
            yield name, value


def _fits(shape: tuple[int, ...] | None, value: Any) -> bool:
    return shape is not None and tuple(getattr(value, "shape", None) or ()) == shape


def _prefixes(shapes: Shapes, state: Mapping[Any, Any]) -> Counter[str]:
    """How many parameters fit when a prefix is taken off; "" is none."""
    found: Counter[str] = Counter()
    for name, value in _arrays(state):
        starts = [0, *(i + 1 for i, letter in enumerate(name) if letter == ".")]
        found.update(name[:i] for i in starts if _fits(shapes.get(name[i:]), value))
    return found


def _by_whom(parts: list[str]) -> str:
    who = [WRAPPERS[part] for part in parts if part in WRAPPERS]
    return f" (names of {' and of '.join(who)})" if who else ""


def _wrapped_within(
    shapes: Shapes, state: Mapping[Any, Any], held: str
) -> Iterator[tuple[int, str]]:
    """Wrappers within names, which no prefix takes off."""
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
    """Layers of the network whose state dict it is."""
    arrays = dict(_arrays(state))
    found: Counter[str] = Counter()
    for name, shape in shapes.items():
        ends = [i for i, letter in enumerate(name) if letter == "."]
        found.update(
            name[:i]
            for i in ends
            if name[i + 1 :] in arrays and _fits(shape, arrays[name[i + 1 :]])
        )
    for layer, count in found.items():
        yield count, f"load_state_dict of the layer {layer!r}, whose state dict it seems to be"
