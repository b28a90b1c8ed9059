"""Injects each fault into a copy of the tree and says whether the tests named with it notice.

    python -m tests.faults.run [--jobs N] [WORD ...]

WORD: runs the faults alone whose name or file has one of these words.  The exit status is 1 if a
fault is not noticed, or if its tests could not be run.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from tests.faults import FAULTS, Fault

ROOT = Path(__file__).resolve().parents[2]
LEFT_OUT = (".git", ".venv", ".*_cache", "__pycache__", "build", "dist", "out", "*.egg-info")
SECONDS = 900


@dataclass(frozen=True)
class Result:
    """What became of a fault.

    Attributes:
        noticed: whether a test failed.
        said: the first test that failed, or what pytest said instead.
        seconds: that the tests took.
    """

    fault: Fault
    noticed: bool
    said: str
    seconds: float

    def __str__(self) -> str:
        how = "noticed" if self.noticed else "NOT NOTICED"
        return f"{how:11} {self.seconds:5.0f} s  {self.fault.name} ({self.fault.file}): {self.said}"


@contextmanager
def copies(count: int) -> Iterator[SimpleQueue[Path]]:
    """Copies of the tree, for so many faults at once."""
    with tempfile.TemporaryDirectory(prefix="minidnn-faults-") as folder:
        trees: SimpleQueue[Path] = SimpleQueue()
        for number in range(count):
            tree = Path(folder) / str(number)
            shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(*LEFT_OUT), symlinks=True)
            trees.put(tree)
        yield trees


def run_tests(tree: Path, tests: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    """Runs tests of a tree, those that ``make test`` runs, until one fails or hangs.

    ``PYTHONPATH`` leads the processes that tests start to the same tree.
    """
    command = [sys.executable, "-W", "error", "-m", "pytest", "-W", "error", "-q", "-x"]
    return subprocess.run(
        [*command, "-p", "no:cacheprovider", "--tb", "no", "--timeout", "180", *tests],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


def try_fault(fault: Fault, tree: Path) -> Result:
    """Whether the tests named with a fault notice it, in a tree of one's own."""
    began = time.monotonic()
    with fault.injected(tree):
        try:
            ended = run_tests(tree, fault.tests)
        except subprocess.TimeoutExpired:
            return Result(fault, False, f"tests took over {SECONDS} s", time.monotonic() - began)
    told = ended.stdout.strip()
    failed = re.search(r"^(?:FAILED|ERROR) (.*)$", told, re.MULTILINE)
    # 1: tests ran and some failed; any other status says that they could not run.
    noticed = ended.returncode == 1 and failed is not None
    said = failed[1] if failed is not None else (told or ended.stderr.strip())[-300:]
    return Result(fault, noticed, said, time.monotonic() - began)


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.run", description=__doc__)
    parser.add_argument("--jobs", type=int, default=1, help="faults at once (1)")
    parser.add_argument("words", nargs="*", metavar="WORD")
    given = parser.parse_args(arguments)
    words: list[str] = given.words
    chosen = [f for f in FAULTS if not words or any(w in f.name or w in f.file for w in words)]
    if not chosen:
        parser.error(f"no fault has one of the words {words}; valid are {len(FAULTS)} faults")
    with copies(given.jobs) as trees, ThreadPoolExecutor(given.jobs) as pool:

        def attempt(fault: Fault) -> Result:
            tree = trees.get()
            try:
                return try_fault(fault, tree)
            finally:
                trees.put(tree)

        missed = 0
        for result in pool.map(attempt, chosen):
            print(result, flush=True)
            missed += not result.noticed
    print(f"{len(chosen) - missed} of {len(chosen)} faults were noticed")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
