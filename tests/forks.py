"""Workers that are forked when all tests are collected: ``pytest --forks N``.

pytest-xdist's workers each import all tests and everything that they import, and compute the cases
of all sweeps: for three of them that takes a tenth of the time in which CI runs the tests.  These
begin where the process that collected stands.  What a worker is given is what pytest-xdist's are
(tests/schedule.py), one unit after the other, and tests see the same ``config.workerinput``.
"""

from __future__ import annotations

import multiprocessing
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import SimpleNamespace
from typing import Any

import pytest

from tests.schedule import unit_of

Prepare = Callable[[pytest.Config], None]


def units_of(items: Sequence[pytest.Item]) -> list[list[int]]:
    """The indices of the tests of each unit; a file's that do not follow each other, too."""
    units: dict[str, list[int]] = {}
    for i, item in enumerate(items):
        units.setdefault(unit_of(item.nodeid), []).append(i)
    return list(units.values())


class ForkedWorker:
    """A worker as the process sees it that collected."""

    def __init__(self, session: pytest.Session, number: int, count: int, prepare: Prepare) -> None:
        self.name = f"gw{number}"
        #: Where it is, for when it is killed.
        self.test = ""
        self.has_ended = False
        # What the terminal asks of a report that another process made.
        self.node = SimpleNamespace(gateway=SimpleNamespace(id=self.name), _workerinfocache="")
        context = multiprocessing.get_context("fork")
        self.connection, theirs = context.Pipe()
        told = {"workerid": self.name, "workercount": count}
        # Not a daemon: tests start processes.
        self.process: BaseProcess = context.Process(
            target=_work, args=(session, theirs, told, prepare), name=self.name
        )
        self.process.start()
        theirs.close()

    def receive(self, config: pytest.Config) -> bool:
        """Passes on what it has sent; whether it asks for tests."""
        kind, rest = "has gone", []
        # What a killed worker has left may hold its end of the connection.
        with suppress(EOFError, ConnectionResetError):
            if self.connection.poll():
                kind, *rest = self.connection.recv()
        if kind == "starts":
            self.test = rest[0]
            config.hook.pytest_runtest_logstart(nodeid=rest[0], location=rest[1])
        elif kind == "report":
            report = config.hook.pytest_report_from_serializable(config=config, data=rest[0])
            report.node = self.node
            config.hook.pytest_runtest_logreport(report=report)
        elif kind == "ends":
            config.hook.pytest_runtest_logfinish(nodeid=rest[0], location=rest[1])
        elif kind == "has run all":
            self.has_ended = True
        elif kind == "has gone":
            self.process.join()
            code = self.process.exitcode
            pytest.exit(f"worker {self.name} ended with {code} in {self.test}", returncode=3)
        elif kind == "broken":
            raise RuntimeError(f"worker {self.name} broke in {self.test}:\n{rest[0]}")
        return bool(kind == "asks")


def run(session: pytest.Session, count: int, prepare: Prepare) -> bool | None:
    """A session's tests in so many processes, each of which calls ``prepare`` first; None where
    pytest has to say why it runs none.

    A worker that is killed ends the run.
    """
    config = session.config
    if config.option.collectonly or session.testsfailed or not session.items:
        return None
    terminal: Any = config.pluginmanager.getplugin("terminalreporter")
    if terminal is not None:
        terminal.showfspath = False  # tests of several files run at once
    units = units_of(session.items)
    sys.stdout.flush()
    sys.stderr.flush()
    workers = [ForkedWorker(session, i, count, prepare) for i in range(min(count, len(units)))]
    try:
        _serve(session, workers, iter(units))
    except BaseException:
        for worker in workers:
            worker.process.terminate()
        raise
    finally:
        for worker in workers:
            worker.process.join()
    return True


def _serve(session: pytest.Session, workers: list[ForkedWorker], left: Iterator[list[int]]) -> None:
    """Gives out units until all tests have run."""
    at_work: dict[Any, ForkedWorker] = {worker.connection: worker for worker in workers}
    while at_work:
        gone = (each for each, worker in at_work.items() if not worker.process.is_alive())
        for ready in wait(list(at_work), timeout=5) or list(gone):
            worker = at_work[ready]
            if worker.receive(session.config):
                unit = next(left, None)
                worker.connection.send(unit)
            if worker.has_ended:
                del at_work[ready]
            if session.shouldfail:
                raise session.Failed(session.shouldfail)
            if session.shouldstop:
                raise session.Interrupted(session.shouldstop)


class Teller:
    """A plugin of a worker: tells what becomes of its tests."""

    def __init__(self, config: pytest.Config, connection: Connection[Any, Any]) -> None:
        self._config, self._connection = config, connection

    def pytest_runtest_logstart(self, nodeid: str, location: object) -> None:
        self._connection.send(("starts", nodeid, location))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._connection.send(("report", data))

    def pytest_runtest_logfinish(self, nodeid: str, location: object) -> None:
        self._connection.send(("ends", nodeid, location))


def _work(
    session: pytest.Session,
    connection: Connection[Any, Any],
    told: dict[str, Any],
    prepare: Prepare,
) -> None:
    """What a worker does."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    config: Any = session.config
    config.workerinput = told
    plugins = config.pluginmanager
    plugins.unregister(name="terminalreporter")
    # What tests print goes into files of which each worker needs its own.
    capture = plugins.getplugin("capturemanager")
    capture.stop_global_capturing()
    capture.start_global_capturing()
    capture.suspend_global_capture()
    own = config._tmp_path_factory.getbasetemp() / f"popen-{told['workerid']}"
    own.mkdir(mode=0o700)
    config._tmp_path_factory._basetemp = own
    prepare(config)
    plugins.register(Teller(config, connection))
    try:
        _run_units(session, connection)
    except BaseException as error:
        with_traceback = pytest.ExceptionInfo.from_exception(error).getrepr(style="short")
        connection.send(("broken", str(with_traceback)))
        raise


def _run_units(session: pytest.Session, connection: Connection[Any, Any]) -> None:
    connection.send(("asks",))
    while (unit := connection.recv()) is not None:
        items = [session.items[i] for i in unit]
        # Behind the last one only what is the whole session's stays.
        for item, after in zip(items, [*items[1:], session], strict=True):
            session.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
        connection.send(("asks",))
    session._setupstate.teardown_exact(None)
    connection.send(("has run all",))
