"""Writes and reads checkpoints: a trainer's states in a safetensors file, the rest as JSON in its
header.

The header has the optimizer's name, how far training has come, the history and the loader's state;
a digest of all of it and of the arrays tells a damaged file.
"""

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

from minidnn.errors import GraphError, WeightsError
from minidnn.preparation import Preparation
from minidnn.training.launches import Progress
from minidnn.training.step import of_parameters
from minidnn.weights import load_weights, save_weights
from minidnn.weights._file import MappedFile, brief, is_size
from minidnn.weights.safetensors import (
    looks_like_safetensors,
    read_metadata,
    read_safetensors,
)
from minidnn.weights.trained import KEY, renamed, state_name

#: The format that is written, and the older one that can be read as well.
_FORMAT = 3
_BEFORE = 2
#: The kind of states that metrics keep of an epoch that is not over.
_MEASURED = "measured"
#: How many differences between a checkpoint and a trainer a message lists.
_FEW = 4


def writing(
    trainer: Any,
    path: str | os.PathLike[str],
    measured: Mapping[str, np.ndarray],
    preparation: Preparation | None = None,
) -> Callable[[], None]:
    """A function that writes the trainer as it is now, from copies; see :meth:`Trainer.save`.

    ``measured`` has the states of metrics of the epoch so far.
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
        "history": [_numbers_of(record) for record in trainer.history],
        "loader": trainer.place_of_loader(),
    }
    if known["loader"] is not None:
        json.dumps(known["loader"])  # an error comes here, and not in a writer's thread
    return partial(_write, path, known, arrays, preparation)


def _numbers_of(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record of an epoch; GraphError if it has something besides numbers, such as what a
    callback added, with which the checkpoint could not be read."""
    numbers = {n: v.item() if isinstance(v, np.generic) else v for n, v in record.items()}
    for name, value in numbers.items():
        if type(value) not in (int, float):
            raise GraphError(
                f"the record of epoch {record['epoch']} has {name}={value!r:.80}; valid in a "
                "checkpoint are numbers"
            )
    return numbers


def _write(
    path: str | os.PathLike[str],
    known: dict[str, Any],
    arrays: dict[str, np.ndarray],
    preparation: Preparation | None,
) -> None:
    """Writes a header and arrays, with their digest."""
    known["sha256"] = _digest(known, arrays)
    save_weights(arrays, path, {KEY: json.dumps(known)}, preparation=preparation)


def read(trainer: Any, path: str | os.PathLike[str]) -> None:
    """Reads a checkpoint into a trainer, which stays as it is unless everything fits.

    See :meth:`Trainer.restore`.
    """
    file = MappedFile(path)
    text = read_metadata(file).get(KEY) if looks_like_safetensors(file) else None
    if text is None:
        raise WeightsError(f"{path}: no checkpoint of a trainer; valid is what trainer.save wrote")
    arrays: dict[str, Any] = read_safetensors(file)
    known = _header(path, text)
    if known.pop("sha256") != _digest(known, arrays):
        raise WeightsError(f"{path}: its numbers are not those that were saved: it is damaged")
    arrays = renamed(arrays) if known["format"] == _BEFORE else arrays
    begin = state_name(_MEASURED)
    measured = {
        name[len(begin) :]: arrays.pop(name) for name in [*arrays] if name.startswith(begin)
    }
    waiting = _of_frozen(trainer, known, arrays)
    for name in waiting:
        del arrays[name]
    added = _of_unfrozen(trainer, known, arrays)
    _check(trainer, path, known, arrays | added)
    for name, array in {**arrays, **added}.items():
        trainer.store[name] = array
    trainer.trained.restore(known.get("begun"), waiting)
    for name, value in known["progress"].items():
        setattr(trainer.progress, name, value)
    trainer.history[:] = known["history"]
    trainer.loader_state = known["loader"]
    trainer.measured.take(measured if trainer.rank == 0 else {})  # of all ranks already


def read_parameters(
    trainer: Any, path: str | os.PathLike[str], without: str | Sequence[str]
) -> None:
    """Reads parameters and statistics alone, except those of the layers ``without``.

    See :meth:`Trainer.restore`.
    """
    twin = copy.deepcopy(trainer.network)
    twin.load_state_dict(load_weights(os.path.abspath(path)), without=without)
    excluded = [without] if isinstance(without, str) else list(without)
    for name, parameter in twin.named_parameters():
        if any(name == each or name.startswith(f"{each}.") for each in excluded):
            continue
        for state in (name, state_name("average", name)):
            if state in trainer.store:
                trainer.store[state] = parameter.bind(name)()


def _of_frozen(
    trainer: Any, known: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """The arrays that wait until their parameters are trained: states kept for parameters that are
    frozen now, and statistics that the step does not use until then.
    """
    names = [name for name, _ in trainer.network.named_parameters()]
    trained = {name for name, _ in trainer.network.trainable_parameters()}
    begun = known.get("begun") or {}
    kept = of_parameters(arrays, names)
    return {
        state: np.array(array)
        for state, array in arrays.items()
        if state not in trainer.store
        and (state in names or (kept.get(state) in begun and kept[state] not in trained))
    }


def _of_unfrozen(
    trainer: Any, known: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """The initial states of parameters that were frozen when the checkpoint was written and are
    trained now.
    """
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
    """The header as a mapping with entries of the right types; WeightsError if it is no such
    header.
    """
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


def _are_numbers(value: Any) -> bool:
    return isinstance(value, dict) and all(type(each) in (int, float) for each in value.values())


def _are_counts(value: Any) -> bool:
    return value is None or (isinstance(value, dict) and all(map(is_size, value.values())))


def _is_progress(value: Any) -> bool:
    counts = {field.name for field in fields(Progress)} - {"sums"}
    return (
        isinstance(value, dict)
        and value.keys() == {*counts, "sums"}
        and all(is_size(value[name]) for name in counts)
        and _are_numbers(value["sums"])
    )


#: Entries that a header of format 2 may lack.
_SINCE = ("begun",)

#: The entries of a header: a check of each, and what is valid in words.
_ENTRIES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "sha256": (_is_text, "a text"),
    "network": (_is_text, "a text"),
    "optimizer": (_is_text, "a text"),
    "accumulate": (is_size, "an integer"),
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
        expected, array = store[name], arrays.get(name, store[name])
        if (array.shape, array.dtype) != (expected.shape, expected.dtype):
            problems.append(
                f"{name} is {array.dtype}{list(array.shape)}, valid is "
                f"{expected.dtype}{list(expected.shape)}"
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
    """The SHA-256 of the header and of all arrays, which finds a change of either."""
    digest = hashlib.sha256(json.dumps(known, sort_keys=True).encode())
    for name in sorted(arrays):
        digest.update(name.encode() + b"\0")
        digest.update(np.ascontiguousarray(arrays[name]).tobytes())
    return digest.hexdigest()
