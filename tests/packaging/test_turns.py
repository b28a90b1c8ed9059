"""Workers' turns: a test that is to be alone waits for the others, and is waited for."""

from __future__ import annotations

import fcntl
import threading
from pathlib import Path

from tests.turns import Turns


class Worker(threading.Thread):
    """A thread that takes one turn and keeps it until it is told to end.

    Locks belong to open files, so threads with files of their own are as good as processes.
    """

    def __init__(self, folder: Path, alone: bool) -> None:
        super().__init__(daemon=True)
        self.turns, self.alone = Turns(folder), alone
        self.inside, self.end = threading.Event(), threading.Event()
        self.start()

    def run(self) -> None:
        with self.turns.taken(self.alone):
            self.inside.set()
            self.end.wait(60)

    def leave(self) -> None:
        self.end.set()
        self.join(60)


def test_others_run_beside_each_other(tmp_path: Path) -> None:
    workers = [Worker(tmp_path, False) for _ in range(3)]
    assert all(worker.inside.wait(60) for worker in workers)
    for worker in workers:
        worker.leave()


def test_alone_is_alone_and_not_overtaken(tmp_path: Path) -> None:
    """Two workers whose tests overlap without end would keep it out, were it not for the door."""
    first = Worker(tmp_path, False)
    assert first.inside.wait(60)
    alone = Worker(tmp_path, True)
    while not held(tmp_path / "door"):
        pass
    later = Worker(tmp_path, False)
    assert not later.inside.wait(0.2) and not alone.inside.is_set()
    first.leave()
    assert alone.inside.wait(60) and not later.inside.is_set()
    alone.leave()
    assert later.inside.wait(60)
    later.leave()


def test_who_runs_alone_again_stays(tmp_path: Path) -> None:
    """Others wait for both tests, and not longer."""
    turns = Turns(tmp_path)
    with turns.taken(True, True):
        other = Worker(tmp_path, False)
        while not held(tmp_path / "door"):
            pass
    with turns.taken(True):
        assert not other.inside.wait(0.2)
    assert other.inside.wait(60)
    other.leave()
    with turns.taken(True):
        pass


def held(path: Path) -> bool:
    """Whether somebody holds a file's lock."""
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
