"""A memory-mapped weight file, arrays over its bytes, and short texts for error messages.

The readers of all formats use it: :mod:`.safetensors`, :mod:`.pytorch`, :mod:`._zip`,
:mod:`._pickle`.
"""

from __future__ import annotations

import mmap
import os
import reprlib
import stat
from pathlib import Path
from typing import Any

import numpy as np

from ..compiled_file import MAGIC
from ..errors import WeightsError

Array = np.ndarray[Any, np.dtype[Any]]

# Dtype codes of safetensors, and NumPy's dtypes without byte order.  BF16 is read as float32.
DTYPES = {
    "F64": "f8",
    "F32": "f4",
    "F16": "f2",
    "BF16": "u2",
    "I64": "i8",
    "I32": "i4",
    "I16": "i2",
    "I8": "i1",
    "U8": "u1",
    "BOOL": "u1",
}
MAX_RANK = 32


class _Brief(reprlib.Repr):
    """A ``repr`` that descends into plain lists, tuples and dicts alone.

    Other containers print all of their elements, and a hostile pickle can make one whose text is
    exponentially long.
    """

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxlong = 100
        self.maxlevel = 2

    def repr_instance(self, x: object, level: int) -> str:
        if x is None or isinstance(x, (bool, float)):
            return repr(x)
        if isinstance(x, bytes):
            return repr(x[:50]) + ("..." if len(x) > 50 else "")
        return f"<{type(x).__name__}>"


_brief = _Brief()


def brief(value: object) -> str:
    """The ``repr`` of a value from a file, truncated in length and depth, for error messages."""
    return _brief.repr(value)


class Unread:
    """A tensor that cannot be read, in its place among those that can.

    Its name, shape and dtype are known.  Whoever needs it as an array gets a WeightsError that
    says why it is none.

    Attributes:
        dtype: what the file says: "float8_e4m3fn", "F8_E4M3".
        shape: None where the file does not say it in a way that is known.
    """

    def __init__(self, dtype: str, shape: tuple[int, ...] | None, problem: WeightsError) -> None:
        self.dtype = dtype
        self.shape = shape
        self._problem = problem

    @property
    def ndim(self) -> int | None:
        return None if self.shape is None else len(self.shape)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        raise WeightsError(str(self._problem))

    def __repr__(self) -> str:
        return f"<Unread {self.dtype}, shape {brief(self.shape)}>"


def is_size(value: Any) -> bool:
    """Whether a value from a file is a size or an offset: an integer that fits in 64 bits."""
    return type(value) is int and 0 <= value < 2**63


def are_sizes(values: Any) -> bool:
    """Whether a value from a file is a list or a tuple of sizes."""
    return isinstance(values, (list, tuple)) and all(map(is_size, values))


def itemsize(code: str) -> int:
    """The size of an element with this dtype code, in bytes."""
    return np.dtype(DTYPES[code]).itemsize


class MappedFile:
    """A regular file, memory-mapped for reading; it stays mapped while an array over it exists.

    Attributes:
        path: of the file.
        size: of the file, in bytes.
        data: its content.

    Raises:
        WeightsError: there is no such file, it is not a regular file, or it cannot be read.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        try:
            # Opening a named pipe would block until it has a writer.
            if not stat.S_ISREG(os.stat(self.path).st_mode):
                raise self.error("is not a regular file")
            with open(self.path, "rb") as file:
                self.size = os.fstat(file.fileno()).st_size
                self.data: mmap.mmap | bytes = b""
                if self.size:
                    self.data = mmap.mmap(file.fileno(), self.size, access=mmap.ACCESS_READ)
            if self.data[:8] == MAGIC:
                raise self.error("is a compiled network, which minidnn.load(path) loads")
        except WeightsError:
            raise
        except OSError as error:  # not its text, which repeats the path
            raise self.error(f"cannot be read: {error.strerror or error}") from error
        except ValueError as error:
            raise self.error(f"cannot be read: {error}") from error

    def error(self, problem: str) -> WeightsError:
        """The exception that says what is wrong with this file."""
        return WeightsError(f"weight file {str(self.path)!r}: {problem}")

    def array(self, code: str, offset: int, count: int, *, big: bool, what: str) -> Array:
        """``count`` elements at ``offset`` as a flat, read-only array.

        The array is a view of the file where its bytes can be used as they are.  BF16 becomes
        float32, which holds each of its values exactly.

        Args:
            code: the dtype, a key of :data:`DTYPES`.
            offset: in bytes from the beginning of the file.
            count: number of elements.
            big: whether the elements are stored in big-endian byte order.
            what: the name of the elements in error messages.

        Raises:
            WeightsError: the elements exceed the file, or a BOOL is neither 0 nor 1.
        """
        stored = np.dtype(DTYPES[code]).newbyteorder(">" if big else "<")
        end = offset + count * stored.itemsize
        if not 0 <= offset <= end <= self.size:
            raise self.error(f"{what}: bytes {offset} to {end} are not in its {self.size} bytes")
        # frombuffer refuses to make an empty array
        flat = np.frombuffer(self.data, stored, count, offset) if count else np.empty(0, stored)
        if code == "BF16":
            bits = np.empty(count, np.uint32)
            np.left_shift(flat, np.uint32(16), out=bits, dtype=np.uint32)
            flat = bits.view(np.float32)
        elif code == "BOOL":
            if count and flat.max() > 1:
                index = int(flat.argmax())
                raise self.error(
                    f"{what}: element {index} of BOOL data is {int(flat[index])}; valid are 0 and 1"
                )
            flat = flat.view(np.bool_)
        elif not flat.dtype.isnative or not flat.flags.aligned:
            flat = flat.astype(stored.newbyteorder("="))
        flat.flags.writeable = False
        return flat
