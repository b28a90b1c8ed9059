"""Checkpoints: a trainer's states in a safetensors file, and the rest as JSON in its header."""

from __future__ import annotations

import copy
import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from functools import partial
from typing import Any

import numpy as np

from minidnn.errors import WeightsError
from minidnn.preparation import Preparation
from minidnn.training.launches import Progress
from minidnn.training.step import of_parameters
from minidnn.weights import load_weights, save_weights
from minidnn.weights._file import MappedFile, brief
from minidnn.weights.safetensors import (
    looks_like_safetensors,
    read_metadata,
    read_safetensors,
)
from minidnn.weights.trained import KEY, renamed, state_name

_FORMAT = 3
_BEFORE = 2
#: The kind of states that metrics keep of an epoch that is not over.
_MEASURED = "measured"
_FEW = 4


def writing(
    trainer: Any,
    path: str | os.PathLike[str],
    measured: Mapping[str, np.ndarray],
    preparation: Preparation | None = None,
) -> Callable[[], None]:
    """What writes the trainer as it now is; see :meth:`Trainer.save`.

    ``measured`` is what metrics keep of the epoch so far.
    """
    with trainer.store.lock:
        arrays = {name: array.copy() for name, array in trainer.store.items()}
    arrays |= trainer.trained.waiting
    arrays |= {state_name(_MEASURED, name): a for name, a in measured.items()}
    known = {
        "format": _FORMAT,
        "network": type(trainer.network).__name__,
        "optimizer": repr(trainer.optimizer),
        "accumulate": trainer.accumulate,
        "precision": trainer.step_program.precision,
        "begun": dict(trainer.trained.begun),
        "progress": asdict(trainer.reached),
        "history": list(trainer.history),
        "loader": trainer.place_of_loader(),
    }
    if known["loader"] is not None:
        json.dumps(known["loader"])  # here, where its error is told to who asks
    return partial(_write, path, known, arrays, preparation)


def _write(
    path: str | os.PathLike[str],
    known: dict[str, Any],
    arrays: dict[str, np.ndarray],
    preparation: Preparation | None,
) -> None:
    known["sha256"] = _digest(known, arrays)
    save_weights(arrays, path, {KEY: json.dumps(known)}, preparation=preparation)


def read(trainer: Any, path: str | os.PathLike[str]) -> None:
    """See :meth:`Trainer.restore`.  Nothing is changed unless everything fits."""
    file = MappedFile(path)
    text = read_metadata(file).get(KEY) if looks_like_safetensors(file) else None
    if text is None:
        raise WeightsError(f"{path}: no checkpoint of a trainer; valid is what trainer.save wrote")
    arrays: dict[str, Any] = read_safetensors(file)
    known = _header(path, text)
    if known.pop("sha256") != _digest(known, arrays):
        raise WeightsError(f"{path}: its numbers are not those that were saved: it is damaged")
    arrays = renamed(arrays) if known["format"] == _BEFORE else arrays
    kind = state_name(_MEASURED)
    measured = {name[len(kind) :]: arrays.pop(name) for name in [*arrays] if name.startswith(kind)}
    waiting = _of_frozen(trainer, known, arrays)
    for name in waiting:
        del arrays[name]
    new = _of_unfrozen(trainer, known, arrays)
    _check(trainer, path, known, arrays | new)
    for name, array in {**arrays, **new}.items():
        trainer.store[name] = array
    trainer.trained.restore(known.get("begun"), waiting)
    for name, value in known["progress"].items():
        setattr(trainer.progress, name, value)
    trainer.history[:] = known["history"]
    trainer.loader_state = known["loader"]
    trainer.measured.take(measured if trainer.rank == 0 else {})  # they are those of all ranks


def read_parameters(
    trainer: Any, path: str | os.PathLike[str], without: str | Sequence[str]
) -> None:
    """See :meth:`Trainer.restore`."""
    twin = copy.deepcopy(trainer.network)
    twin.load_state_dict(load_weights(os.path.abspath(path)), without=without)
    left = [without] if isinstance(without, str) else list(without)
    for name, parameter in twin.named_parameters():
        if any(name == each or name.startswith(f"{each}.") for each in left):
            continue
        for held in (name, state_name("average", name)):
            if held in trainer.store:
                trainer.store[held] = parameter.bind(name)()


def _of_frozen(
    trainer: Any, known: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """What was kept for parameters that are frozen now, and statistics that only layers have which
    are trained: it waits until they are."""
    own = [name for name, _ in trainer.network.named_parameters()]
    trained = {name for name, _ in trainer.network.trainable_parameters()}
    begun = known.get("begun") or {}
    kept = of_parameters(arrays, own)
    return {
        state: np.array(array)
        for state, array in arrays.items()
        if state not in trainer.store
        and (state in own or (kept.get(state) in begun and kept[state] not in trained))
    }


def _of_unfrozen(
    trainer: Any, known: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """What is kept for parameters that were frozen until the checkpoint, as it begins."""
    begun = known.get("begun")
    if begun is None:
        return {}
    trained = [name for name, _ in trainer.network.trainable_parameters() if name not in begun]
    begin = {
        name: parameter.bind(name)()
        for name, parameter in trainer.network.named_parameters()
        if not parameter.trainable and name in trainer.store and name not in arrays
    }
    return begin | {
        state: arrays[name] if state == state_name("average", name) else 0 * trainer.store[state]
        for state, name in of_parameters(trainer.store, trained).items()
        if state not in arrays and name in arrays
    }


def _header(path: Any, text: str) -> dict[str, Any]:
    """What the header says, each entry of the right type; WeightsError if it is none."""
    try:
        known = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise WeightsError(f"{path}: its header is no JSON: {error}") from error
    if not isinstance(known, dict):
        raise WeightsError(f"{path}: its header is {brief(known)}; valid is a JSON object")
    if (version := known.get("format")) not in (_BEFORE, _FORMAT):
        valid = f"{_BEFORE} and {_FORMAT}"
        raise WeightsError(f"{path}: a checkpoint of format {brief(version)}; valid are {valid}")
    for name, (is_right, valid) in _ENTRIES.items():
        if (name not in known and name not in _SINCE) or not is_right(known.get(name)):
            raise WeightsError(
                f"{path}: its header says {name}={brief(known.get(name))}; valid is {valid}"
            )
    return known


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _are_numbers(value: Any) -> bool:
    return isinstance(value, dict) and all(type(each) in (int, float) for each in value.values())


def _are_counts(value: Any) -> bool:
    return value is None or (isinstance(value, dict) and all(map(_is_count, value.values())))


def _is_progress(value: Any) -> bool:
    counts = {field.name for field in fields(Progress)} - {"sums"}
    return (
        isinstance(value, dict)
        and value.keys() == {*counts, "sums"}
        and all(_is_count(value[name]) for name in counts)
        and _are_numbers(value["sums"])
    )


#: What a header of format 2 has not.
_SINCE = ("begun",)

#: What a header must have: what is right, and what is valid in words.
_ENTRIES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "sha256": (_is_text, "a text"),
    "network": (_is_text, "a text"),
    "optimizer": (_is_text, "a text"),
    "accumulate": (_is_count, "a whole number"),
    "progress": (_is_progress, "how far training had come"),
    "history": (
        lambda value: isinstance(value, list) and all(map(_are_numbers, value)),
        "a list of records",
    ),
    "begun": (_are_counts, "the steps at which parameters began to be trained"),
    "loader": (lambda value: value is None or isinstance(value, dict), "the place of a loader"),
}


def _check(
    trainer: Any, path: Any, known: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
) -> None:
    """WeightsError if the states are not those of the trainer."""
    store = trainer.store
    problems = [f"missing: {name}" for name in store if name not in arrays]
    problems += [f"unexpected: {name}" for name in arrays if name not in store]
    for name in store:
        held, given = store[name], arrays.get(name, store[name])
        if (given.shape, given.dtype) != (held.shape, held.dtype):
            problems.append(
                f"{name} is {given.dtype}{list(given.shape)}, valid is "
                f"{held.dtype}{list(held.shape)}"
            )
    if known["accumulate"] != trainer.accumulate:
        problems.append(f"accumulate={known['accumulate']}, valid is {trainer.accumulate}")
    precision = trainer.step_program.precision
    if known.get("precision", precision) != precision:
        problems.insert(0, f"precision={known['precision']!r}, valid is {precision!r}")
    if problems:
        more = f"\n  and {len(problems) - _FEW} more" if len(problems) > _FEW else ""
        raise WeightsError(
            f"{path}: a checkpoint of {known['network']} trained by {known['optimizer']}, which "
            f"does not fit this {type(trainer.network).__name__} and {trainer.optimizer}:\n  "
            + "\n  ".join(problems[:_FEW])
            + more
        )


def _digest(known: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> str:
    """Of the header and of all arrays, so that a change of either is seen."""
    found = hashlib.sha256(json.dumps(known, sort_keys=True).encode())
    for name in sorted(arrays):
        found.update(name.encode() + b"\0")
        found.update(np.ascontiguousarray(arrays[name]).tobytes())
    return found.hexdigest()
