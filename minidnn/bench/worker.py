"""The program of an engine's process: makes the engine, then runs it on request.

    python -m minidnn.bench.worker          (started by :mod:`.process`, which speaks to it)

Requests and answers are lines of JSON on standard input and output.  Whatever a library prints to
standard output meanwhile goes to standard error.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TextIO


@dataclass(frozen=True)
class LoadedEngine:
    """An engine that is ready to run.

    Attributes:
        run: runs it once on the inputs that it holds; the result is passed to ``outputs``.
        outputs: converts the result of a run to NumPy arrays.
        about: its report, such as versions and settings, as plain JSON.
    """

    run: Callable[[], Any]
    outputs: Callable[[Any], list[Any]] = field(default=lambda result: [result])
    about: Mapping[str, Any] = field(default_factory=dict)


def main() -> int:
    """Answers requests until the input ends (exit code 0) or one fails (1)."""
    requests, answers = sys.stdin, os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    engine: LoadedEngine | None = None
    for line in requests:
        try:
            request = json.loads(line)
            if request["do"] == "make":
                for name in request["imports"]:
                    importlib.import_module(name)
                start = time.perf_counter()
                engine = _make(request["target"], request["options"])
                answer = {"seconds": time.perf_counter() - start, "about": dict(engine.about)}
            else:
                assert engine is not None, "the first request makes the engine"
                answer = _DO[request["do"]](engine, request)
        except BaseException as error:  # EngineProcess raises it
            at = "".join(traceback.format_exception(error))
            _answer(answers, {"error": f"{type(error).__name__}: {error}", "at": at})
            return 1
        _answer(answers, answer)
    return 0


def _answer(answers: TextIO, answer: Mapping[str, Any]) -> None:
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


def made_by(function: str, options: Mapping[str, Any]) -> Any:
    """Calls a function, ``"package.module:function"``, with ``options``."""
    module, _, name = function.partition(":")
    return getattr(importlib.import_module(module), name)(**options)


def _make(target: str, options: Mapping[str, Any]) -> LoadedEngine:
    engine = made_by(target, options)
    if not isinstance(engine, LoadedEngine):
        raise TypeError(f"{target} returned {type(engine).__name__}, not a LoadedEngine")
    return engine


def _run(engine: LoadedEngine, request: Mapping[str, Any]) -> dict[str, Any]:
    seconds = []
    for _ in range(request["count"]):
        start = time.perf_counter()
        engine.run()
        seconds.append(time.perf_counter() - start)
    return {"seconds": seconds}


def _save(engine: LoadedEngine, request: Mapping[str, Any]) -> dict[str, Any]:
    import numpy as np

    arrays = [np.asarray(array) for array in engine.outputs(engine.run())]
    np.savez(request["path"], *arrays)
    return {"outputs": len(arrays)}


def _memory(engine: LoadedEngine, request: Mapping[str, Any]) -> dict[str, Any]:
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            resident = int(file.read().split()[1]) * resource.getpagesize()
    except OSError:  # not Linux: the peak so far
        resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"resident": resident}


_DO: dict[str, Callable[[LoadedEngine, Mapping[str, Any]], dict[str, Any]]] = {
    "run": _run,
    "save": _save,
    "memory": _memory,
}

if __name__ == "__main__":
    # Uses the module that engines import LoadedEngine from, not this copy, which is __main__.
    from minidnn.bench.worker import main as serve

    sys.exit(serve())
