"""The file format of a compiled network: code for one machine, and packed weights to be mapped.

After 48 bytes (magic, format and length of the header as 32-bit numbers, its SHA-256) comes the
header as JSON: the version of minidnn, the device, the architecture and system that the code is
for, the network's inputs and outputs, the document from which the device restores a program, and
the parts of the file with offset, size and checksum.  Parts are aligned to pages: the code, and the
constants.

A file for batches of any size has several programs, by the number of rows that each computes.  They
share the parts: equal code and equal constants are stored once.

Header and code have a SHA-256, which also identifies a loaded library in a process.  Constants are
large and need a checksum at the speed of memory: CRC-32, one for each block.  Constants that
kernels use as indices come first, so that their blocks are always checked: a wrong index ends the
process.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import secrets
import stat
import struct
import sys
import threading
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from minidnn import __version__
from minidnn.errors import GraphError, UnsupportedError, WeightsError
from minidnn.runtime.cores import usable_cores
from minidnn.runtime.program import ALIGNMENT, StoredProgram, offsets_of

MAGIC = b"\x89MDX\r\n\x1a\n"
"""The first bytes of a file; as in PNG, a transfer as text changes them."""
FORMAT = 2
"""The format of files with one program."""
BATCHES_FORMAT = 3
"""The format of files with several programs, for parts of batches."""
ALREADY = "it is a compiled network's file, which minidnn.load(path) loads; "
"""Part of a message about such a file that is given as a network."""
CONSTANTS = "constants"
_START = struct.Struct("<8sII32s")
_PAGE = 4096
_MAX_HEADER = 64 << 20
_BLOCK = 1 << 20
"""The size in bytes of a block of constants, which has one checksum."""
_MOST_THREADS = 8


def system() -> str:
    """The operating system and machine that code is for, besides its instruction set."""
    return f"{sys.platform}-{os.uname().machine}" if hasattr(os, "uname") else sys.platform


def check_path(path: Any, function: str = "save") -> None:
    """GraphError if the argument ``path`` of a function is not a path."""
    if not isinstance(path, (str, os.PathLike)):
        kind = type(path).__name__
        raise GraphError(f"{function}: path={path!r:.80} is a {kind}; valid is a path")


def is_compiled(path: str | os.PathLike[str]) -> bool:
    """Whether a regular file is there that begins like one of a compiled network."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # opening a pipe would wait for its writer
            return False
        with open(path, "rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except (OSError, ValueError):  # no file, or no name of one
        return False


def write_compiled(
    path: str | os.PathLike[str], device: str, program: StoredProgram, network: dict[str, Any]
) -> None:
    """Writes a program and the description of its network; the file appears complete or not at
    all.

    Raises:
        OSError: it cannot be written.
    """
    described = {
        "network": network,
        "program": program.document,
        "indices": program.index_bytes,
    }
    _write(path, device, FORMAT, program.architecture, described, program.code, program.constants)


def write_batches(
    path: str | os.PathLike[str],
    device: str,
    programs: Sequence[tuple[dict[str, Any], StoredProgram]],
    network: dict[str, Any],
) -> None:
    """Writes a file of several programs, each with its own description, as :func:`write_compiled`
    writes one.

    Raises:
        OSError: it cannot be written.
    """
    shared = share([program for _, program in programs])
    entries = [
        {**said, "program": document, "constants": place, "code": names}
        for (said, _), document, place, names in zip(
            programs, shared.documents, shared.places, shared.code_names, strict=True
        )
    ]
    described = {"network": network, "programs": entries, "indices": shared.index_bytes}
    architecture = programs[0][1].architecture
    contents = (architecture, described, shared.code, shared.constants)
    _write(path, device, BATCHES_FORMAT, *contents)


def _write(
    path: str | os.PathLike[str],
    device: str,
    format: int,
    architecture: str,
    described: dict[str, Any],
    code: Mapping[str, bytes | memoryview],
    constants: Sequence[np.ndarray],
) -> None:
    """Writes header and parts to a temporary file, and renames it."""
    parts = {name: [memoryview(data)] for name, data in code.items()}
    parts[CONSTANTS] = list(_aligned(constants))
    listed: dict[str, list[Any]] = {}
    header: dict[str, Any] = {
        "minidnn": __version__,
        "device": device,
        "architecture": architecture,
        "system": system(),
        **described,
        "parts": listed,
    }
    end = 0
    for name, pieces in parts.items():
        size = sum(piece.nbytes for piece in pieces)
        listed[name] = [end, size, _sums(pieces) if name == CONSTANTS else _digest(pieces)]
        end = _up(end + size, _PAGE)
    text = json.dumps(header, separators=(",", ":")).encode()
    start = _START.pack(MAGIC, format, len(text), hashlib.sha256(text).digest())
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(6)}")
    try:
        with open(temporary, "xb") as file:
            file.write(start + text)
            base = _up(file.tell(), _PAGE)
            for name, pieces in parts.items():
                file.seek(base + listed[name][0])
                file.writelines(pieces)
        os.replace(temporary, target)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(target)) from error  # not the temporary file
    finally:
        temporary.unlink(missing_ok=True)


def _aligned(arrays: Sequence[np.ndarray]) -> Iterator[memoryview]:
    """The bytes of arrays, each padded to the alignment."""
    for array in arrays:
        yield array.view(np.uint8).data
        if rest := -array.nbytes % ALIGNMENT:
            yield memoryview(bytes(rest))


def _digest(pieces: Sequence[memoryview]) -> str:
    """The SHA-256 of the concatenation of pieces."""
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


def _sums(pieces: Sequence[memoryview]) -> list[int]:
    """The CRC-32 of each block of the concatenation of pieces."""
    sums, filled = [0], 0
    for piece in pieces:
        while piece.nbytes:
            if filled == _BLOCK:
                sums.append(0)
                filled = 0
            chunk = piece[: _BLOCK - filled]
            sums[-1] = zlib.crc32(chunk, sums[-1])
            filled, piece = filled + chunk.nbytes, piece[chunk.nbytes :]
    return sums


def _wrong_blocks(data: memoryview, sums: Sequence[int]) -> list[int]:
    """The numbers of the blocks whose CRC-32 differs, computed by several threads."""
    count = max(1, min(usable_cores(), _MOST_THREADS, len(sums) // 4))
    wrong: list[int] = []

    def look(first: int) -> None:
        for i in range(first, len(sums), count):
            if zlib.crc32(data[i * _BLOCK : (i + 1) * _BLOCK]) != sums[i]:
                wrong.append(i)

    threads = [threading.Thread(target=look, args=(i,)) for i in range(1, count)]
    for thread in threads:
        thread.start()
    look(0)
    for thread in threads:
        thread.join()
    return sorted(wrong)


def _up(value: int, unit: int) -> int:
    """Rounds up to a multiple."""
    return -(-value // unit) * unit


class CompiledFile:
    """A compiled network's file, mapped for reading; its length, header and code are checked.

    :meth:`check_constants` checks the constants, which processes share: all, or those for indices.

    Attributes:
        path: of the file.
        header: the JSON header.
        splits_batches: whether it has several programs, for parts of batches.

    Raises:
        WeightsError: there is no such file, it is none of a compiled network, or it is damaged.
        UnsupportedError: it is of another version or for another system.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._data = self._mapped()
        self._bytes = np.frombuffer(self._data, np.uint8)
        self.header = self._header()
        self._check_version()
        parts = self.header["parts"]
        ends = [self._base + offset + size for offset, size, _ in parts.values() if size]
        if (end := max([self._header_end, *ends])) != self._bytes.size:
            problem = "it is truncated" if self._bytes.size < end else "something was added"
            raise self.damaged(f"it has {self._bytes.size} bytes instead of {end}: {problem}")
        for name in parts:
            if name != CONSTANTS and _digest([self.part(name).data]) != self.digest(name):
                raise self.damaged(f"{name} is not what was written (its checksum differs)")

    def __str__(self) -> str:
        return f"compiled network {str(self.path)!r}"

    def damaged(self, problem: str) -> WeightsError:
        """Makes the exception for a damaged file."""
        return WeightsError(f"{self} cannot be loaded: {problem}")

    def unsupported(self, problem: str) -> UnsupportedError:
        """Makes the exception for a file that this machine or version cannot use."""
        return UnsupportedError(
            f"{self} {problem}; compile the network again, as it is to be loaded, and save that"
        )

    def part(self, name: str) -> np.ndarray:
        """The bytes of a part, read-only."""
        offset, size, _ = self.header["parts"][name]
        return self._bytes[self._base + offset :][:size]

    def digest(self, name: str) -> str:
        """The SHA-256 of a part with code."""
        return str(self.header["parts"][name][2])

    def check_constants(self, *, all: bool) -> None:
        """WeightsError if constants differ from their checksums.

        Args:
            all: whether weights are checked, too, or only constants that kernels use as indices.
        """
        sums, data = self.header["parts"][CONSTANTS][2], self.part(CONSTANTS).data
        if not all:
            sums = sums[: -(-self.header["indices"] // _BLOCK)]
        if wrong := _wrong_blocks(data, sums):
            raise self.damaged(
                f"{CONSTANTS} are not what was written: {len(wrong)} of {len(sums)} blocks of "
                f"{_BLOCK} bytes differ from their checksum, the first at byte {wrong[0] * _BLOCK}"
            )

    def _mapped(self) -> mmap.mmap:
        """Maps the file, after checking that it begins as it must."""
        try:
            # Opening a named pipe would wait for its writer.
            if not stat.S_ISREG(os.stat(self.path).st_mode):
                raise self.damaged("it is not a regular file")
            with open(self.path, "rb") as file:
                start = file.read(_START.size)
                if start[: len(MAGIC)] != MAGIC:
                    raise self.damaged(
                        "it begins otherwise; valid is what executable.save wrote (minidnn.compile "
                        "takes ONNX and graph files, minidnn.load_weights weights)"
                    )
                if len(start) < _START.size:
                    raise self.damaged(f"it has {len(start)} bytes: it is truncated")
                return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:  # its text has the path, which the message has already
            raise self.damaged(error.strerror or str(error)) from error

    def _header(self) -> dict[str, Any]:
        """Reads the header, and compares it with its checksum."""
        _, version, size, digest = _START.unpack_from(self._data)
        if version not in (FORMAT, BATCHES_FORMAT):
            raise self.unsupported(
                f"has format {version}, and minidnn {__version__} reads formats {FORMAT} and "
                f"{BATCHES_FORMAT}"
            )
        self.splits_batches = version == BATCHES_FORMAT
        self._header_end = _START.size + size
        text = self._data[_START.size : self._header_end]
        if size > _MAX_HEADER or len(text) < size:
            raise self.damaged(f"it has {len(self._data)} bytes: it is truncated or damaged")
        if hashlib.sha256(text).digest() != digest:
            raise self.damaged("its header is not what was written (its checksum differs)")
        self._base = _up(self._header_end, _PAGE)
        header: dict[str, Any] = json.loads(text)
        return header

    def _check_version(self) -> None:
        header = self.header
        if header["minidnn"] != __version__:
            raise self.unsupported(
                f"was written by minidnn {header['minidnn']}, and this is minidnn {__version__}"
            )
        if header["system"] != system():
            raise self.unsupported(f"is for {header['system']}, and this is {system()}")


@dataclass(frozen=True)
class _SharedPrograms:
    """Several programs with their constants and code deduplicated.

    Attributes:
        documents: the document of each program, with offsets in the shared constants.
        places: the offset and size in bytes of each program's constants; None for a program whose
            document has the offset of each constant.
        code: the code, by the names of parts of the file.
        code_names: for each program the names of these parts, by its own names for them.
        constants: the constants of all programs; those that may be used as indices come first.
        index_bytes: the size of these in bytes.
    """

    documents: list[dict[str, Any]]
    places: list[tuple[int, int] | None]
    code: Mapping[str, bytes | memoryview]
    code_names: list[dict[str, str]]
    constants: list[np.ndarray]
    index_bytes: int


def share(programs: Sequence[StoredProgram]) -> _SharedPrograms:
    """Deduplicates the constants and the code of programs.

    A program whose document cannot take offsets of single constants has all in one array, which
    two programs may share.
    """
    constants: list[np.ndarray] = []
    numbers: dict[bytes, int] = {}

    def number(array: np.ndarray) -> int:
        digest = hashlib.sha256(array.view(np.uint8).data).digest()
        if digest not in numbers:
            numbers[digest] = len(constants)
            constants.append(array)
        return numbers[digest]

    index_counts = [_indices(program) for program in programs]
    for program, count in zip(programs, index_counts, strict=True):
        for array in program.constants[:count]:
            number(array)
    indices = len(constants)
    used = [[number(array) for array in program.constants] for program in programs]
    offsets = offsets_of(constants)
    documents: list[dict[str, Any]] = []
    places: list[tuple[int, int] | None] = []
    for program, own_numbers in zip(programs, used, strict=True):
        own_offsets = [offsets[each] for each in own_numbers]
        if program.relocate is not None:
            documents.append(program.relocate(own_offsets))
            places.append(None)
        else:
            (array,) = program.constants
            documents.append(program.document)
            places.append((own_offsets[0], array.nbytes))
    index_bytes = offsets_of([*constants[:indices], np.empty(0)])[-1]
    return _SharedPrograms(documents, places, *_shared_code(programs), constants, index_bytes)


def _indices(program: StoredProgram) -> int:
    """The number of constants, from the first on, that kernels may use as indices."""
    offsets = offsets_of(program.constants)
    return sum(offset < program.index_bytes for offset in offsets)


def _shared_code(
    programs: Sequence[StoredProgram],
) -> tuple[dict[str, bytes | memoryview], list[dict[str, str]]]:
    """The distinct code of programs by part, and for each program its parts by its own names."""
    code: dict[str, bytes | memoryview] = {}
    known: dict[bytes, str] = {}
    names = []
    for place, program in enumerate(programs):
        part_names = {}
        for name, data in program.code.items():
            digest = hashlib.sha256(data).digest()
            if digest not in known:
                known[digest] = f"{name} of program {place}"
                code[known[digest]] = data
            part_names[name] = known[digest]
        names.append(part_names)
    return code, names
