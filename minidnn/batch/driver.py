"""The driver of a run of ``minidnn batch``.

It lists the files, splits the list into parts, has workers compute them, and records each complete
part in the manifest, so that the same command resumes a run that was interrupted.
"""

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

#: The file of the output folder that lists the pictures without predictions, and why.
BAD = "bad.jsonl"

#: An executor: computes parts with any number of copies of a worker, and yields the entry of each
#: part, in any order.
Execute = Callable[[Worker, list[FilePart]], Iterator[Entry]]


@dataclass
class Summary:
    """The result of a run.

    Attributes:
        files: the number of listed files.
        good, bad: files with predictions, and without, in all complete parts.
        computed: files whose parts this run computed, in ``seconds``.
        failed: why parts are missing, one text for each; the next run tries them again.
    """

    files: int = 0
    good: int = 0
    bad: int = 0
    computed: int = 0
    seconds: float = 0.0
    failed: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Run:
    """The configuration of a run; calling it runs it.

    Attributes:
        predictor: computes the predictions, in every worker.
        pattern: the absolute path, URL or glob pattern of the picture files.
        folder: the output folder.
        model: values for JSON that identify the predictor; only a run with equal ones resumes the
            folder.
        format: a key of :data:`minidnn.batch.manifest.FORMATS`.
        part: files in each part but the last.
        retries: how often a part is tried again after its worker was killed.
    """

    predictor: Predictor
    pattern: str
    folder: Path
    model: Mapping[str, Any]
    format: str = "parquet"
    part: int = 1000
    retries: int = 3

    def __call__(self, execute: Execute, say: Callable[[str], None]) -> Summary:
        """Computes the missing parts with ``execute``; ``say`` prints progress.

        BatchError if the folder is not this run's, its manifest is damaged, or a part cannot be
        computed or written; parts that are complete by then stay.
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
        header = self._resumed_header(manifest, say) or self._begin(manifest, say)
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
        """The arguments that decide a run's output, as its manifest's header has them."""
        return {"input": self.pattern, "format": self.format, "part": self.part, **self.model}

    def _resumed_header(
        self, manifest: Manifest, say: Callable[[str], None]
    ) -> dict[str, Any] | None:
        """Returns the header of the folder's manifest if it is this run's; None to begin a run.

        The files of another run that completed nothing, such as one whose model could not be
        compiled, are removed.
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
        """The folder's files but for the lock, the list, the names ``more``, and leftovers."""
        ours = (LOCK, LIST, *more)
        paths = self.folder.iterdir()
        return [path for path in paths if path.name not in ours and not _is_leftover(path)]

    def _begin(self, manifest: Manifest, say: Callable[[str], None]) -> dict[str, Any]:
        """Writes the list of files and a manifest without parts, and returns its header."""
        if other := next(iter(self._others()), None):
            raise BatchError(
                f"--output {self.folder} has {other.name} and no manifest, so it is no folder of a "
                "run; valid are an empty one, and one to go on with"
            )
        matches = Found(self.pattern)
        with written_whole(self.folder / LIST) as file:
            count, sha256 = write_list(matches, file)
            if not count:
                raise BatchError(
                    f"--input {self.pattern} means no picture files ({matches.left:,} others are "
                    "there)"
                )
        header = {"job": self._job, "files": count, "sha256": sha256}
        manifest.begin(header)
        others_left = f", {matches.left:,} other files are left alone" if matches.left else ""
        say(f"{count:,} files{others_left}")
        return header

    def _differing(self, job: Mapping[str, Any]) -> str:
        """The arguments in which a job differs from this run's, as text; "" if they are equal."""
        current = self._job
        names = [name for name in {**job, **current} if job.get(name) != current.get(name)]
        return "; ".join(
            f"{name} was {job.get(name)!r} and is {current.get(name)!r}" for name in names
        )

    def _sweep(self) -> None:
        """Removes the temporary files that killed processes left behind."""
        for path in self.folder.iterdir():
            if _is_leftover(path):
                path.unlink(missing_ok=True)

    def _done(
        self, manifest: Manifest, files: int, count: int, say: Callable[[str], None]
    ) -> list[bool]:
        """Returns for each of ``count`` parts whether it is complete.

        A part is complete if the manifest has an entry for it and its file has the size there.
        ``files`` is the number of listed files.
        """
        done = [False] * count
        for entry in manifest.entries():
            listed = min(self.part, files - entry["part"] * self.part)
            counted = entry["good"] + len(entry["bad"])
            if entry["part"] >= count or counted != listed:
                raise BatchError(
                    f"{manifest.path} has {counted} files in part {entry['part']}, and the run has "
                    f"{count} parts of {self.part} files: it is damaged; valid is another --output"
                )
            path = self.folder / entry["name"]
            size = path.stat().st_size if path.exists() else None
            done[entry["part"]] = size == entry["bytes"]
            if not done[entry["part"]]:
                shown = "is gone" if size is None else f"has {size:,} bytes"
                say(
                    f"{path} {shown}, of {entry['bytes']:,} that were written; it is computed again"
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
        """Has the pending parts computed, and records each in the manifest and the summary."""
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
        """Counts the files of complete parts, and writes the list of bad ones."""
        with written_whole(self.folder / BAD) as file:
            for entry in _latest_entries(manifest):
                summary.good += entry["good"]
                summary.bad += len(entry["bad"])
                for record in entry["bad"]:
                    file.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")


def _is_leftover(path: Path) -> bool:
    """Whether a file is a temporary one, which a killed process left behind."""
    return path.name.startswith(".") and path.suffix in (UNFINISHED, ATTEMPTS)


def _latest_entries(manifest: Manifest) -> Iterable[Entry]:
    """Yields the last entry of each part: one that was computed again has several."""
    last = {entry["part"]: index for index, entry in enumerate(manifest.entries())}
    for index, entry in enumerate(manifest.entries()):
        if last[entry["part"]] == index:
            yield entry
