"""Workers that raise, hang or are killed, Ctrl-C, forks: a clear error, and no process left."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from minidnn.data import Arrays, DataError, Draws, Loader

X, Y = np.zeros((12, 1, 4, 4), np.float32), np.arange(12)


class Faulty:
    """A step that does something to the process on one sample; sent to processes by name."""

    def __init__(self, what: str) -> None:
        self.what = what

    def __call__(self, x: np.ndarray, draws: Draws) -> np.ndarray:
        if draws.integers(2**40)[0] != Draws(0, 0, np.array([4])).integers(2**40)[0]:
            return x
        if self.what == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise ZeroDivisionError("the step is broken")


def loader(what: str, processes: bool) -> Loader:
    return Loader(Arrays(X, Y, [Faulty(what)]), 2, workers=2, processes=processes)


@pytest.fixture
def raising() -> Iterator[Loader]:
    one = loader("raise", processes=True)
    yield one
    one.close()


def test_an_error_in_a_process_has_its_traceback_and_ends_nothing(raising: Loader) -> None:
    batches = iter(raising)
    assert len([next(batches), next(batches)]) == 2
    with pytest.raises(DataError) as caught:
        next(batches)
    text = str(caught.value)
    assert "failed on samples 4, 5: ZeroDivisionError: the step is broken" in text
    assert "In worker process" in text and 'raise ZeroDivisionError("the step is broken")' in text
    workers = raising._workers
    raising.restore({**raising.state(), "position": 3})
    assert len(list(raising)) == 3 and raising._workers is workers


def test_an_error_in_a_thread_has_its_traceback() -> None:
    with pytest.raises(DataError, match="failed on samples 4, 5: Zero") as caught:
        list(loader("raise", processes=False))
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_process_that_dies_is_told_and_replaced() -> None:
    one = loader("kill", processes=True)
    text = "was killed by SIGKILL before it gave batch 2 of epoch 0; .*memory runs out"
    with pytest.raises(DataError, match=f"worker process [0-9]+ {text}"):
        list(one)
    one.restore({**one.state(), "position": 3})
    assert len(list(one)) == 3
    one.close()


def test_what_cannot_be_sent_is_refused() -> None:
    one = Loader(Arrays(X, Y, [lambda x, draws: x]), 2, workers=1, processes=True)
    with pytest.raises(DataError, match=r"the dataset cannot be sent to a process: .*lambda"):
        list(one)


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_child_of_a_fork_starts_its_own_threads() -> None:
    one = Loader(Arrays(X, Y), 2, workers=2)
    list(one)
    pid = os.fork()
    if not pid:
        os._exit(0 if len(list(one)) == 6 else 1)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert len(list(one)) == 6


SCRIPT = """
import os, sys, time
import numpy as np
from minidnn import data

class Slow:
    def __call__(self, x, draws):
        print("a step has begun", flush=True)
        time.sleep({seconds})
        return x

def main():
    x, y = np.zeros((40, 1, 4, 4), np.float32), np.arange(40)
    loader = data.Loader(data.Arrays(x, y, [Slow()]), 2, workers=2, processes={processes})
    for batch in loader:
        print("batch", flush=True)
        {body}

{main}
"""


@contextlib.contextmanager
def script(
    path: Path, *, processes: bool, seconds: float = 0.0, body: str = "pass", main: str = ""
) -> Iterator[subprocess.Popen[str]]:
    main = main or 'if __name__ == "__main__":\n    main()'
    text = SCRIPT.format(seconds=seconds, processes=processes, body=body, main=main)
    (path / "script.py").write_text(textwrap.dedent(text))
    started = subprocess.Popen(
        [sys.executable, str(path / "script.py")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with started:
        try:
            yield started
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(started.pid, signal.SIGKILL)


def are_gone(group: int) -> bool:
    """Whether no process of a group is left, at the latest after ten seconds."""
    for _ in range(100):
        if not any(is_running(path, group) for path in Path("/proc").glob("[0-9]*/stat")):
            return True
        time.sleep(0.1)
    return False


def is_running(path: Path, group: int) -> bool:
    try:
        state, _, its_group, *_ = path.read_text().rsplit(")", 1)[1].split()
    except OSError:  # it has ended meanwhile
        return False
    return int(its_group) == group and state != "Z"


@pytest.mark.parametrize(
    ("processes", "seconds", "body"),
    [
        (True, 0.0, "time.sleep(60)"),  # while a step of training runs
        (True, 60.0, "pass"),  # while a batch is waited for, whose worker hangs
        (False, 60.0, "pass"),
    ],
)
def test_ctrl_c_ends_all(processes: bool, seconds: float, body: str, tmp_path: Path) -> None:
    with script(tmp_path, processes=processes, seconds=seconds, body=body) as started:
        assert started.stdout is not None
        assert started.stdout.readline().startswith("a step has begun")
        os.killpg(started.pid, signal.SIGINT)  # as a terminal does
        _, errors = started.communicate(timeout=30)
        assert started.returncode == -signal.SIGINT
        assert errors.count("Traceback") == 1 and errors.rstrip().endswith("KeyboardInterrupt")
        assert are_gone(started.pid)


def test_a_parent_that_is_killed_leaves_no_process(tmp_path: Path) -> None:
    with script(tmp_path, processes=True, body="time.sleep(60)") as started:
        assert started.stdout is not None
        assert started.stdout.readline().startswith("a step has begun")
        started.kill()
        started.communicate(timeout=30)
        assert are_gone(started.pid)


def test_a_script_that_ends_early_ends_its_processes(tmp_path: Path) -> None:
    with script(tmp_path, processes=True, body="sys.exit(5)") as started:
        _, errors = started.communicate(timeout=30)
        assert (started.returncode, errors) == (5, "")
        assert are_gone(started.pid)


def test_a_script_without_a_guard_is_told(tmp_path: Path) -> None:
    with script(tmp_path, processes=True, main="main()") as started:
        _, errors = started.communicate(timeout=60)
        assert started.returncode == 1
        assert "ended with exit code 1 before it gave batch 0 of epoch 0" in errors
        # Behind it may be what Python says of a process that is ended while it starts.
        assert "A script that starts processes needs if __name__ == '__main__':" in errors
