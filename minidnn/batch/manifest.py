"""The output folder of a run: part files, the worker that writes them, and the manifest.

A worker reads and predicts the files of a part and writes its part file atomically, complete or not
at all.  The manifest is a file of JSON lines: a header that identifies the run, and an entry for
each part, appended once the part file is complete.  Every line ends with its checksum.  Only the
last one can be cut off, by a process that was killed while it wrote; its part is computed again.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
import socket
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Self

from minidnn.batch.files import FilePart, files_of
from minidnn.batch.predictor import PicturePrediction, Predictor
from minidnn.errors import MiniDNNError, UnsupportedError
from minidnn.graph.registry import is_text

#: Writes predictions that have values, with the named columns of them, to a file.
Write = Callable[[Iterable[PicturePrediction], tuple[str, ...], BinaryIO], None]


def readable(name: str) -> str:
    """Returns a file's name as valid Unicode, with bytes that are no UTF-8 as escapes."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def write_lines(
    found: Iterable[PicturePrediction], columns: tuple[str, ...], file: BinaryIO
) -> None:
    """Writes one JSON object per line."""
    for prediction in found:
        values = prediction.values or {}
        row = {"file": readable(prediction.file), **{name: values[name] for name in columns}}
        text = json.dumps(row, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        file.write(text.encode() + b"\n")


def write_parquet(
    found: Iterable[PicturePrediction], columns: tuple[str, ...], file: BinaryIO
) -> None:
    """Writes a Parquet file, whose schema depends on the columns alone, not on the rows."""
    arrow = _arrow()
    import pyarrow.parquet

    types = {
        "classes": arrow.list_(arrow.int64()),
        "probabilities": arrow.list_(arrow.float64()),
        "labels": arrow.list_(arrow.string()),
        "scores": arrow.list_(arrow.float32()),
    }
    schema = arrow.schema([("file", arrow.string()), *((name, types[name]) for name in columns)])
    with pyarrow.parquet.ParquetWriter(file, schema, compression="zstd") as writer:
        rows = [{"file": readable(p.file), **(p.values or {})} for p in found]
        writer.write_table(arrow.Table.from_pylist(rows, schema))


def _arrow() -> Any:
    try:
        import pyarrow
    except ImportError:
        raise UnsupportedError(
            "--format parquet: pyarrow is not installed (pip install 'minidnn[batch]'); jsonl "
            "needs nothing"
        ) from None
    return pyarrow


def check_format(name: str) -> None:
    """UnsupportedError if what a format needs is not installed."""
    if name == "parquet":
        _arrow()


FORMATS: dict[str, Write] = {"parquet": write_parquet, "jsonl": write_lines}


LIST = "inputs.jsonl"
#: Suffixes of the files that killed workers leave behind, and the next run removes: unfinished
#: files, and counts of a part's attempts.
UNFINISHED, ATTEMPTS = ".tmp", ".attempts"

#: The result of a part, as a dict for JSON.  Of a complete part: "part" (its number), "name" and
#: "bytes" (its file), "good" (files with predictions) and "bad" (the others, with the reason).
#: Else: "part", "failed" (the reason), and "fatal" if the whole run must stop.
Entry = dict[str, Any]


@contextmanager
def written_whole(path: Path) -> Iterator[BinaryIO]:
    """Opens a file to write that appears under its name once it is complete and on the disk.

    OSError with that name if it cannot be written.
    """
    work = path.with_name(f".{path.name}.{secrets.token_hex(6)}{UNFINISHED}")
    try:
        with open(work, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(work, path)
        sync(path.parent)
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error
    finally:
        work.unlink(missing_ok=True)


def sync(folder: Path) -> None:
    """Syncs a folder to the disk, so that a rename in it survives a loss of power."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@dataclass
class Worker:
    """Computes parts; an executor pickles it to every worker process.

    Attributes:
        predictor: computes the predictions.
        folder: the output folder, which all workers share.
        format: a key of :data:`FORMATS`.
        retries: how often a part is tried again after its worker was killed.
    """

    predictor: Predictor
    folder: Path
    format: str
    retries: int

    def __call__(self, part: FilePart) -> Entry:
        """Computes a part and returns its entry.

        Errors are returned in the entry, not raised: an executor would wrap them in errors of its
        own.  A file beside the part counts attempts, since a killed worker can report nothing.
        """
        attempts = self.folder / f".part-{part.number:08d}{ATTEMPTS}"
        try:
            before = _begin(attempts)
            if before > self.retries:
                return {"part": part.number, "failed": self._died(part, before)}
            entry = self._compute(part)
            attempts.unlink(missing_ok=True)
            return entry
        except OSError as error:
            reason = f"{error.filename or self.folder}: {error.strerror or error}"
        except (MiniDNNError, MemoryError) as error:
            reason = str(error) or type(error).__name__
        return {"part": part.number, "failed": reason, "fatal": True}

    def _compute(self, part: FilePart) -> Entry:
        files = files_of(self.folder / LIST, part)
        predictions = list(self.predictor.predict(files))
        good = [prediction for prediction in predictions if prediction.values is not None]
        bad = [prediction for prediction in predictions if prediction.values is None]
        path = self.folder / f"part-{part.number:08d}.{self.format}"
        with written_whole(path) as file:
            FORMATS[self.format](good, self.predictor.columns, file)
        return {
            "part": part.number,
            "name": path.name,
            "bytes": path.stat().st_size,
            "good": len(good),
            "bad": [
                {"file": readable(prediction.file), "error": readable(prediction.error)}
                for prediction in bad
            ],
        }

    def _died(self, part: FilePart, times: int) -> str:
        """The reason for giving up a part whose worker was killed so often."""
        files = files_of(self.folder / LIST, part)
        return (
            f"its worker was killed {times} times; its {len(files)} files go from {files[0]} to "
            f"{files[-1]}: one of them may need more memory than there is, or crash its decoder"
        )


def _begin(attempts: Path) -> int:
    """Counts one more attempt at a part, and returns how many there were before.

    The file has one byte for each attempt.
    """
    descriptor = os.open(attempts, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    try:
        before = os.fstat(descriptor).st_size
        os.write(descriptor, b".")
    finally:
        os.close(descriptor)
    return before


class BatchError(MiniDNNError, RuntimeError):
    """Predictions for files cannot be made or kept: a folder of another run, a damaged manifest, a
    full disk.

    >>> try:
    ...     raise md.batch.BatchError("--output out: another process writes there")
    ... except md.MiniDNNError as error:
    ...     print(error)
    """


NAME, LOCK = "manifest.jsonl", ".lock"
_FORMAT = 1
_PART_NAME = re.compile(r"part-\d{8,19}\.[a-z]{1,10}", re.ASCII)
_CHECK = ',"check":"{:08x}"}}'
_CHECK_LENGTH = len(_CHECK.format(0))


class FolderLock:
    """Locks an output folder for one process, until it is closed or the process ends.

    BatchError if another process has the lock.
    """

    def __init__(self, folder: Path) -> None:
        self._descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(self._descriptor, 200, 0).decode("utf-8", "replace")
            os.close(self._descriptor)
            raise BatchError(
                f"--output {folder}: {holder or 'another process'} writes there; valid is another "
                "folder, or to wait"
            ) from None
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.ftruncate(self._descriptor, 0)
        os.close(self._descriptor)


class Manifest:
    """The manifest of an output folder.

    BatchError if it is damaged; OSError if it cannot be read or written.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME

    @property
    def exists(self) -> bool:
        return self.path.exists()

    def begin(self, header: Mapping[str, Any]) -> None:
        """Writes a manifest with a header and no parts."""
        with written_whole(self.path) as file:
            file.write(_line({"minidnn_batch": _FORMAT, **header}))

    def header(self) -> dict[str, Any]:
        """Reads the header: "job" (the run's arguments), "files" (their number) and "sha256" (of
        the list of files)."""
        header = next(self._lines(), None)
        if header is None or "minidnn_batch" not in header:
            raise BatchError(
                f"{self.path} has no header, so that nobody can tell which run its folder is of; "
                "valid is another --output"
            )
        if header["minidnn_batch"] != _FORMAT:
            raise BatchError(
                f"{self.path} is of format {header['minidnn_batch']!r:.80}; valid is {_FORMAT}"
            )
        if not _is_of(header, _HEADER):
            raise BatchError(self._damaged(1))
        return header

    def entries(self) -> Iterator[Entry]:
        """Yields the entries of complete parts, in the order in which they became complete."""
        for number, entry in enumerate(self._lines(), 1):
            if number > 1:
                if not _is_of(entry, _ENTRY):
                    raise BatchError(self._damaged(number))
                yield entry

    def add(self, entry: Entry) -> None:
        """Appends the entry of a part, completely or not at all."""
        data = _line(entry)
        before = self.path.stat().st_size
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND)
        try:
            while data:  # a disk that fills up writes some bytes before it fails
                data = data[os.write(descriptor, data) :]
            os.fsync(descriptor)
        except OSError as error:
            os.ftruncate(descriptor, before)
            raise OSError(error.errno, error.strerror, str(self.path)) from error
        finally:
            os.close(descriptor)

    def mend(self) -> bool:
        """Removes a last line that was cut off; returns whether there was one."""
        with self.path.open("r+b") as file:
            complete_bytes = sum(len(line) for line in file if line.endswith(b"\n"))
            if complete_bytes in (0, file.tell()):
                return False
            file.truncate(complete_bytes)
        sync(self.path.parent)
        return True

    def _lines(self) -> Iterator[dict[str, Any]]:
        with self.path.open("rb") as file:
            for number, line in enumerate(file, 1):
                content = _parsed(line)
                if content is None:
                    raise BatchError(self._damaged(number))
                yield content

    def _damaged(self, number: int) -> str:
        if number == 1:
            return f"{self.path} is damaged in its header; valid is another --output"
        return (
            f"{self.path} is damaged in line {number}; without that line its part is computed "
            "again, and the others stay as they are"
        )


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _are_bad(value: Any) -> bool:
    """Whether a value is a list of files with the error of each."""
    return isinstance(value, list) and all(
        isinstance(record, dict)
        and record.keys() == {"file", "error"}
        and all(map(is_text, record.values()))
        for record in value
    )


def _is_of(found: Mapping[str, Any], kinds: Mapping[str, Callable[[Any], bool]]) -> bool:
    """Whether a line has all required fields, each with a valid value."""
    return all(name in found and is_right(found[name]) for name, is_right in kinds.items())


_HEADER: dict[str, Callable[[Any], bool]] = {
    "job": lambda value: isinstance(value, dict),
    "files": _is_count,
    "sha256": lambda value: isinstance(value, str),
}
_ENTRY: dict[str, Callable[[Any], bool]] = {
    "part": _is_count,
    # The name of a part file, without a path.
    "name": lambda value: isinstance(value, str) and _PART_NAME.fullmatch(value) is not None,
    "bytes": _is_count,
    "good": _is_count,
    "bad": _are_bad,
}


def _line(content: Mapping[str, Any]) -> bytes:
    """A line of the manifest: a JSON object whose last field is the CRC-32 of the text before."""
    text = json.dumps(content, separators=(",", ":"))[:-1]
    return f"{text}{_CHECK.format(zlib.crc32(text.encode()))}\n".encode()


def _parsed(line: bytes) -> dict[str, Any] | None:
    """Parses a line; None if its checksum is wrong or it is no JSON object."""
    text, check = line[: -_CHECK_LENGTH - 1], line[-_CHECK_LENGTH - 1 :]
    if check != f"{_CHECK.format(zlib.crc32(text))}\n".encode():
        return None
    try:
        content = json.loads(text + b"}")
    except (ValueError, RecursionError):  # tampered with, checksum included
        return None
    return content if isinstance(content, dict) else None
