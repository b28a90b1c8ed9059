"""One part: its files are read, predicted and written, so that it is there whole or not at all."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from minidnn.batch.files import FilePart, files_of
from minidnn.batch.predictor import PicturePrediction, Predictor
from minidnn.errors import MiniDNNError, UnsupportedError

#: Writes the predictions that have values, of which there are the columns named.
Write = Callable[[Iterable[PicturePrediction], tuple[str, ...], BinaryIO], None]


def readable(name: str) -> str:
    """A file's name as text, with what is no UTF-8 in it as escapes."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def write_lines(
    found: Iterable[PicturePrediction], columns: tuple[str, ...], file: BinaryIO
) -> None:
    """One JSON object a line."""
    for each in found:
        values = each.values or {}
        row = {"file": readable(each.file), **{name: values[name] for name in columns}}
        text = json.dumps(row, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        file.write(text.encode() + b"\n")


def write_parquet(
    found: Iterable[PicturePrediction], columns: tuple[str, ...], file: BinaryIO
) -> None:
    """A Parquet file, of one schema however few rows it has."""
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
#: What workers leave when they are killed, which the next run takes away.
UNFINISHED, ATTEMPTS = ".tmp", ".attempts"

#: What became of a part, as JSON has it; with "failed" it is not there.
Entry = dict[str, Any]


@contextmanager
def written_whole(path: Path) -> Iterator[BinaryIO]:
    """A file that appears under its name once it is complete and on the disk.

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
    """Lets a rename in a folder survive a loss of power."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@dataclass
class Worker:
    """Computes parts; it is sent to every process that does.

    Attributes:
        folder: of the output.
        retries: how often a part is tried again whose worker was killed.
    """

    predictor: Predictor
    folder: Path
    format: str
    retries: int

    def __call__(self, part: FilePart) -> Entry:
        """What became of a part.  What goes wrong with it is told, not raised: whoever runs workers
        would pack it in errors of their own."""
        attempts = self.folder / f".part-{part.number:08d}{ATTEMPTS}"
        try:
            before = _begin(attempts)
            if before > self.retries:
                return {"part": part.number, "failed": self._died(part, before)}
            entry = self._compute(part)
            attempts.unlink(missing_ok=True)
        except OSError as error:
            reason = f"{error.filename or self.folder}: {error.strerror or error}"
            return {"part": part.number, "failed": reason, "fatal": True}
        except (MiniDNNError, MemoryError) as error:
            reason = str(error) or type(error).__name__
            return {"part": part.number, "failed": reason, "fatal": True}
        return entry

    def _compute(self, part: FilePart) -> Entry:
        files = files_of(self.folder / LIST, part)
        found = list(self.predictor.predict(files))
        good = [each for each in found if each.values is not None]
        bad = [each for each in found if each.values is None]
        path = self.folder / f"part-{part.number:08d}.{self.format}"
        with written_whole(path) as file:
            FORMATS[self.format](good, self.predictor.columns, file)
        return {
            "part": part.number,
            "name": path.name,
            "bytes": path.stat().st_size,
            "good": len(good),
            "bad": [{"file": readable(each.file), "error": readable(each.error)} for each in bad],
        }

    def _died(self, part: FilePart, times: int) -> str:
        files = files_of(self.folder / LIST, part)
        return (
            f"its worker was killed {times} times; its {len(files)} files go from {files[0]} to "
            f"{files[-1]}: one of them may need more memory than there is, or crash its decoder"
        )


def _begin(attempts: Path) -> int:
    """How often the part was begun before, and notes that it is begun again."""
    descriptor = os.open(attempts, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    try:
        before = os.fstat(descriptor).st_size
        os.write(descriptor, b".")
    finally:
        os.close(descriptor)
    return before
