"""What predictions are written as: Parquet, or a JSON object in each line."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, BinaryIO

from minidnn.batch.predictor import PicturePrediction
from minidnn.errors import UnsupportedError

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
