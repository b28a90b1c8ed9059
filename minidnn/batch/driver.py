"""A run: lists the files, has parts of them computed, and keeps account of what is complete."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from minidnn.batch.files import FilePart, Found, parts_of, write_list
from minidnn.batch.manifest import (
    ATTEMPTS,
    LIST,
    LOCK,
    NAME,
    UNFINISHED,
    BatchError,
    Entry,
    FolderLock,
    Manifest,
    Worker,
    check_format,
    written_whole,
)
from minidnn.batch.predictor import Predictor

BAD = "bad.jsonl"

#: Computes parts, with as many copies of a worker as it likes, and gives what became of them in any
#: order.
Execute = Callable[[Worker, list[FilePart]], Iterator[Entry]]


@dataclass
class Summary:
    """What a run came to.

    Attributes:
        files: in all; ``good`` and ``bad`` are those that are done.
        computed: files that this process had computed, in ``seconds``.
        failed: why parts are not there, which the next run tries again.
    """

    files: int = 0
    good: int = 0
    bad: int = 0
    computed: int = 0
    seconds: float = 0.0
    failed: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Run:
    """A run, as its arguments say.

    Attributes:
        predictor: what predicts.
        pattern: of the files, absolute.
        folder: of the output.
        model: what tells the predictor from another, as JSON has it; a folder is gone on with only
            by the same.
        format: one of :data:`FORMATS`.
        part: files in each part.
        retries: how often a part is tried again whose worker was killed.
    """

    predictor: Predictor
    pattern: str
    folder: Path
    model: Mapping[str, Any]
    format: str = "parquet"
    part: int = 1000
    retries: int = 3

    def __call__(self, execute: Execute, say: Callable[[str], None]) -> Summary:
        """Computes what is missing.

        BatchError if the folder is not this run's, its manifest is damaged, or a part cannot be
        computed or written; what is complete by then stays.
        """
        check_format(self.format)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with FolderLock(self.folder):
                return self._locked(execute, say)
        except OSError as error:
            raise BatchError(
                f"{error.filename or self.folder}: {error.strerror or error}; what is complete "
                "stays, and the same command goes on from there"
            ) from error

    def _locked(self, execute: Execute, say: Callable[[str], None]) -> Summary:
        manifest = Manifest(self.folder)
        header = self._gone_on_with(manifest, say) or self._begin(manifest, say)
        self._sweep()
        parts, sha256 = parts_of(self.folder / LIST, self.part)
        if sha256 != header["sha256"]:
            raise BatchError(
                f"{self.folder / LIST} is not the list that the run began with; valid is another "
                "--output"
            )
        done = self._done(manifest, header["files"], len(parts), say)
        summary = Summary(header["files"])
        pending = [part for part in parts if not done[part.number]]
        if len(pending) < len(parts):
            say(f"{len(parts) - len(pending):,} of {len(parts):,} parts are there; going on")
        begin = time.perf_counter()
        if pending:
            self._compute(execute, pending, manifest, done, summary)
        summary.seconds = time.perf_counter() - begin
        self._finish(manifest, summary)
        return summary

    @property
    def _job(self) -> dict[str, Any]:
        return {"input": self.pattern, "format": self.format, "part": self.part, **self.model}

    def _gone_on_with(
        self, manifest: Manifest, say: Callable[[str], None]
    ) -> dict[str, Any] | None:
        """The header of the folder's run, if it is this one; None if it is to begin.

        Of another run that came to nothing, as one whose model could not be compiled, nothing
        stays.
        """
        if not manifest.exists:
            return None
        if manifest.mend():
            say(f"{manifest.path}: its last line was cut off; that part is computed again")
        header = manifest.header()
        differing = self._differing(header["job"])
        if not differing:
            return header
        if next(iter(manifest.entries()), None) is not None or self._others(NAME, BAD):
            raise BatchError(
                f"--output {self.folder} is of another run: {differing}; valid is another folder, "
                "or the same arguments"
            )
        for name in (BAD, NAME):
            (self.folder / name).unlink(missing_ok=True)
        return None

    def _others(self, *more: str) -> list[Path]:
        """What is in the folder beside the list of files and ``more``, and is no leftover."""
        ours = (LOCK, LIST, *more)
        found = self.folder.iterdir()
        return [each for each in found if each.name not in ours and not _is_left(each)]

    def _begin(self, manifest: Manifest, say: Callable[[str], None]) -> dict[str, Any]:
        """Lists the files, and writes a manifest with no parts."""
        if other := next(iter(self._others()), None):
            raise BatchError(
                f"--output {self.folder} has {other.name} and no manifest, so it is no folder of a "
                "run; valid are an empty one, and one to go on with"
            )
        found = Found(self.pattern)
        with written_whole(self.folder / LIST) as file:
            listed = write_list(found, file)
            if not listed.files:
                raise BatchError(
                    f"--input {self.pattern} means no picture files ({found.left:,} others are "
                    "there)"
                )
        header = {"job": self._job, "files": listed.files, "sha256": listed.sha256}
        manifest.begin(header)
        others_left = f", {found.left:,} other files are left alone" if found.left else ""
        say(f"{listed.files:,} files{others_left}")
        return header

    def _differing(self, job: Mapping[str, Any]) -> str:
        """What is another job than this, in words."""
        own = self._job
        names = [name for name in {**job, **own} if job.get(name) != own.get(name)]
        return "; ".join(f"{name} was {job.get(name)!r} and is {own.get(name)!r}" for name in names)

    def _sweep(self) -> None:
        """Takes away what killed processes left."""
        for each in self.folder.iterdir():
            if _is_left(each):
                each.unlink(missing_ok=True)

    def _done(
        self, manifest: Manifest, files: int, count: int, say: Callable[[str], None]
    ) -> list[bool]:
        """Which of so many parts are complete, by the manifest and by their files' sizes."""
        done = [False] * count
        for entry in manifest.entries():
            listed = min(self.part, files - entry["part"] * self.part)
            told = entry["good"] + len(entry["bad"])
            if entry["part"] >= count or told != listed:
                raise BatchError(
                    f"{manifest.path} has {told} files in part {entry['part']}, and the run has "
                    f"{count} parts of {self.part} files: it is damaged; valid is another --output"
                )
            path = self.folder / entry["name"]
            size = path.stat().st_size if path.exists() else None
            done[entry["part"]] = size == entry["bytes"]
            if not done[entry["part"]]:
                found = "is gone" if size is None else f"has {size:,} bytes"
                say(
                    f"{path} {found}, of {entry['bytes']:,} that were written; it is computed again"
                )
        return done

    def _compute(
        self,
        execute: Execute,
        pending: list[FilePart],
        manifest: Manifest,
        done: list[bool],
        summary: Summary,
    ) -> None:
        worker = Worker(self.predictor, self.folder, self.format, self.retries)
        for entry in execute(worker, pending):
            number = entry["part"]
            if entry.get("fatal"):
                raise BatchError(
                    f"part {number}: {entry['failed']}; what is complete stays, and the same "
                    "command goes on from there"
                )
            if "failed" in entry:
                summary.failed.append(f"part {number}: {entry['failed']}")
            elif not done[number]:
                manifest.add(entry)
                done[number] = True
                summary.computed += entry["good"] + len(entry["bad"])

    def _finish(self, manifest: Manifest, summary: Summary) -> None:
        """Counts what is there, and writes the list of bad files."""
        with written_whole(self.folder / BAD) as file:
            for entry in _latest(manifest):
                summary.good += entry["good"]
                summary.bad += len(entry["bad"])
                for each in entry["bad"]:
                    file.write(json.dumps(each, ensure_ascii=False).encode() + b"\n")


def _is_left(path: Path) -> bool:
    """Whether a killed process may have left a file."""
    return path.name.startswith(".") and path.suffix in (UNFINISHED, ATTEMPTS)


def _latest(manifest: Manifest) -> Iterable[Entry]:
    """The last entry of each part: one that was computed again has several."""
    last = {entry["part"]: place for place, entry in enumerate(manifest.entries())}
    for place, entry in enumerate(manifest.entries()):
        if last[entry["part"]] == place:
            yield entry
