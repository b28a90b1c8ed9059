"""The file of a compiled network: what runs, for which machine, and packed weights to be mapped.

After 48 bytes (magic, format and length of the header as 32-bit numbers, its SHA-256) stands the
header as JSON: the version of minidnn, the device, the architecture and system that the code is
for, the network's inputs and outputs, what the device makes a program of, and the parts of the
file with offset, size and SHA-256.  Parts begin at pages: the code, and the constants.
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
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from minidnn import __version__
from minidnn.errors import UnsupportedError, WeightsError
from minidnn.runtime.program import ALIGNMENT, StoredProgram

MAGIC = b"\x89MDX\r\n\x1a\n"
"""As in PNG: a file that was transferred as text differs."""
FORMAT = 1
ALREADY = "it is a compiled network's file, which minidnn.load(path) loads; "
"""What a message says about one that stands where a network is wanted."""
CONSTANTS = "constants"
_START = struct.Struct("<8sII32s")
_PAGE = 4096
_MAX_HEADER = 64 << 20


def system() -> str:
    """What code must be made for beside the instruction set."""
    return f"{sys.platform}-{os.uname().machine}" if hasattr(os, "uname") else sys.platform


def is_compiled(path: str | os.PathLike[str]) -> bool:
    """Whether there is a file that begins like one of a compiled network."""
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
    """Writes a file, which appears complete or not at all.

    Raises:
        OSError: it cannot be written.
    """
    parts = {name: [memoryview(data)] for name, data in program.code.items()}
    parts[CONSTANTS] = list(_aligned(program.constants))
    listed: dict[str, list[Any]] = {}
    header: dict[str, Any] = {
        "minidnn": __version__,
        "device": device,
        "architecture": program.architecture,
        "system": system(),
        "network": network,
        "program": program.document,
        "parts": listed,
    }
    end = 0
    for name, pieces in parts.items():
        digest = hashlib.sha256()
        for piece in pieces:
            digest.update(piece)
        size = sum(piece.nbytes for piece in pieces)
        listed[name] = [end, size, digest.hexdigest()]
        end = _up(end + size, _PAGE)
    text = json.dumps(header, separators=(",", ":")).encode()
    start = _START.pack(MAGIC, FORMAT, len(text), hashlib.sha256(text).digest())
    target = Path(path)
    work = target.with_name(f".{target.name}.{secrets.token_hex(6)}")
    try:
        with open(work, "xb") as file:
            file.write(start + text)
            base = _up(file.tell(), _PAGE)
            for name, pieces in parts.items():
                file.seek(base + listed[name][0])
                file.writelines(pieces)
        os.replace(work, target)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(target)) from error  # not the work file
    finally:
        work.unlink(missing_ok=True)


def _aligned(arrays: Sequence[np.ndarray]) -> Iterator[memoryview]:
    for array in arrays:
        yield array.view(np.uint8).data
        if rest := -array.nbytes % ALIGNMENT:
            yield memoryview(bytes(rest))


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


class CompiledFile:
    """A compiled network's file, mapped for reading, its header and its code checked.

    The constants are not read: that would take longer than all else, and lets processes share
    them as long as nobody has to look at them.  :meth:`check_constants` does.

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
        ends = (self._base + offset + size for offset, size, _ in parts.values() if size)
        if (end := max(ends, default=0)) > self._bytes.size:
            raise self.damaged(f"it has {self._bytes.size} bytes of {end}: it is truncated")
        for name in parts:
            if name != CONSTANTS:
                self._check(name)

    def __str__(self) -> str:
        return f"compiled network {str(self.path)!r}"

    def damaged(self, problem: str) -> WeightsError:
        """The exception that says what is wrong with this file."""
        return WeightsError(f"{self} cannot be loaded: {problem}")

    def unsupported(self, problem: str) -> UnsupportedError:
        """The exception that says for what it is, and what to do."""
        return UnsupportedError(
            f"{self} {problem}; compile the network again, as it is to be loaded, and save that"
        )

    def part(self, name: str) -> np.ndarray:
        """The bytes of a part, read-only."""
        offset, size, _ = self.header["parts"][name]
        return self._bytes[self._base + offset :][:size]

    def digest(self, name: str) -> str:
        """The SHA-256 of a part."""
        return str(self.header["parts"][name][2])

    def check_constants(self) -> None:
        """WeightsError if they are not those that were written."""
        self._check(CONSTANTS)

    def _check(self, name: str) -> None:
        if hashlib.sha256(self.part(name).data).hexdigest() != self.digest(name):
            raise self.damaged(f"{name} is not what was written (its checksum differs)")

    def _mapped(self) -> mmap.mmap:
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
        except OSError as error:  # its text has the path, which stands here already
            raise self.damaged(error.strerror or str(error)) from error

    def _header(self) -> dict[str, Any]:
        _, version, size, digest = _START.unpack_from(self._data)
        if version != FORMAT:
            raise self.unsupported(
                f"has format {version}, and minidnn {__version__} reads format {FORMAT}"
            )
        text = self._data[_START.size : _START.size + size]
        if size > _MAX_HEADER or len(text) < size:
            raise self.damaged(f"it has {len(self._data)} bytes: it is truncated or damaged")
        if hashlib.sha256(text).digest() != digest:
            raise self.damaged("its header is not what was written (its checksum differs)")
        self._base = _up(_START.size + size, _PAGE)
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
