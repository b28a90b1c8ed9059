"""Checkpoints: a trainer's states in a safetensors file, and the rest as JSON in its header."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from minidnn.errors import WeightsError
from minidnn.weights import load_weights, save_weights
from minidnn.weights._file import MappedFile
from minidnn.weights.safetensors import looks_like_safetensors, read_metadata

_KEY = "minidnn.trainer"
_FORMAT = 2
_FEW = 4


def write(trainer: Any, path: str | os.PathLike[str]) -> None:
    """See :meth:`Trainer.save`."""
    with trainer.store.lock:
        arrays = {name: array.copy() for name, array in trainer.store.items()}
    known = {
        "format": _FORMAT,
        "network": type(trainer.network).__name__,
        "optimizer": repr(trainer.optimizer),
        "accumulate": trainer.accumulate,
        "precision": trainer.step_program.precision,
        "progress": asdict(trainer.reached),
        "history": trainer.history,
        "loader": trainer.place_of_loader(),
    }
    known["sha256"] = _digest(known, arrays)
    save_weights(arrays, path, {_KEY: json.dumps(known)})


def read(trainer: Any, path: str | os.PathLike[str]) -> None:
    """See :meth:`Trainer.restore`.  Nothing is changed unless everything fits."""
    file = MappedFile(path)
    text = read_metadata(file).get(_KEY) if looks_like_safetensors(file) else None
    if text is None:
        raise WeightsError(f"{path}: no checkpoint of a trainer; valid is what trainer.save wrote")
    arrays = load_weights(os.path.abspath(path))
    try:
        known = json.loads(text)
        version, digest = known["format"], known.pop("sha256")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise WeightsError(f"{path}: its header is damaged: {error!r}") from error
    if version != _FORMAT:
        raise WeightsError(f"{path}: a checkpoint of format {version!r}; valid is {_FORMAT}")
    if digest != _digest(known, arrays):
        raise WeightsError(f"{path}: its numbers are not those that were saved: it is damaged")
    _check(trainer, path, known, arrays)
    for name, array in arrays.items():
        trainer.store[name] = array
    for name, value in known["progress"].items():
        setattr(trainer.progress, name, value)
    trainer.history[:] = known["history"]
    trainer.loader_state = known["loader"]


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
