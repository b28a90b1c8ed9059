"""Counters of the hardware: read by Nsight Compute, or a reason why they are not."""

from __future__ import annotations

import ast
import csv
import operator
import pickle
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from ..errors import MiniDNNError
from ..gpu.cupy import cupy
from .measure import Job, arrays, bound
from .metrics import METRICS
from .operands import RESULT

_NAME = re.compile(r"[a-z]\w*__\w+(?:\.\w+)*")
_TIMES = {"ns": 1e-9, "nsecond": 1e-9, "us": 1e-6, "usecond": 1e-6, "ms": 1e-3, "msecond": 1e-3}
_DURATION = "gpu__time_duration.sum"
_COLUMNS = ("ID", "Kernel Name", "Metric Name", "Metric Unit", "Metric Value")
_ARITHMETIC = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


class CountersError(MiniDNNError, RuntimeError):
    """Counters were not read; the text says why, and what would allow it."""


@dataclass(frozen=True)
class Counted:
    """A launch of a kernel, and what was counted meanwhile, in units without prefixes."""

    kernel: str
    counts: Mapping[str, float]


def counter_names() -> list[str]:
    """The counters that metrics are made of."""
    return sorted({name for metric in METRICS for name in _NAME.findall(metric.counter)})


def count(jobs: Sequence[Job], limit: float) -> list[dict[str, float]]:
    """The metrics of each job's launch, counted in a process that ``ncu`` watches.

    Raises:
        CountersError: there is no ``ncu``, it may not count, or the process took longer than
            ``limit`` seconds.
    """
    if (tool := shutil.which("ncu")) is None:
        raise CountersError(
            "there is no ncu; it is a part of Nsight Compute, which comes with the CUDA toolkit"
        )
    with TemporaryDirectory(prefix="minidnn-lab-") as folder:
        path = Path(folder) / "jobs"
        path.write_bytes(pickle.dumps(list(jobs)))
        command = [tool, "--csv", "--print-units", "base", "--metrics", ",".join(counter_names())]
        command += [sys.executable, "-m", "minidnn.lab.counters", str(path)]
        try:
            ended = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=limit
            )
        except subprocess.TimeoutExpired:
            raise CountersError(f"ncu took longer than {limit:g} s") from None
    kernels = [[call.launch.source.name for call in job.calls] for job in jobs]
    return assigned(kernels, read(ended.stdout + ended.stderr))


def read(text: str) -> list[Counted]:
    """What ``ncu --csv`` printed, launch by launch.

    Raises:
        CountersError: it counted nothing; its own reason is told.
    """
    if "ERR_NVGPUCTRPERM" in text:
        raise CountersError(
            "the driver forbids counters to this user (ERR_NVGPUCTRPERM); an administrator allows "
            "them by the option NVreg_RestrictProfilingToAdminUsers=0 of the module nvidia, or "
            "gives the process the capability CAP_SYS_ADMIN"
        )
    lines = text.splitlines()
    start = next((at for at, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        told = [line for line in lines if line.startswith("==ERROR==")] or lines[-1:]
        raise CountersError(f"ncu counted nothing: {' '.join(told) or 'it printed nothing'}")
    rows = csv.DictReader(line for line in lines[start:] if line.startswith('"'))
    if missing := [name for name in _COLUMNS if name not in (rows.fieldnames or ())]:
        raise CountersError(f"what ncu printed has no columns {', '.join(missing)}")
    kernels: dict[str, str] = {}
    counts: dict[str, dict[str, float]] = {}
    for row in rows:
        kernels[row["ID"]] = row["Kernel Name"]
        try:
            value = float(row["Metric Value"].replace(",", ""))
        except (ValueError, AttributeError):
            continue  # "n/a": this GPU does not count it.
        factor = _TIMES.get(row["Metric Unit"], 1.0)
        counts.setdefault(row["ID"], {})[row["Metric Name"]] = value * factor
    return [Counted(kernel, counts.get(number, {})) for number, kernel in kernels.items()]


def assigned(jobs: Sequence[Sequence[str]], found: Sequence[Counted]) -> list[dict[str, float]]:
    """The metrics of these jobs, each of one or several kernels, in their order; other launches
    are passed over.  Of several kernels those of the one that takes longest stand for all, as most
    metrics are shares that do not add up.

    Raises:
        CountersError: a launch is missing.
    """
    rest = iter(found)
    metrics = []
    for kernels in jobs:
        launches = []
        for kernel in kernels:
            launch = next((one for one in rest if one.kernel == kernel), None)
            if launch is None:
                raise CountersError(f"ncu saw no launch of {kernel}")
            launches.append(launch)
        longest = max(launches, key=lambda one: one.counts.get(_DURATION, 0.0))
        metrics.append(metrics_of(longest.counts))
    return metrics


def metrics_of(counts: Mapping[str, float]) -> dict[str, float]:
    """Each metric whose counters were all read, and whose divisor is not 0."""
    found = {}
    for metric in METRICS:
        names = _NAME.findall(metric.counter)
        if not names or any(name not in counts for name in names):
            continue
        text = _NAME.sub(lambda match: repr(float(counts[match[0]])), metric.counter)
        try:
            found[metric.name] = _value(ast.parse(text, mode="eval").body)
        except ZeroDivisionError:
            continue
    return found


def _value(node: ast.expr) -> float:
    if isinstance(node, ast.BinOp):
        return float(_ARITHMETIC[type(node.op)](_value(node.left), _value(node.right)))
    assert isinstance(node, ast.Constant) and isinstance(node.value, int | float)
    return float(node.value)


def main(path: str) -> None:
    """Each job of a file: what was measured before, so that results are not compared again."""
    jobs: list[Job] = pickle.loads(Path(path).read_bytes())
    for job in jobs:
        given, expected = arrays(job.operands)
        result = cupy().empty(expected.size, job.result)
        bound(job, {**given, RESULT: result})()
        cupy().cuda.Device().synchronize()


if __name__ == "__main__":
    main(sys.argv[1])
