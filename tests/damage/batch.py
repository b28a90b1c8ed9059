"""What ``minidnn batch`` reads: the folder of a run that goes on, pictures, names of classes."""

from __future__ import annotations

import json
import random
import shutil
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import minidnn as md
from minidnn import layers as L
from minidnn.batch import Predictor
from minidnn.batch.driver import Run, Summary
from minidnn.batch.files import FilePart
from minidnn.batch.manifest import Entry, Worker
from minidnn.cli.preparing import load_labels
from minidnn.pictures import Preparation
from tests.damage.format import Format
from tests.damage.mutations import mutated, mutated_document

COUNT = 6
_OURS = ("manifest.jsonl", "inputs.jsonl", "part-00000000.jsonl", "bad.jsonl")


class Batch(Format):
    """A folder of pictures, an output folder that lacks its last part, and a file of labels."""

    name = "batch"
    accepted = (0.05, 0.95)

    def make(self, folder: Path) -> None:
        from PIL import Image

        (folder / "pictures").mkdir()
        draw = np.random.default_rng(0)
        for number in range(COUNT):
            kind = ("png", "jpg", "gif", "bmp", "webp", "tiff")[number]
            image = Image.fromarray(draw.integers(0, 256, (9, 11, 3), np.uint8))
            image.save(folder / "pictures" / f"{number}.{kind}")
        names = {str(i): [f"n{i}", f"name {i}"] for i in range(3)}
        (folder / "labels.json").write_text(json.dumps(names))
        (folder / "labels.txt").write_text("eins\nzwei\ndrei\n")

    def open(self, folder: Path) -> None:
        self._folder = folder
        net = md.Sequential(L.Conv2d(3, 3, 3), L.Flatten(), L.Linear(108, 3))
        net.initialize(0)
        self._predictor = Predictor(net, Preparation(8, 8), top=2, batch=2, device="reference")
        self._pictures = sorted((folder / "pictures").iterdir())
        # Paths in the list are those of the pictures, which mutants lie beside.
        output = folder / "out"
        if not output.exists():
            self._run(folder, output)
            lines = (output / "manifest.jsonl").read_bytes().splitlines(keepends=True)
            (output / "manifest.jsonl").write_bytes(b"".join(lines[:-1]))
            (output / "part-00000002.jsonl").unlink()
        self._output = {name: (output / name).read_bytes() for name in _OURS}

    def mutate(self, draw: random.Random) -> dict[str, bytes]:
        self._kind = draw.choice(("output", "output", "output", "picture", "labels"))
        if self._kind == "picture":
            path = draw.choice(self._pictures)
            self._changed = path.name
            return {path.name: mutated(draw, path.read_bytes())}
        if self._kind == "labels":
            self._changed = draw.choice(("labels.json", "labels.txt"))
            return {self._changed: mutated(draw, (self._folder / self._changed).read_bytes())}
        name = draw.choice(("manifest.jsonl", "manifest.jsonl", *_OURS))
        data = self._output[name]
        if name == "manifest.jsonl" and draw.random() < 0.7:
            return {name: _other_lines(draw, data)}
        return {name: mutated(draw, data)}

    def read(self, folder: Path) -> Any:
        if self._kind == "labels":
            return load_labels(str(folder / self._changed), 3)
        if self._kind == "picture":
            (found,) = self._predictor.predict([str(folder / self._changed)])
            assert (found.values is None) == bool(found.error)
            return found
        output = folder / "out"
        shutil.rmtree(output, ignore_errors=True)
        output.mkdir()
        for name, data in self._output.items():
            given = folder / name
            (output / name).write_bytes(given.read_bytes() if given.exists() else data)
            given.unlink(missing_ok=True)
        summary = self._run(self._folder, output)
        assert summary.good + summary.bad <= COUNT, summary
        return summary

    def _run(self, folder: Path, output: Path) -> Summary:
        run = Run(self._predictor, str(folder / "pictures"), output, {"model": 1}, "jsonl", 2)
        return run(_one_by_one, lambda text: None)


def _one_by_one(worker: Worker, parts: list[FilePart]) -> Iterator[Entry]:
    yield from map(worker, parts)


def _other_lines(draw: random.Random, data: bytes) -> bytes:
    """A manifest that says something else, with right checksums."""
    lines = [json.loads(line) for line in data.splitlines()]
    for line in lines:
        line.pop("check")
    changed = mutated_document(draw, lines)
    text = b""
    for line in changed if isinstance(changed, list) else [changed]:
        body = json.dumps(line)[:-1].encode()
        text += body + f',"check":"{zlib.crc32(body):08x}"}}\n'.encode()
    return text


BATCH = Batch()
