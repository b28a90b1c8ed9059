"""A plugin: writes the proof of a green run of all GPU tests, and what each test took.

    python -m pytest -p tests.gpu_proof.plugin -m gpu --proof-out FILE --durations-out FOLDER

``python -m tests.gpu_proof run`` gives all arguments.
"""

from __future__ import annotations

import hashlib
import json
import platform
import time
from collections import Counter
from collections.abc import Generator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from tests.gpu_proof.record import Refused, check_number, one_machine, told, write
from tests.gpu_proof.sources import digests, gpu_test_files
from tests.schedule import spread

_LONGEST = 4000
"""So many letters of a failure's report are kept."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("proof of GPU tests")
    group.addoption("--proof-out", type=Path, metavar="FILE", help="where to write the proof")
    group.addoption("--durations-out", type=Path, metavar="FOLDER", help="a line for each test")
    group.addoption("--shard", default="1/1", metavar="K/N", help="every N-th test from the K-th")


def pytest_configure(config: pytest.Config) -> None:
    told: dict[str, Any] | None = getattr(config, "workerinput", None)
    folder, out = (config.getoption(name) for name in ("durations_out", "proof_out"))
    if folder is not None and (told or not getattr(config.option, "numprocesses", None)):
        worker = told["workerid"] if told else "main"
        config.pluginmanager.register(Durations(folder / f"{worker}.jsonl"))
    if out is not None:
        config.pluginmanager.register(Worker(config) if told else Proof(config))


class Durations:
    """Writes a line when a test begins and one when it has ended, which stay whatever kills it."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path, self._started = path, time.monotonic()
        self._phases: dict[str, float] = {}
        self._outcome, self._why = "passed", ""

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._phases, self._outcome = {}, "passed"
        self._write({"begins": nodeid})

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        assert report.when is not None
        self._phases[report.when] = round(report.duration, 3)
        if report.outcome != "passed":
            self._outcome = report.outcome
        if report.failed:
            self._why = report.longreprtext[-_LONGEST:]
        if report.when == "teardown":
            why = {"why": self._why} if self._outcome == "failed" else {}
            line = {"test": report.nodeid, "outcome": self._outcome, **self._phases}
            self._write(line | why)

    def _write(self, line: Mapping[str, Any]) -> None:
        at = round(time.monotonic() - self._started, 2)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({**line, "at": at}) + "\n")


class Collecting:
    """Leaves one shard of the tests, and knows how many there are in all."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.left_out: dict[str, str] = {}
        self.collected: dict[str, Any] = {}
        self.started = time.monotonic()
        try:
            self.shard = k, n = tuple(map(int, config.getoption("shard").split("/")))
        except ValueError:
            k = n = 0
        if not 1 <= k <= n:
            shard = config.getoption("shard")
            raise pytest.UsageError(f"--shard {shard}: valid is K/N with K from 1 to N")

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(
        self, items: list[pytest.Item]
    ) -> Generator[None, object, object]:
        marked = [item for item in items if item.get_closest_marker("gpu") is not None]
        wanted = {item.nodeid for item in marked if item.get_closest_marker("full") is None}
        result = yield
        items[:] = [item for item in items if item.get_closest_marker("full") is None]
        names = sorted(item.nodeid for item in items)
        k, n = self.shard
        here = set(names[k - 1 :: n])
        items[:] = [item for item in items if item.nodeid in here]
        if told := getattr(self.config, "workerinput", None):
            spread(items, told["workercount"])
        self.collected = {
            "files": sorted({item.location[0] for item in marked}),
            "files left out": self.left_out,
            "deselected": len(wanted - set(names)),
            "tests": {
                "all": len(wanted),
                "digest": hashlib.sha256("\n".join(sorted(wanted)).encode()).hexdigest()[:12],
                "here": len(here),
            },
        }
        return result

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self.left_out[report.nodeid] = _reason(report)


class Worker(Collecting):
    """One of pytest-xdist's workers: it tells what it collected and ran on."""

    def pytest_sessionfinish(self) -> None:
        told = {"collected": self.collected, "machine": machine()}
        self.config.workeroutput["GPU proof"] = told  # type: ignore[attr-defined]


class Proof(Collecting):
    """The process that knows all results: it writes the proof, or says why there is none."""

    def __init__(self, config: pytest.Config) -> None:
        super().__init__(config)
        self._machines: list[dict[str, Any]] = []
        self._outcomes: dict[str, str] = {}
        self._failed: set[str] = set()
        self._said = ""
        self._sources: dict[str, str] = {}
        self._out: Path = config.getoption("proof_out")
        # An older one is no proof of this run.
        self._out.unlink(missing_ok=True)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> None:
        """While the workers collect tests."""
        self._sources = digests(self.config.rootpath)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed.add(report.nodeid)
        elif report.skipped:
            self._outcomes[report.nodeid] = _reason(report)
        elif report.when == "call":
            self._outcomes[report.nodeid] = "passed"

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        found = getattr(node, "workeroutput", {}).get("GPU proof")
        if found is not None:
            self.collected = found["collected"]
            self._machines.append(found["machine"])

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, exitstatus: int) -> None:
        try:
            proof = self._proof(int(exitstatus))
        except Refused as why:
            self._said = f"No proof of the GPU tests is written: {why}."
        else:
            write(proof, self._out)
            self._said = f"The proof of the GPU tests is written: {told(proof)}."

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        terminalreporter.write_line(self._said)

    def _proof(self, exitstatus: int) -> dict[str, Any]:
        root, collected = self.config.rootpath, self.collected
        if self._failed or exitstatus:
            raise Refused(f"{len(self._failed):,} tests failed, and pytest ended with {exitstatus}")
        if any("::" in argument for argument in self.config.args):
            raise Refused("only some tests of files were asked for")
        if missing := set(gpu_test_files(root)) - {
            *collected["files"],
            *collected["files left out"],
        }:
            raise Refused(f"there were no tests of {', '.join(sorted(missing))}")
        if collected["deselected"]:
            raise Refused(f"{collected['deselected']:,} tests were deselected")
        if self._sources != digests(root):
            raise Refused("files were changed while the tests ran")
        counts = Counter(self._outcomes.values())
        proof = {
            "shard": list(self.shard),
            "tests": collected["tests"],
            "passed": counts.pop("passed", 0),
            "skipped": dict(sorted(counts.items())),
            "files left out": collected["files left out"],
            "seconds": round(time.monotonic() - self.started, 1),
            **one_machine(self._machines or [machine()]),
            "sources": self._sources,
        }
        check_number(proof)
        return proof


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Why a test or a file was skipped: the kind of reason, without the shapes and types."""
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2]).removeprefix("Skipped: ").partition(":")[0]
    return getattr(report, "wasxfail", "") or "no reason was given"


def machine() -> dict[str, Any]:
    """Returns the cards that this process sees, and the versions of what runs on them."""
    versions = {"Python": platform.python_version()}
    for name, package in (("CuPy", "cupy-cuda13x"), ("PyTorch", "torch"), ("ONNX", "onnx")):
        try:
            versions[name] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[name] = "none"
    try:
        import cupy

        from minidnn.cudnn import library
        from minidnn.report.doctor import _driver_version
    except ImportError:
        return {"cards": [], "versions": versions}
    runtime = cupy.cuda.runtime
    count = runtime.getDeviceCount()
    versions["driver"] = _driver_version()
    versions["CUDA"] = "{}.{}".format(*divmod(runtime.runtimeGetVersion() // 10, 100))
    versions["cuDNN"] = library.version_text(library.version())
    names = (runtime.getDeviceProperties(i)["name"].decode() for i in range(count))
    return {"cards": sorted(set(names)), "versions": versions}
