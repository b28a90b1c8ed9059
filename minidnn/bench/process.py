"""Runs engines in processes of their own, and talks to them in lines of JSON.

Two engines in one process disturb each other, since their idle threads spin.  So each engine is
made in a fresh interpreter (:mod:`.worker`), and only one of them runs at a time.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from minidnn.errors import MiniDNNError


class EngineError(MiniDNNError, RuntimeError):
    """An engine under measurement (``engine`` is its name) failed, died, or took too long."""

    def __init__(self, text: str, engine: str = "") -> None:
        super().__init__(text)
        self.engine = engine


class EngineProcess:
    """A process that makes an engine and runs it on request.

    Args:
        name: of the engine, in error messages.
        target: ``"package.module:function"``; called there with ``options`` as keyword arguments,
            it returns a :class:`minidnn.bench.worker.LoadedEngine`.  The process looks for modules
            where this one does.
        options: arguments of the target, as plain JSON.
        environment: variables in addition to those that the process inherits.
        timeout: seconds that making the engine, or any later answer, may take.
        imports: modules that are imported before the engine's making is timed.

    Attributes:
        about: the engine's report: versions, settings, figures.
        seconds: how long the target took to make the engine.

    Raises:
        EngineError: the engine could not be made; the text quotes what its process printed.
    """

    def __init__(
        self,
        name: str,
        target: str,
        options: Mapping[str, Any],
        environment: Mapping[str, str] | None = None,
        timeout: float = 600.0,
        imports: Sequence[str] = (),
    ) -> None:
        self.name = name
        self.timeout = timeout
        path = os.pathsep.join(p or os.getcwd() for p in sys.path)
        self._printed = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed by close)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "minidnn.bench.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._printed,
            env={**os.environ, **(environment or {}), "PYTHONPATH": path},
        )
        self._unread = b""
        try:
            answer = self._ask(
                do="make", target=target, options=dict(options), imports=list(imports)
            )
        except BaseException:
            self.close()
            raise
        self.about: dict[str, Any] = answer["about"]
        self.seconds: float = answer["seconds"]

    @property
    def pid(self) -> int:
        return self._process.pid

    def run(self, count: int) -> list[float]:
        """Runs the engine ``count`` times; returns the seconds of each run."""
        seconds: list[float] = self._ask(do="run", count=count)["seconds"]
        return seconds

    def outputs(self) -> list[np.ndarray]:
        """Runs the engine once; returns its outputs."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "outputs.npz"
            count = self._ask(do="save", path=str(path))["outputs"]
            with np.load(path) as arrays:
                return [arrays[f"arr_{i}"] for i in range(count)]

    def memory(self) -> int:
        """The resident memory of the process, in bytes."""
        resident: int = self._ask(do="memory")["resident"]
        return resident

    def close(self) -> None:
        """Ends the process.  May be called again."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for file in (self._process.stdin, self._process.stdout, self._printed):
            if file is not None:
                file.close()

    def __enter__(self) -> EngineProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # The protocol

    def _ask(self, **request: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except (BrokenPipeError, ValueError):
            raise self._failed(f"its process has ended; asked to {request['do']}") from None
        answer: dict[str, Any] = json.loads(self._line(request["do"]))
        if "error" in answer:
            error = self._failed(f"could not {request['do']}: {answer['error']}")
            error.add_note(f"in the engine's process:\n{answer['at']}")  # a traceback shows it
            raise error
        return answer

    def _line(self, what: str) -> bytes:
        assert self._process.stdout is not None
        pipe = self._process.stdout.fileno()
        end = time.monotonic() + self.timeout
        while b"\n" not in self._unread:
            ready, _, _ = select.select([pipe], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                self._process.kill()
                raise self._failed(f"asked to {what}, no answer within {self.timeout:g} s")
            read = os.read(pipe, 1 << 16)
            if not read:
                status = self._process.wait()
                raise self._failed(f"asked to {what}, its process ended with status {status}")
            self._unread += read
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def _failed(self, what: str) -> EngineError:
        text = f"engine {self.name!r}: {what}"
        if not self._printed.closed:
            self._printed.seek(0)
            printed = self._printed.read().strip()
            text += f"\nit printed:\n{printed[-2000:]}" if printed else ""
        return EngineError(text, self.name)
