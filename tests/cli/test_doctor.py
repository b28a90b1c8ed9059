"""``minidnn doctor``: finds what is there, names what is not, and survives everything."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from minidnn._versions import PYTHON, SUPPORTED
from minidnn.backends.cpu.compilers import install, toolchain
from minidnn.cli import main
from minidnn.errors import DeviceError
from minidnn.report import doctor
from minidnn.report.doctor import BROKEN, CHECKS, FOUND, MISSING, Finding, examine, report

SUBJECTS = [
    "Python",
    "minidnn",
    "NumPy",
    "processor",
    "ISPC",
    "C compiler",
    "GPU",
    "CuPy",
    "cuDNN",
    "NVRTC",
    "Pillow",
    "PyTorch",
    "ONNX",
    "ONNX Runtime",
    "versions",
    "cache",
    "default device",
]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No environment of the caller's, and compilers that answer at once."""
    for name in doctor._VARIABLES:
        if name != "MINIDNN_CACHE":
            monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(toolchain, "_remembered", {})


def find(subject: str, findings: list[Finding] | None = None) -> Finding:
    if findings is None:
        by_name = {name: check for name, check in CHECKS}
        findings = doctor._guarded(subject, by_name[subject])
    (found,) = [finding for finding in findings if finding.subject == subject]
    return found


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_everything_is_looked_at(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["doctor"])
    lines = capsys.readouterr().out.splitlines()
    subjects = [line[4:18].strip() for line in lines if line[:2] in ("ok", "--", "!!")]
    assert [s for s in subjects if s != "environment"] == SUBJECTS
    assert code == int(any(line.startswith("!!") for line in lines))
    main(["doctor", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert [f["subject"] for f in found if f["subject"] != "environment"] == SUBJECTS
    assert set(found[0]) == {"subject", "state", "found", "advice"}
    assert found[2]["found"].startswith(np.__version__)


def test_nothing_heavy_is_imported(root: Path) -> None:
    code = (
        "import sys\nfrom minidnn.report.doctor import examine\nexamine()\n"
        "heavy = [m for m in ('torch', 'cupy', 'onnx', 'torchvision') if m in sys.modules]\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_each_package_is_listed_with_its_range_and_what_is_tested(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    installed = {"torch": "2.13.0+cpu", "numpy": "2.5.9", "onnx": "1.17.0"}
    monkeypatch.setattr(doctor, "_versions", lambda name: installed.get(name, ""))
    monkeypatch.setattr(doctor.platform, "python_version", lambda: "3.14.1")
    found = find("versions")
    lines = found.found.splitlines()
    assert [line.split()[0] for line in lines] == [each.name for each in (PYTHON, *SUPPORTED)]
    assert (found.state, found.advice) == (
        MISSING,
        "not supported, as no test runs with them: Python 3.14.1, onnx 1.17.0",
    )
    said = dict(zip((line.split()[0] for line in lines), lines, strict=True))
    assert said["torch"] == (
        "torch 2.13.0+cpu: >=2.11,<2.15; tested with 2.11.0, 2.12.1, 2.13.0, 2.14.1 on a CPU; "
        "2.11.0 on a GPU"
    )
    assert said["onnx"].startswith("onnx 1.17.0, which is not supported: >=1.18,<1.24; tested")
    assert said["ray"] == (
        "ray not installed (of minidnn[batch]): >=2.60,<2.61; tested with 2.60.0 on a CPU"
    )
    monkeypatch.setattr(doctor.platform, "python_version", lambda: "3.13.9")
    installed["onnx"] = "1.23.9"
    assert (find("versions").state, find("versions").advice) == (FOUND, "")


def test_a_check_that_fails_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> list[Finding]:
        raise RuntimeError("out of order")

    broken = tuple((subject, fail) for subject, _ in CHECKS)
    monkeypatch.setattr(doctor, "CHECKS", broken)
    findings = examine()
    assert [f.subject for f in findings] == [subject for subject, _ in CHECKS]
    wanted = "looking at it failed: RuntimeError: out of order"
    assert all((f.state, f.found) == (BROKEN, wanted) for f in findings)


def test_the_exit_code_is_1_when_something_is_broken(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for state, code, last in (
        (FOUND, 0, "nothing is broken"),
        (MISSING, 0, "nothing is broken"),
        (BROKEN, 1, "broken: ISPC"),
    ):
        monkeypatch.setattr(doctor, "examine", lambda s=state: [Finding("ISPC", s, "text")])
        assert main(["doctor"]) == code
        assert capsys.readouterr().out.splitlines()[-1] == last


def test_the_report_puts_advice_below() -> None:
    findings = [Finding("one", FOUND, "here\nand there"), Finding("three", MISSING, "", "buy it")]
    assert report(findings).splitlines() == [
        "ok  one   here",
        "          and there",
        "--  three",
        "          -> buy it",
        "nothing is broken",
    ]


def test_ispc_that_is_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    found = find("ISPC")
    assert (found.state, found.advice) == (MISSING, "")
    assert "run 'minidnn doctor --install-ispc'" in found.found
    (compiler,) = [f for f in doctor._toolchain() if f.subject == "C compiler"]
    assert compiler.state == MISSING and "apt-get install gcc" in compiler.found


def test_ispc_that_is_broken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MINIDNN_ISPC", str(tmp_path / "ispc"))
    found = find("ISPC")
    assert found.state == BROKEN and "ispc does not exist" in found.found
    monkeypatch.setenv("MINIDNN_ISPC", str(script(tmp_path / "ispc", "exit 3")))
    assert find("ISPC").state == BROKEN
    fake = script(
        tmp_path / "good", "echo 'Intel(r) Implicit SPMD Program Compiler (Intel(r) ISPC), 1.99.0'"
    )
    monkeypatch.setenv("MINIDNN_ISPC", str(fake))
    found = find("ISPC")
    assert (found.state, found.found) == (FOUND, f"1.99.0 at {fake} (from MINIDNN_ISPC)")


def test_a_compiler_that_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    (found,) = [f for f in doctor._toolchain() if f.subject == "C compiler"]
    assert found.state == BROKEN and "'no-such-compiler' is not a program in PATH" in found.found


def test_the_compiler_of_cuda_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINIDNN_NVRTC", "/nowhere/libnvrtc.so.13")
    found = find("NVRTC")
    assert found.state == BROKEN and found.found.startswith("no NVRTC ")
    assert "MINIDNN_NVRTC: /nowhere/libnvrtc.so.13 does not exist" in found.found


@pytest.mark.parametrize(
    ("problem", "state"),
    [
        ("no NVRTC 12.4 or newer was found; install it", MISSING),
        ("NVRTC /a/libnvrtc.so.13 on probe: failed to open libnvrtc-builtins.so.13.0", BROKEN),
    ],
)
def test_a_compiler_of_cuda_kernels_that_compiles_nothing(
    problem: str, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MINIDNN_NVRTC", raising=False)
    monkeypatch.setattr(doctor, "_ask", lambda code: ("", problem))
    found = find("NVRTC")
    assert (found.state, found.found) == (state, problem)


def test_packages_tell_their_versions() -> None:
    pytest.importorskip("torch")
    version = importlib.metadata.version("torch")
    assert find("PyTorch").found.startswith(f"{version} at ")


def test_packages_that_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = importlib.util.find_spec

    def nothing(name: str, package: str | None = None) -> object:
        return None if name in ("PIL", "torch", "cupy", "onnx") else usual(name, package)

    monkeypatch.setattr("importlib.util.find_spec", nothing)
    assert find("Pillow") == Finding(
        "Pillow", MISSING, "not installed", "to read pictures: pip install 'minidnn[images]'"
    )
    assert find("PyTorch").state == MISSING
    assert find("ONNX").advice == "for .onnx files: pip install 'minidnn[onnx]'"
    assert find("CuPy").advice == "for device 'cuda': pip install 'minidnn[cuda]'"


def test_a_broken_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    image = pytest.importorskip("PIL.Image")

    def fail(*arguments: object) -> None:
        raise ImportError("libjpeg is gone")

    monkeypatch.setattr(image, "new", fail)
    found = find("Pillow")
    assert found.state == BROKEN and found.found.endswith(", but ImportError: libjpeg is gone")


@pytest.mark.parametrize(
    ("code", "answer"),
    [
        ("print('\"fine\"')", ("fine", "")),
        ("import os; os.kill(os.getpid(), 11)", ("", "it crashes (signal 11)")),
        ("raise ValueError('so\\nand so')", ("", "so\nand so")),
        ("import sys; sys.exit(3)", ("", "it fails without a message")),
        ("import time; time.sleep(60)", ("", "it hangs (for 1 s)")),
    ],
)
def test_what_may_take_the_process_with_it_runs_apart(
    code: str, answer: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "PROBE_SECONDS", 1.0 if "sleep" in code else 30.0)
    assert doctor._ask(code) == answer


def test_cudnn_that_was_named_and_is_not_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MINIDNN_CUDNN", str(tmp_path / "libcudnn.so.9"))
    found = find("cuDNN")
    assert found.state == BROKEN
    assert f"{tmp_path / 'libcudnn.so.9'} does not exist" in found.found
    assert "pip install nvidia-cudnn-cu13" in found.found + found.advice


def test_the_cache_is_measured(cache_root: Path) -> None:
    found = find("cache")
    assert found.state == FOUND and found.found.startswith(f"{cache_root}, 0.0 MB used, ")
    assert list(cache_root.iterdir()) == []


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("MINIDNN_CACHE", str(tmp_path / "file" / "cache"))
    found = find("cache")
    assert found.state == BROKEN and "cannot be written: " in found.found
    assert found.advice == "set MINIDNN_CACHE to a folder that can be written"


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="there are no users here")
def test_a_cache_that_others_could_have_written(cache_root: Path) -> None:
    cache_root.mkdir(exist_ok=True)
    cache_root.chmod(0o777)
    found = find("cache")
    assert found.state == BROKEN and f"{cache_root} can be written by others" in found.found
    assert "close it to others" in found.advice


def test_the_default_device_has_its_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "minidnn.backends.backend.default_device"
    monkeypatch.setattr(name, lambda: ("cpu", ["cuda: no GPU"]))
    assert find("default device") == Finding("default device", FOUND, "cpu\nnot cuda: no GPU")
    monkeypatch.setattr(name, lambda: ("reference", []))
    assert "slow" in find("default device").advice

    def none() -> None:
        raise DeviceError("no device can be used here")

    monkeypatch.setattr(name, none)
    assert find("default device").state == BROKEN


def test_the_environment_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINIDNN_NO_COMPILE", "1")
    assert "MINIDNN_NO_COMPILE=1" in find("environment").found


def test_ispc_is_installed_on_request(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    calls: list[object] = []
    monkeypatch.setattr(install, "install_ispc", lambda packages=None: calls.append(packages))
    monkeypatch.setattr(doctor, "examine", lambda: [Finding("x", FOUND, "y")])
    assert main(["doctor", "--install-ispc", "--packages", str(tmp_path)]) == 0
    assert main(["doctor", "--install-ispc"]) == 0
    assert calls == [str(tmp_path), None]
    capsys.readouterr()

    def fail(packages: object = None) -> None:
        raise DeviceError("ISPC cannot be installed from here (no network)")

    monkeypatch.setattr(install, "install_ispc", fail)
    assert main(["doctor", "--install-ispc"]) == 2
    printed = capsys.readouterr()
    assert printed.err == "minidnn doctor: ISPC cannot be installed from here (no network)\n"
    assert main(["doctor", "--packages", "x"]) == 2
    assert "--packages x goes with --install-ispc" in capsys.readouterr().err


def test_a_driver_that_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    class Driver:
        def cuInit(self, flags: int) -> int:
            return 803

        def cuGetErrorString(self, status: int, text: object) -> int:
            text._obj.value = b"driver is older than the runtime"  # type: ignore[attr-defined]
            return 0

    monkeypatch.setattr("ctypes.CDLL", lambda name: Driver())
    assert find("GPU") == Finding(
        "GPU",
        BROKEN,
        "the driver does not start: driver is older than the runtime (error 803)",
    )


@pytest.mark.gpu
def test_a_gpu_is_named() -> None:
    import cupy

    found = find("GPU")
    name = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
    assert found.state == FOUND and f"0: {name}, " in found.found
    assert find("CuPy").found.startswith(f"{cupy.__version__} at ")
    assert find("cuDNN").state == FOUND
