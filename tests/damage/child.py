"""Reads damaged files in a process of its own: ``python -m tests.damage.child FORMAT FIRST COUNT``.

For each seed one mutant is made, read and, if it is accepted, run; a line of JSON says what came of
it.  The test that starts this looks at the lines: a process that ends early crashed at the first
seed that is missing, and the same command with that seed and 1 shows it again.

Memory is limited, and so is the time of each mutant.  An allocation beyond the limit while a file
is read is a fault, even if it was turned into one of our errors: a small file must not ask for it.
While a network runs it must be an ``OutOfMemoryError``.
"""

from __future__ import annotations

import json
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path

from minidnn.errors import MiniDNNError, OutOfMemoryError
from tests.damage.formats import FORMATS, Format

MOST_SECONDS = 5
"""Of processor time for one mutant."""
MOST_BYTES = 1 << 30
"""Of address space beside what imports and samples take: 4 times what reading a model may use."""
LONGEST_MESSAGE = 20_000
READ = "read"


def outcome(format: Format, seed: int, folder: Path) -> str:
    """The class of the error that a mutant leads to, :data:`READ`, or a report of a fault."""
    draw, format.seed = random.Random(f"{format.name} {seed}"), seed
    for name, data in format.mutate(draw).items():
        (folder / name).write_bytes(data)
    is_read = False
    try:
        found = format.read(folder)
        is_read = True
        format.run(found)
    except MiniDNNError as error:
        if len(str(error)) > LONGEST_MESSAGE:
            return f"a message of {len(str(error))} letters: {str(error)[:2000]}"
        if not is_read and _ran_out(error):
            return f"an allocation beyond the limit while it was read: {traceback.format_exc()}"
        return type(error).__name__
    return READ


def _ran_out(error: BaseException) -> bool:
    """Whether an error was caused by an allocation that failed; a refusal by declared size is
    none."""
    reason: BaseException | None = error
    while reason is not None:
        if isinstance(reason, MemoryError) and not isinstance(reason, OutOfMemoryError):
            return True
        reason = reason.__cause__ or reason.__context__
    return False


class TooLongError(BaseException):
    """No ``Exception``, so that nothing that is tested takes it for one of its own."""


def _too_long(*_: object) -> None:
    raise TooLongError(f"over {MOST_SECONDS} s")


def look(format: Format, seeds: range, samples: Path, folder: Path) -> None:
    """Prints what comes of each seed."""
    format.open(samples)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + MOST_BYTES, before[1]))
    signal.signal(signal.SIGPROF, _too_long)
    for seed in seeds:
        began = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, MOST_SECONDS)
        try:
            found = outcome(format, seed, folder)
        except BaseException:
            found = traceback.format_exc()
        signal.setitimer(signal.ITIMER_PROF, 0)
        line = {"format": format.name, "seed": seed, "outcome": found}
        print(json.dumps({**line, "seconds": time.process_time() - began}), flush=True)
    resource.setrlimit(resource.RLIMIT_AS, before)


def main(names: str, first: int, count: int, samples: Path) -> None:
    warnings.simplefilter("ignore")  # of outputs that are declared otherwise, of NaN, of precision
    for name in names.split(","):
        if not (samples / name).exists():  # no test has made them
            (samples / name).mkdir()
            FORMATS[name].make(samples / name)
        with tempfile.TemporaryDirectory() as folder:
            look(FORMATS[name], range(first, first + count), samples / name, Path(folder))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        given = Path(sys.argv[4]) if len(sys.argv) > 4 else Path(made)
        main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), given)
