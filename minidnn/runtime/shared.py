"""Several stored programs of one network in one file: what is equal stands there once."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from minidnn.runtime.program import StoredProgram, offsets_of

__all__ = ["SharedPrograms", "share"]


@dataclass(frozen=True)
class SharedPrograms:
    """Programs whose constants and code are shared.

    Attributes:
        documents: of each program, for the constants that all share.
        places: for each program that has its own constants their offset and bytes; None for one
            that reads all.
        code: what is executed, by the names of parts of the file.
        code_names: for each program the part by the name that the program has for it.
        constants: of all programs, those first that may be used as indices.
        index_bytes: how many bytes these take.
    """

    documents: list[dict[str, Any]]
    places: list[tuple[int, int] | None]
    code: Mapping[str, bytes | memoryview]
    code_names: list[dict[str, str]]
    constants: list[np.ndarray]
    index_bytes: int


def share(programs: Sequence[StoredProgram]) -> SharedPrograms:
    """The programs with common constants and code.

    Those that cannot say where each constant is have all in one array, which two may share.
    """
    constants: list[np.ndarray] = []
    numbers: dict[bytes, int] = {}

    def number(array: np.ndarray) -> int:
        digest = hashlib.sha256(array.view(np.uint8).data).digest()
        if digest not in numbers:
            numbers[digest] = len(constants)
            constants.append(array)
        return numbers[digest]

    split = [_indices(program) for program in programs]
    for program, count in zip(programs, split, strict=True):
        for array in program.constants[:count]:
            number(array)
    indices = len(constants)
    used = [[number(array) for array in program.constants] for program in programs]
    offsets = offsets_of(constants)
    documents: list[dict[str, Any]] = []
    places: list[tuple[int, int] | None] = []
    for program, own in zip(programs, used, strict=True):
        at = [offsets[each] for each in own]
        if program.placed is not None:
            documents.append(program.placed(at))
            places.append(None)
        else:
            (array,) = program.constants
            documents.append(program.document)
            places.append((at[0], array.nbytes))
    index_bytes = offsets_of([*constants[:indices], np.empty(0)])[-1]
    return SharedPrograms(documents, places, *_shared_code(programs), constants, index_bytes)


def _indices(program: StoredProgram) -> int:
    """How many constants, from the first on, may be used as indices."""
    offsets = offsets_of(program.constants)
    return sum(offset < program.index_bytes for offset in offsets)


def _shared_code(
    programs: Sequence[StoredProgram],
) -> tuple[dict[str, bytes | memoryview], list[dict[str, str]]]:
    code: dict[str, bytes | memoryview] = {}
    known: dict[bytes, str] = {}
    names = []
    for place, program in enumerate(programs):
        own = {}
        for name, data in program.code.items():
            digest = hashlib.sha256(data).digest()
            if digest not in known:
                known[digest] = f"{name} of program {place}"
                code[known[digest]] = data
            own[name] = known[digest]
        names.append(own)
    return code, names
