"""Counters: what ncu prints is read, and where it may not count a study says so."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest

from minidnn import lab
from minidnn.cli import main
from minidnn.lab import counters
from minidnn.lab.counters import METRICS, CountersError, assigned, counter_names, read
from minidnn.lab.isolated_jobs import Failure

PRINTED = Path(__file__).with_name("counted.csv").read_text(encoding="utf-8")
"""Of ncu 2025 on an H100: a kernel that doubles 2 ** 20 floats, behind one that fills them."""


def test_what_ncu_printed_is_read_and_made_metrics() -> None:
    assert [one.kernel for one in read(PRINTED)] == ["cupy_fill", "probe"]
    (found,) = assigned([["probe"]], read(PRINTED))
    assert found["operations"] == 1 << 20
    assert found["compute throughput"] == pytest.approx((1 << 20) / 5.344e-6)
    assert found["memory throughput"] == pytest.approx(785389221556.8862)
    assert (found["sectors a request"], found["coalescing"]) == (4.0, 1.0)
    assert found["warp execution efficiency"] == 1.0
    assert found["bank conflicts"] == 1.0
    assert found["register pressure"] == 16 / 255
    assert found["elapsed cycles"] == 8435
    assert set(found) <= {metric.name for metric in METRICS if metric.counter}


def test_values_that_a_gpu_does_not_count_are_left_out() -> None:
    text = PRINTED.replace(
        '"lts__t_sector_hit_rate.pct","%","54.96"', '"lts__t_sector_hit_rate.pct","%","n/a"'
    )
    assert text != PRINTED
    (found,) = assigned([["probe"]], read(text))
    assert "L2 hit rate" not in found and "L1 hit rate" in found


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU "
            "Performance Counters on the target device 0.",
            r"the driver forbids counters.*NVreg_RestrictProfilingToAdminUsers=0",
        ),
        ("==ERROR== The application returned an error code (1).", "ncu counted nothing: ==ERROR=="),
        ("", "ncu counted nothing: it printed nothing"),
        ('"ID","Kernel Name"\n"0","probe"', "has no columns Metric Name, Metric Unit"),
    ],
)
def test_why_nothing_was_counted(text: str, reason: str) -> None:
    with pytest.raises(CountersError, match=reason):
        read(text)


def test_a_launch_that_ncu_did_not_see_is_named() -> None:
    with pytest.raises(CountersError, match="ncu saw no launch of tiled"):
        assigned([["probe"], ["tiled"]], read(PRINTED))


def test_no_ncu_and_one_that_may_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CountersError, match="there is no ncu; it is a part of Nsight Compute"):
        counters.count([], 10.0)
    tool = tmp_path / "ncu"
    tool.write_text("#!/bin/sh\necho '==ERROR== ERR_NVGPUCTRPERM - no permission'\n")
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    with pytest.raises(CountersError, match="CAP_SYS_ADMIN"):
        counters.count([], 10.0)
    tool.write_text("#!/bin/sh\nread forever < /dev/zero\n")
    with pytest.raises(CountersError, match=r"ncu took longer than 0\.2 s"):
        counters.count([], 0.2)


def test_a_study_goes_on_without_counters(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device whose counting is refused: times are there, and the reason is told."""
    from minidnn.lab import studies
    from minidnn.lab.api import H100
    from minidnn.lab.studies import DEVICES, LabDevice

    device = DEVICES["cuda"]

    def refused(jobs: Any, limit: float) -> list[dict[str, float]]:
        raise CountersError("the driver forbids counters")

    def timed(jobs: Any) -> list[dict[str, Any] | Failure]:
        times = {"measured_seconds": 1e-4, "variability": 0.01, "samples": 3}
        return [times if jobs[0] is not None else Failure("error", "no") for _ in jobs]

    class Timed:
        def __init__(self, task: Any, limit: float) -> None:
            self.task = task

        def run(self, jobs: Any) -> list[Any]:
            return timed(list(jobs)) if self.task is device.measure else [[] for _ in jobs]

    fake = LabDevice(
        lambda: H100, device.predict, device.job, device.measure, device.ceilings, refused
    )
    monkeypatch.setitem(DEVICES, "cuda", fake)
    monkeypatch.setattr(studies, "IsolatedJobs", Timed)
    shape = {"height": 32, "width": 32}
    study = lab.run("transpose", ["rows"], shapes=[shape], counters=True)
    assert study["counters"] == {"why_not": "the driver forbids counters"}
    assert [cell["measured_seconds"] for cell in study["cells"]] == [1e-4]
    assert "no counters: the driver forbids counters" in "\n".join(lab.table(study))

    counted = LabDevice(
        *(lambda: H100, device.predict, device.job, device.measure, device.ceilings),
        lambda jobs, limit: [{"bank conflicts": 3.0} for _ in jobs],
    )
    monkeypatch.setitem(DEVICES, "cuda", counted)
    study = lab.run("transpose", ["rows"], shapes=[shape], counters=True)
    assert study["cells"][0]["counters"] == {"bank conflicts": 3.0}


def test_counters_of_a_cpu_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lab", "run", "memory-cpu", "--counters"]) == 2
    assert "whose counters are not read" in capsys.readouterr().err


def test_names_are_those_of_the_metrics() -> None:
    assert "dram__bytes.sum" in counter_names() and len(counter_names()) > 20
