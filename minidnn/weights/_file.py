"""A weight file mapped into memory, and arrays over its bytes."""

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

# Codes as in safetensors; NumPy's type without byte order.  BF16 is read as float32.
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
    """Looks into nothing but plain lists, tuples and dicts: other containers print all they hold,

    and a hostile pickle can make one whose text is exponentially long.
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
    """The ``repr`` of something that a file said, cut to a bearable length and depth."""
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


def itemsize(code: str) -> int:
    """Bytes of one element of a dtype code."""
    return np.dtype(DTYPES[code]).itemsize


class MappedFile:
    """A regular file, mapped for reading; it stays mapped while an array over it lives.

    Raises:
        WeightsError: there is no such file, it is not a regular one, or it cannot be read.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        try:
            # Opening a named pipe would wait for its writer.
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
        except OSError as error:  # its text has the path, which stands here already
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
            code: one of :data:`DTYPES`.
            offset: in bytes; the caller has checked that all lies within the file.
            big: the elements are stored with their most significant byte first.
            what: names the elements in an error.

        Raises:
            WeightsError: a BOOL is neither 0 nor 1.
        """
        stored = np.dtype(DTYPES[code]).newbyteorder(">" if big else "<")
        end = offset + count * stored.itemsize
        if not 0 <= offset <= end <= self.size:
            raise self.error(f"{what}: bytes {offset} to {end} are not in its {self.size} bytes")
        # frombuffer refuses to make an empty array
        flat = np.frombuffer(self.data, stored, count, offset) if count else np.empty(0, stored)
        if code == "BF16":
            wide = np.empty(count, np.uint32)
            np.left_shift(flat, np.uint32(16), out=wide, dtype=np.uint32)
            flat = wide.view(np.float32)
        elif code == "BOOL":
            if count and flat.max() > 1:
                at = int(flat.argmax())
                raise self.error(
                    f"{what}: element {at} of BOOL data is {int(flat[at])}; valid are 0 and 1"
                )
            flat = flat.view(np.bool_)
        elif not flat.dtype.isnative or not flat.flags.aligned:
            flat = flat.astype(stored.newbyteorder("="))
        flat.flags.writeable = False
        return flat
