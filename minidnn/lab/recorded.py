"""Studies in files: written whole, and read with a reason when they cannot be."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from ..errors import MiniDNNError
from ..measure import write_figures
from .measured import FORMAT, VERSION

_FOLDER = Path(__file__).parent / "recorded"
_PARTS: dict[str, type] = {"ladder": str, "machine": dict, "shapes": list, "cells": list}
_CELL: dict[str, type] = {"step": str, "shape": int, "block": list, "parameters": dict}
_FIGURES = ("operations", "operational_intensity", "predicted_seconds")
_CUDA = (
    *("registers", "spill_bytes", "shared_bytes", "occupancy", "waves"),
    *("coalescing", "bank_conflicts"),
)
_CPU = ("tasks", "chains", "gathered", "lanes")


class StudyError(MiniDNNError, ValueError):
    """A file is no study that can be read.

    >>> from minidnn import lab
    >>> try:
    ...     lab.load_study("net.safetensors")
    >>> except lab.StudyError as error:
    ...     print(error)
    """


def save_study(path: str | os.PathLike[str], study: dict[str, Any]) -> None:
    """Writes a study to a file, whole or not at all.

    >>> from minidnn import lab
    >>> lab.save_study("product.json", lab.model("product", ["tiled"]))

    Args:
        path: of the file, which is JSON.
        study: what :func:`model` or :func:`run` gave.

    Raises:
        StudyError: the file cannot be written.
    """
    try:
        write_figures(Path(path), study)
    except OSError as error:
        raise StudyError(f"{os.fspath(path)} cannot be written: {error.strerror}") from error


def load_study(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The study in a file.

    >>> from minidnn import lab
    >>> study = lab.load_study(lab.recorded_studies()["conv"])
    >>> study["machine"]["multiprocessors"]
    132

    Args:
        path: of a file that :func:`save_study` wrote.

    Returns:
        A study, as :func:`minidnn.lab.model` gives it.

    Raises:
        StudyError: there is no such file, it is damaged, no study, or of a later version.
    """
    name = os.fspath(path)
    try:
        document = json.loads(Path(path).read_bytes())
    except OSError as error:
        raise StudyError(f"{name} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise StudyError(f"{name} is damaged, or no study: {error}") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise StudyError(f"{name} is no study: it does not say {FORMAT!r} as its format")
    version = document.get("version")
    if version != VERSION:
        raise StudyError(f"{name} is a study of version {version!r}; this minidnn reads {VERSION}")
    if (damage := _damage(document)) is not None:
        raise StudyError(f"{name} is damaged: {damage}")
    return document


def recorded_studies() -> dict[str, Path]:
    """The files of the studies that come with minidnn, by ladder.

    Returns:
        Paths, by the names of the ladders that they are of.

    >>> from minidnn import lab
    >>> sorted(lab.recorded_studies())
    """
    return {path.stem.rpartition("-")[0]: path for path in sorted(_FOLDER.glob("*.json"))}


def _damage(document: dict[str, Any]) -> str | None:
    """What is missing, or of another kind than it should be."""
    for name, kind in _PARTS.items():
        if not isinstance(document.get(name), kind):
            return f"{name!r} is missing"
    count = len(document["shapes"])
    libraries = document.get("libraries", [None] * count)
    if not isinstance(libraries, list) or len(libraries) != count:
        return f"'libraries' does not have an entry for each of {count} shapes"
    for number, cell in enumerate(document["cells"]):
        if not isinstance(cell, dict):
            return f"cell {number} is {type(cell).__name__}"
        for name, kind in _CELL.items():
            if not isinstance(cell.get(name), kind):
                return f"cell {number} has no {name!r}"
        if not 0 <= cell["shape"] < count:
            return f"cell {number} is of shape {cell['shape']}; there are {count}"
        if "why_not" in cell:
            continue
        wanted = _FIGURES + (_CPU if "isa" in document["machine"] else _CUDA)
        wanted += () if "failed" in cell else ("measured_seconds",) * _runs(document)
        for name in wanted:
            if not isinstance(cell.get(name), int | float):
                return f"cell {number} has no {name!r}"
    return None


def _runs(document: dict[str, Any]) -> bool:
    """Whether a study was measured."""
    return "libraries" in document
