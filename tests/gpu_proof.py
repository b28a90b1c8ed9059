"""The proof that all GPU tests passed, of which sources, where and with what: plugin and command.

    python -m tests.gpu_proof run --proof-out FILE [--shard K/N] [-- PYTEST'S ARGUMENTS]
    python -m tests.gpu_proof merge FILE... --proof-out FILE
    python -m tests.gpu_proof

``run`` runs all tests marked ``gpu`` and writes the proof if each of them passed or was skipped;
``merge`` makes one proof of those of all shards; without a word it says whether the tree is the
proven one.  ``--durations-out FOLDER`` has each process write a line for each test as it ends,
which stays if the run is killed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from tests.gpu_sources import ROOT, digests, gpu_test_files

PROOF = ROOT / "benchmarks" / "results" / "gpu_proof.json"


class Refused(Exception):
    """Why there is no proof."""


# ---- The plugin


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("GPU proof")
    group.addoption("--proof-out", default=None, metavar="FILE", help="where the proof is written")
    group.addoption("--proof-full", action="store_true", help="with the tests marked full")
    group.addoption("--durations-out", default=None, metavar="FOLDER", help="a line for each test")
    group.addoption("--shard", default="1/1", metavar="K/N", help="run every N-th test (K from 1)")


def pytest_configure(config: pytest.Config) -> None:
    runs_tests = hasattr(config, "workerinput") or not getattr(config.option, "numprocesses", None)
    if (folder := config.getoption("durations_out")) and runs_tests:
        config.pluginmanager.register(Durations(Path(folder), config))
    config.pluginmanager.register(Proof(config))


class Durations:
    """Writes what each test took as it ends, one file for each process that runs tests."""

    def __init__(self, folder: Path, config: pytest.Config) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        worker = getattr(config, "workerinput", {}).get("workerid", "main")
        self._path, self._started = folder / f"{worker}.jsonl", time.time()
        self._phases: dict[str, float] = {}
        self._outcome = "passed"

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._phases, self._outcome = {}, "passed"
        self._write({"begins": nodeid, "at": round(time.time() - self._started, 2)})

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._phases[report.when or "call"] = round(report.duration, 3)
        if report.outcome != "passed":
            self._outcome = report.outcome
        if report.when == "teardown":
            at = round(time.time() - self._started, 2)
            line = {"test": report.nodeid, "outcome": self._outcome, "at": at}
            self._write(line | self._phases)

    def _write(self, line: Mapping[str, Any]) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


class Proof:
    """Counts tests and writes the proof at the end, in the process that starts the others."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._is_worker = hasattr(config, "workerinput")
        self._shard = _shard(config.getoption("shard"))
        self._collected: dict[str, Any] = {}
        self._machines: list[dict[str, Any]] = []
        self._left_out: dict[str, str] = {}
        self._outcomes: dict[str, str] = {}
        self._failed = 0
        self._said = ""
        self._digests = digests() if config.getoption("proof_out") and not self._is_worker else {}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        files = sorted({item.nodeid.split("::")[0] for item in items})
        if not self._config.getoption("proof_full"):
            items[:] = [item for item in items if item.get_closest_marker("full") is None]
        names = sorted(item.nodeid for item in items)
        of = hashlib.sha256("\n".join(names).encode()).hexdigest()[:16]
        k, n = self._shard
        kept = set(names[k - 1 :: n])
        items[:] = [item for item in items if item.nodeid in kept]
        self._collected = {"all": len(names), "of": of, "files": files, "here": len(kept)}
        self._collected["left out"] = self._left_out

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self._left_out[report.nodeid] = _reason(report)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed += 1
        elif report.skipped:
            self._outcomes[report.nodeid] = _reason(report)
        elif report.when == "call":
            self._outcomes[report.nodeid] = "passed"

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        told = getattr(node, "workeroutput", {}).get("gpu proof")
        if told is not None:
            self._collected = told["collected"]
            self._machines.append(told["machine"])

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if self._is_worker:
            told = {"collected": self._collected, "machine": machine()}
            self._config.workeroutput["gpu proof"] = told  # type: ignore[attr-defined]
            return
        out = self._config.getoption("proof_out")
        if out is None:
            return
        try:
            proof = self._proof(int(exitstatus))
        except Refused as why:
            self._said = f"no proof of the GPU tests is written: {why}"
        else:
            write(proof, Path(out))
            self._said = f"the proof of the GPU tests is written: {told(proof)}"

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self._said:
            terminalreporter.write_line(self._said)

    def _proof(self, exitstatus: int) -> dict[str, Any]:
        counts = Counter(self._outcomes.values())
        proof = {
            "shard": list(self._shard),
            "tests": {k: self._collected.get(k) for k in ("all", "of", "here")},
            "passed": counts.pop("passed", 0),
            "skipped": dict(sorted(counts.items())),
            "left out": self._collected.get("left out", {}),
            **_one_of([machine()] if not self._machines else self._machines),
            "sources": self._digests,
        }
        if exitstatus or self._failed:
            raise Refused(f"{self._failed:,} tests failed, exit status {exitstatus}")
        if self._digests != digests():
            raise Refused("files were changed while the tests ran")
        there = {*self._collected.get("files", ()), *proof["left out"]}
        if missing := set(gpu_test_files()) - there:
            raise Refused(f"these files' tests were not collected: {', '.join(sorted(missing))}")
        check_number(proof)
        return proof


def _shard(text: str) -> tuple[int, int]:
    k, n = map(int, text.split("/"))
    if not 1 <= k <= n:
        raise pytest.UsageError(f"--shard {text}: K/N with K from 1 to N")
    return k, n


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Why a test was skipped."""
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    return getattr(report, "wasxfail", "") or "it is expected to fail"


def machine() -> dict[str, Any]:
    """The card that a process sees, and the versions of what runs."""
    found: dict[str, Any] = {"cards": [], "versions": {"Python": platform.python_version()}}
    for name, package in (("CuPy", "cupy-cuda13x"), ("PyTorch", "torch"), ("ONNX", "onnx")):
        try:
            found["versions"][name] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    try:
        import cupy

        from minidnn.cudnn import library

        runtime = cupy.cuda.runtime
        names = {
            runtime.getDeviceProperties(i)["name"].decode() for i in range(runtime.getDeviceCount())
        }
        found["cards"] = sorted(names)
        found["versions"] |= {
            "driver": str(runtime.driverGetVersion()),
            "CUDA": str(runtime.runtimeGetVersion()),
            "cuDNN": str(library.load().version),
        }
    except Exception as error:
        found["versions"]["unknown"] = f"{type(error).__name__}: {error}"
    return found


def _one_of(machines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    cards = sorted({card for each in machines for card in each["cards"]})
    versions: dict[str, Any] = {}
    for each in machines:
        versions |= each["versions"]
    return {"cards": cards, "versions": versions}


# ---- Proofs


def check_number(proof: Mapping[str, Any]) -> None:
    """Refuses a proof of fewer tests, or of more, than were collected for its shard."""
    ran = proof["passed"] + sum(proof["skipped"].values())
    if not proof["passed"]:
        raise Refused("no test has passed")
    if ran != proof["tests"]["here"]:
        raise Refused(f"{ran:,} tests passed or were skipped; {proof['tests']['here']} collected")


def merged(proofs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One proof of all shards' proofs."""
    shards = sorted(tuple(proof["shard"]) for proof in proofs)
    n = shards[0][1]
    if shards != [(k, n) for k in range(1, n + 1)]:
        there = ", ".join(f"{k}/{of}" for k, of in shards)
        raise Refused(f"each shard of {n} is wanted once; there are {there}")
    first = proofs[0]
    for proof in proofs:
        check_number(proof)
        if proof["sources"] != first["sources"]:
            raise Refused("shards ran with different sources")
        if any(proof["tests"][key] != first["tests"][key] for key in ("all", "of")):
            raise Refused("shards collected different tests")
    skipped: Counter[str] = Counter()
    for proof in proofs:
        skipped.update(proof["skipped"])
    whole = {
        "shard": [1, 1],
        "tests": {**first["tests"], "here": sum(proof["tests"]["here"] for proof in proofs)},
        "passed": sum(proof["passed"] for proof in proofs),
        "skipped": dict(sorted(skipped.items())),
        "left out": first["left out"],
        **_one_of(proofs),
        "sources": first["sources"],
    }
    if whole["tests"]["here"] != whole["tests"]["all"]:
        raise Refused("all shards together have not run all tests")
    check_number(whole)
    return whole


def write(proof: Mapping[str, Any], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(proof, indent=1) + "\n", encoding="utf-8")


def told(proof: Mapping[str, Any]) -> str:
    """A proof in a line."""
    skipped, (k, n) = sum(proof["skipped"].values()), proof["shard"]
    part = f"shard {k} of {n}, " if n > 1 else ""
    return f"{part}{proof['passed']:,} passed, {skipped} skipped on {', '.join(proof['cards'])}"


def state(path: Path = PROOF, root: Path = ROOT) -> str:
    """Whether the tree is the proven one, in a line."""
    if not path.exists():
        return "GPU tests: no run of them is proven"
    proof = json.loads(path.read_text(encoding="utf-8"))
    now, then = digests(root), proof["sources"]
    changed = sorted(area for area in now | then if now.get(area) != then.get(area))
    if not changed:
        return f"GPU tests: this tree is the proven one ({told(proof)})"
    return f"GPU tests: changed since they passed ({told(proof)}): {', '.join(changed)}"


# ---- The command


def run(arguments: argparse.Namespace) -> int:
    command = [sys.executable, "-m", "pytest", "-p", "tests.cuda.turns", "-p", "tests.gpu_proof"]
    command += ["-n", str(arguments.workers), "--dist", "worksteal", "-q", "-m", "gpu"]
    command += ["--proof-out", str(arguments.proof_out), "--shard", arguments.shard]
    if arguments.durations_out:
        command += ["--durations-out", str(arguments.durations_out)]
    command += [*arguments.rest, *gpu_test_files()]
    return subprocess.call(command, cwd=ROOT)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    commands = parser.add_subparsers(dest="command")
    running = commands.add_parser("run")
    running.add_argument("--proof-out", type=Path, default=PROOF)
    running.add_argument("--durations-out", type=Path)
    running.add_argument("--shard", default="1/1")
    running.add_argument("--workers", default=os.cpu_count() or 1)
    running.add_argument("rest", nargs="*", help="arguments of pytest, behind --")
    merging = commands.add_parser("merge")
    merging.add_argument("files", type=Path, nargs="+")
    merging.add_argument("--proof-out", type=Path, default=PROOF)
    arguments = parser.parse_args()
    if arguments.command is None:
        print(state())
        return 0
    if arguments.command == "run":
        return run(arguments)
    try:
        proof = merged([json.loads(file.read_text(encoding="utf-8")) for file in arguments.files])
    except Refused as why:
        print(f"no proof of the GPU tests is written: {why}", file=sys.stderr)
        return 1
    write(proof, arguments.proof_out)
    print(told(proof))
    return 0


if __name__ == "__main__":
    sys.exit(main())
