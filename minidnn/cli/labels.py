"""The names of classes, from a file or ImageNet's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from minidnn.errors import MiniDNNError

IMAGENET = "imagenet"
_LONGEST_FILE = 16 << 20


def load_labels(source: str, count: int) -> list[str]:
    """The names of a network's classes, in the order of its outputs.

    Args:
        source: ``"imagenet"``, or a file: UTF-8 text with a name in each line, or JSON (by its
            extension): a list of names, or an object from numbers to names or to lists that end
            with a name (``{"0": ["n01440764", "tench"], ...}``).
        count: how many outputs the network has.

    Raises:
        MiniDNNError: the file cannot be read, or does not have ``count`` names.
    """
    names = read_labels(source)
    if len(names) != count:
        raise MiniDNNError(
            f"--labels {source} has {len(names)} names, but the network has {count} outputs"
        )
    return names


def read_labels(source: str) -> list[str]:
    """The names of classes, of any number; the rest is as for :func:`load_labels`."""
    if source == IMAGENET:
        from minidnn.cli.imagenet import IMAGENET_LABELS

        return list(IMAGENET_LABELS)
    return _read(Path(source))


def _read(path: Path) -> list[str]:
    try:
        with path.open("rb") as file:
            data = file.read(_LONGEST_FILE + 1)
        if len(data) > _LONGEST_FILE:
            raise MiniDNNError(f"--labels {path} is longer than {_LONGEST_FILE >> 20} MiB")
        text = data.decode("utf-8-sig")
    except OSError as error:
        raise MiniDNNError(f"--labels {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise MiniDNNError(f"--labels {path} is not UTF-8 text: {error}") from None
    if path.suffix.lower() != ".json":
        return [line.strip() for line in text.rstrip().splitlines()]
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MiniDNNError(f"--labels {path} is not valid JSON: {error}") from None
    return _from_json(document, path)


def _from_json(document: Any, path: Path) -> list[str]:
    if isinstance(document, dict):
        missing = next((i for i in range(len(document)) if str(i) not in document), None)
        if missing is not None:
            raise MiniDNNError(
                f"--labels {path}: the object of {len(document)} names has no key "
                f"{str(missing)!r}; valid are the keys '0', '1', ..."
            )
        document = [document[str(i)] for i in range(len(document))]
    if not isinstance(document, list):
        raise MiniDNNError(f"--labels {path}: valid is a list of names, or an object of them")
    names = [entry[-1] if isinstance(entry, list) and entry else entry for entry in document]
    for i, name in enumerate(names):
        if not isinstance(name, str):
            raise MiniDNNError(f"--labels {path}: entry {i} is {name!r:.60}, which is no name")
    return names
