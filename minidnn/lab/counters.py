"""The metrics of a kernel: their formulas, their units, and the hardware counters behind them.

Nsight Compute reads the counters; where it cannot, a study has the reason instead.  A metric
without a counter comes from timers, from the compiler or by calculation, and is always known.
"""

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
from ..gpu import cupy
from .measure import Job, arrays, bound
from .operands import RESULT


@dataclass(frozen=True)
class Figure:
    """A metric.

    Attributes:
        name: what tables, pages and studies call it.
        formula: how it is computed, in words.
        unit: of its value; "" for a ratio.
        counter: an expression over counters of Nsight Compute; "" if it needs none.
    """

    name: str
    formula: str
    unit: str
    counter: str


_FLOPS = " + ".join(
    f"{factor}smsp__sass_thread_inst_executed_op_{name}_pred_on.sum"
    for name, factor in (("fadd", ""), ("fmul", ""), ("ffma", "2 * "))
)
_TIME, _DRAM = "gpu__time_duration.sum", "dram__bytes.sum"
_TURNS = "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum"

METRICS = (
    Figure("execution time", "time from the kernel's start to its end", "s", ""),
    Figure("variability", "standard deviation of the execution time / its mean", "", ""),
    Figure("operations", "additions + multiplications + 2 * fused multiply-adds", "FLOP", _FLOPS),
    Figure("compute throughput", "operations / execution time", "FLOP/s", f"({_FLOPS}) / {_TIME}"),
    Figure("compute utilization", "compute throughput / theoretical peak", "", ""),
    Figure("memory throughput", "bytes accessed / execution time", "B/s", f"{_DRAM} / {_TIME}"),
    Figure(
        "memory bandwidth utilization",
        "memory throughput / theoretical peak",
        "",
        "dram__throughput.avg.pct_of_peak_sustained_elapsed / 100",
    ),
    Figure(
        "operational intensity", "operations / bytes accessed", "FLOP/B", f"({_FLOPS}) / {_DRAM}"
    ),
    Figure(
        "attainable performance",
        "the smaller of peak FLOP/s and operational intensity * peak bandwidth",
        "FLOP/s",
        "",
    ),
    Figure(
        "theoretical occupancy",
        "warps that fit a multiprocessor / most warps of one",
        "",
        "sm__maximum_warps_per_active_cycle_pct / 100",
    ),
    Figure(
        "occupancy",
        "active warps a multiprocessor / most warps of one",
        "",
        "sm__warps_active.avg.pct_of_peak_sustained_active / 100",
    ),
    Figure(
        "instructions per cycle",
        "instructions that warps executed / cycles of a multiprocessor",
        "1/cycle",
        "4 * smsp__inst_executed.avg.per_cycle_active",
    ),
    Figure(
        "warp execution efficiency",
        "average active threads of a warp / 32",
        "",
        "smsp__thread_inst_executed_per_inst_executed.ratio / 32",
    ),
    Figure(
        "coalescing",
        "bytes that warps asked for / bytes of the sectors that they got",
        "",
        "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.pct / 100",
    ),
    Figure(
        "sectors a request",
        "pieces of 32 bytes that a load of a warp touches; 4 is least for 32 floats",
        "",
        "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio",
    ),
    Figure(
        "shared memory efficiency",
        "bytes of shared memory a wavefront / most bytes of one",
        "",
        "smsp__sass_average_data_bytes_per_wavefront_mem_shared.pct / 100",
    ),
    Figure(
        "bank conflicts",
        "wavefronts of shared memory / wavefronts that as many words need",
        "",
        f"{_TURNS} / ({_TURNS} - l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum)",
    ),
    Figure(
        "warps",
        "warps that a multiprocessor has at once, on average",
        "",
        "sm__warps_active.avg.per_cycle_active",
    ),
    Figure(
        "L1 throughput",
        "bytes of the sectors that L1 is asked for / execution time",
        "B/s",
        f"l1tex__t_bytes.sum / {_TIME}",
    ),
    Figure(
        "L2 throughput",
        "bytes of the sectors that L2 is asked for / execution time",
        "B/s",
        f"lts__t_bytes.sum / {_TIME}",
    ),
    Figure("L1 hit rate", "L1 hits / all accesses", "", "l1tex__t_sector_hit_rate.pct / 100"),
    Figure(
        "L2 hit rate", "L2 hits / (all accesses - L1 hits)", "", "lts__t_sector_hit_rate.pct / 100"
    ),
    Figure(
        "multiprocessor efficiency",
        "cycles in which a multiprocessor had work / all its cycles",
        "",
        "sm__cycles_active.avg / sm__cycles_elapsed.max",
    ),
    Figure("active cycles", "cycles with work, a multiprocessor", "cycle", "sm__cycles_active.avg"),
    Figure("elapsed cycles", "clock * execution time", "cycle", "sm__cycles_elapsed.max"),
    Figure(
        "memory clock to multiprocessor clock",
        "frequency of DRAM / frequency of multiprocessors",
        "",
        "dram__cycles_elapsed.avg.per_second / sm__cycles_elapsed.avg.per_second",
    ),
    Figure(
        "register pressure", "registers a thread / 255", "", "launch__registers_per_thread / 255"
    ),
    Figure("spills", "bytes of registers that a thread keeps in memory", "B", ""),
    Figure("waves", "blocks / (multiprocessors * blocks that fit one)", "", ""),
    Figure(
        "model error", "the larger of predicted and measured time / the smaller of the two", "", ""
    ),
)


_NAME = re.compile(r"[a-z]\w*__\w+(?:\.\w+)*")
_TIMES = {"ns": 1e-9, "nsecond": 1e-9, "us": 1e-6, "usecond": 1e-6, "ms": 1e-3, "msecond": 1e-3}
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
    """A launch of a kernel and its counters by name, in base units."""

    kernel: str
    counts: Mapping[str, float]


def counter_names() -> list[str]:
    """The names of the counters in the formulas of all metrics."""
    return sorted({name for metric in METRICS for name in _NAME.findall(metric.counter)})


def count(jobs: Sequence[Job], limit: float) -> list[dict[str, float]]:
    """The metrics of each job, counted while ``ncu`` profiles a process that launches it.

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
            process = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=limit
            )
        except subprocess.TimeoutExpired:
            raise CountersError(f"ncu took longer than {limit:g} s") from None
    kernels = [[call.launch.source.name for call in job.calls] for job in jobs]
    return assigned(kernels, read(process.stdout + process.stderr))


def read(text: str) -> list[Counted]:
    """Parses the output of ``ncu --csv``, launch by launch.

    Raises:
        CountersError: it counted nothing; the text quotes its reason.
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
        messages = [line for line in lines if line.startswith("==ERROR==")] or lines[-1:]
        raise CountersError(f"ncu counted nothing: {' '.join(messages) or 'it printed nothing'}")
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
    """The metrics of these jobs in their order, each of one or several kernels; other launches are
    skipped.  Of several kernels, the metrics of the longest stand for all, as most are ratios that
    do not add up.

    Raises:
        CountersError: a launch is missing.
    """
    counted = iter(found)
    metrics = []
    for kernels in jobs:
        launches = []
        for kernel in kernels:
            launch = next((one for one in counted if one.kernel == kernel), None)
            if launch is None:
                raise CountersError(f"ncu saw no launch of {kernel}")
            launches.append(launch)
        longest = max(launches, key=lambda one: one.counts.get(_TIME, 0.0))
        metrics.append(metrics_of(longest.counts))
    return metrics


def metrics_of(counts: Mapping[str, float]) -> dict[str, float]:
    """The value of each metric whose counters were all read, and whose divisor is not 0."""
    values = {}
    for metric in METRICS:
        names = _NAME.findall(metric.counter)
        if not names or any(name not in counts for name in names):
            continue
        text = _NAME.sub(lambda match: repr(float(counts[match[0]])), metric.counter)
        try:
            values[metric.name] = _value(ast.parse(text, mode="eval").body)
        except ZeroDivisionError:
            continue
    return values


def _value(node: ast.expr) -> float:
    if isinstance(node, ast.BinOp):
        return float(_ARITHMETIC[type(node.op)](_value(node.left), _value(node.right)))
    assert isinstance(node, ast.Constant) and isinstance(node.value, int | float)
    return float(node.value)


def main(path: str) -> None:
    """Launches each job of a file, for ``ncu`` to profile.  Their results were checked before."""
    jobs: list[Job] = pickle.loads(Path(path).read_bytes())
    for job in jobs:
        operands, expected = arrays(job.operands)
        result = cupy().empty(expected.size, job.result)
        bound(job, {**operands, RESULT: result})()
        cupy().cuda.Device().synchronize()


if __name__ == "__main__":
    main(sys.argv[1])
