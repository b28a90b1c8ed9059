"""doctor: checks of this machine: devices, compilers, libraries, versions and the cache.

Checks are independent: an exception in one becomes its finding.  Libraries that might crash the
process or are slow to import (CuPy, cuDNN, NVRTC) are probed in a process of their own, CuPy only
where it is installed.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from minidnn._versions import PYTHON, SUPPORTED
from minidnn.errors import DeviceError

__all__ = ["BROKEN", "FOUND", "MISSING", "Finding", "examine", "report"]

#: States: present and working; absent, which is allowed; present or needed, but failing.
FOUND, MISSING, BROKEN = "found", "missing", "broken"

PROBE_SECONDS = 60.0
_SMALL_SPACE = 1 << 30
_VARIABLES = (
    "MINIDNN_CACHE",
    "MINIDNN_COMPILE_TIMEOUT",
    "MINIDNN_CUDNN",
    "MINIDNN_ISPC",
    "MINIDNN_NO_COMPILE",
    "MINIDNN_NVRTC",
    "CC",
    "CUDA_PATH",
    "CUDA_VISIBLE_DEVICES",
)


@dataclass(frozen=True)
class Finding:
    """One line of the report: its subject, its state, the finding as text, and advice or ""."""

    subject: str
    state: str
    found: str
    advice: str = ""


def examine() -> list[Finding]:
    """Runs all checks and returns their findings.  A check that raises becomes a broken finding."""
    return [finding for subject, check in CHECKS for finding in _guarded(subject, check)]


def report(findings: list[Finding]) -> str:
    """Formats findings as text, each with its advice below it."""
    marks = {FOUND: "ok", MISSING: "--", BROKEN: "!!"}
    width = max(len(finding.subject) for finding in findings)
    lines = []
    for finding in findings:
        first, *more = finding.found.splitlines() or [""]
        indent = " " * (width + 5)
        lines.append(f"{marks[finding.state]}  {finding.subject:<{width}} {first}".rstrip())
        lines += [indent + line for line in more]
        lines += [f"{indent}-> {finding.advice}"] if finding.advice else []
    broken = [finding.subject for finding in findings if finding.state == BROKEN]
    lines.append(f"broken: {', '.join(broken)}" if broken else "nothing is broken")
    return "\n".join(lines)


def _guarded(subject: str, check: Callable[[], list[Finding]]) -> list[Finding]:
    try:
        return check()
    except Exception as error:
        return [Finding(subject, BROKEN, f"looking at it failed: {type(error).__name__}: {error}")]


def _one(subject: str, state: str, found: str, advice: str = "") -> list[Finding]:
    """A list of one finding."""
    return [Finding(subject, state, found, advice)]


def _python() -> list[Finding]:
    text = f"{platform.python_version()} at {sys.executable or 'an unknown place'}, "
    return _one("Python", FOUND, text + platform.platform())


def _minidnn() -> list[Finding]:
    import minidnn

    return _one("minidnn", FOUND, f"{minidnn.__version__} at {Path(minidnn.__file__).parent}")


def _numpy() -> list[Finding]:
    try:
        import numpy as np
    except ImportError as error:
        return _one("NumPy", BROKEN, str(error), "pip install 'numpy>=2,<3'")
    return _one("NumPy", FOUND, f"{np.__version__} at {Path(np.__file__).parent}")


def _processor() -> list[Finding]:
    from minidnn.backends.cpu.isa import best_isa
    from minidnn.backends.cpu.machine import describe_machine

    machine = describe_machine()
    try:
        best_isa()
    except DeviceError as error:
        return _one("processor", MISSING, machine.line(), str(error))
    return _one("processor", FOUND, machine.line())


def _toolchain() -> list[Finding]:
    """Checks ISPC and the C compiler."""
    from minidnn.backends.cpu.compilers import toolchain

    findings = []
    named = os.environ.get(toolchain.ISPC_VARIABLE, "")
    try:
        ispc = toolchain.find_ispc()
        text = f"{toolchain.dotted(ispc.version)} at {ispc.path} (from {ispc.source})"
        findings += _one("ISPC", FOUND, text)
    except DeviceError as error:
        advice = "" if toolchain.INSTALL_HINT in str(error) else toolchain.INSTALL_HINT
        is_there = named or shutil.which("ispc") or toolchain.private_ispc()
        findings += _one("ISPC", BROKEN if is_there else MISSING, str(error), advice)
    try:
        cc = toolchain.find_cc()
        text = f"{cc.banner}: {' '.join(cc.argv)} (from {cc.source})"
        findings += _one("C compiler", FOUND, text)
    except DeviceError as error:
        state = BROKEN if os.environ.get("CC", "").strip() else MISSING
        findings += _one("C compiler", state, str(error))
    return findings


def _gpu() -> list[Finding]:
    """Checks the driver and its GPUs through the driver's own library."""
    from minidnn.cudnn.driver import file_name

    name = file_name()
    try:
        driver = ctypes.CDLL(name)
    except OSError:
        advice = "for device 'cuda': install NVIDIA's driver, and see whether nvidia-smi works"
        return _one("GPU", MISSING, f"no NVIDIA driver ({name} was not found)", advice)
    if status := driver.cuInit(0):
        return _one("GPU", BROKEN, f"the driver does not start: {_cuda_error(driver, status)}")
    number, count = ctypes.c_int(), ctypes.c_int()
    driver.cuDriverGetVersion(ctypes.byref(number))
    driver.cuDeviceGetCount(ctypes.byref(count))
    cuda = f"{number.value // 1000}.{number.value % 1000 // 10}"
    gpus = f"{count.value} GPU{'s' * (count.value != 1)}"
    lines = [f"driver {_driver_version()}, for CUDA up to {cuda}, {gpus}"]
    for index in range(count.value):
        text = ctypes.create_string_buffer(256)
        driver.cuDeviceGetName(text, len(text), index)
        size = ctypes.c_size_t()
        driver.cuDeviceTotalMem_v2(ctypes.byref(size), index)
        lines.append(f"{index}: {text.value.decode(errors='replace')}, {size.value >> 20:,} MiB")
    if not count.value:
        return _one("GPU", MISSING, lines[0], "see CUDA_VISIBLE_DEVICES")
    return _one("GPU", FOUND, "\n".join(lines))


def _cuda_error(driver: ctypes.CDLL, status: int) -> str:
    text = ctypes.c_char_p()
    if driver.cuGetErrorString(status, ctypes.byref(text)) or text.value is None:
        return f"error {status}"
    return f"{text.value.decode(errors='replace')} (error {status})"


def _driver_version() -> str:
    with contextlib.suppress(OSError):
        words = Path("/proc/driver/nvidia/version").read_text(errors="replace").split()
        for word in words:
            if word[0].isdecimal() and "." in word:
                return word
    return "of an unknown version"


def _cupy() -> list[Finding]:
    advice = "for device 'cuda': pip install 'minidnn[cuda]'"
    if importlib.util.find_spec("cupy") is None:
        return _one("CuPy", MISSING, "not installed", advice)
    code = (
        "import json, cupy; n = cupy.cuda.runtime.getDeviceCount(); "
        "gpus = f'{n} GPU' + 's' * (n != 1); "
        "print(json.dumps(f'{cupy.__version__} at {cupy.__path__[0]}, sees {gpus}'))"
    )
    found, problem = _ask(code)
    if problem:
        versions = _versions("cupy-cuda13x", "cupy-cuda12x", "cupy") or "installed"
        gpu = any(finding.state == FOUND for finding in _guarded("GPU", _gpu))
        return _one("CuPy", BROKEN if gpu else MISSING, f"{versions}, but {problem}")
    return _one("CuPy", FOUND, found)


def _cudnn() -> list[Finding]:
    from minidnn.cudnn.library import ENVIRONMENT, HOW_TO_INSTALL

    code = (
        "import json; from minidnn.cudnn import library as l; c = l.load(); "
        "print(json.dumps(f'{l.version_text(c.version)} at {c.path}'))"
    )
    return _library("cuDNN", code, ENVIRONMENT, HOW_TO_INSTALL)


def _nvrtc() -> list[Finding]:
    """Checks NVRTC, the compiler of CUDA kernels, by compiling one."""
    from minidnn.backends.cuda.nvrtc import ENVIRONMENT

    code = (
        "import json; from minidnn.backends.cuda.nvrtc import load; n = load(); "
        "n.compile('__global__ void probe() {}', 'sm_80', 'probe'); "
        "print(json.dumps(f'{n.version[0]}.{n.version[1]} at {n.path}'))"
    )
    return [
        replace(one, state=BROKEN) if one.state == MISSING and "no NVRTC" not in one.found else one
        for one in _library("NVRTC", code, ENVIRONMENT)
    ]


def _library(title: str, code: str, variable: str, advice: str = "") -> list[Finding]:
    """Checks a library by a line of Python that loads it.  If that fails, it is broken where an
    environment variable names it, else missing."""
    found, problem = _ask(code)
    if not problem:
        return _one(title, FOUND, found)
    state = BROKEN if os.environ.get(variable) else MISSING
    return _one(title, state, problem, "" if advice in problem else advice)


def _ask(code: str) -> tuple[str, str]:
    """Runs a line of Python in a process of its own; returns the JSON text that it prints, and the
    problem, either of them ""."""
    root = str(Path(__file__).parents[2])
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    try:
        process = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PROBE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "", f"it hangs (for {PROBE_SECONDS:.0f} s)"
    if process.returncode < 0:
        return "", f"it crashes (signal {-process.returncode})"
    if process.returncode:
        return "", _last_error(process.stderr)
    return str(json.loads(process.stdout.splitlines()[-1])), ""


def _last_error(text: str) -> str:
    """The message of the last exception in Python's error output."""
    lines = text.rstrip().splitlines()
    starts = [i for i, line in enumerate(lines) if line[:1].isalpha() and ": " in line]
    message = "\n".join(lines[starts[-1] :] if starts else lines[-1:])
    return message.partition(": ")[2] or message or "it fails without a message"


def _package(subject: str, module: str, names: tuple[str, ...], advice: str) -> list[Finding]:
    """Checks a Python package by its metadata, without importing it."""
    spec = importlib.util.find_spec(module)
    if spec is None:
        return _one(subject, MISSING, "not installed", advice)
    where = (
        Path(spec.origin).parent if spec.origin else (list(spec.submodule_search_locations or "?"))
    )
    return _one(subject, FOUND, f"{_versions(*names) or 'of an unknown version'} at {where}")


def _versions(*names: str) -> str:
    """The version of the first of these distributions that is installed, or ""."""
    for name in names:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(name)
    return ""


def _pillow() -> list[Finding]:
    found = _package(
        "Pillow", "PIL", ("pillow",), "to read pictures: pip install 'minidnn[images]'"
    )
    if found[0].state == FOUND:
        try:
            from PIL import Image

            Image.new("L", (1, 1))
        except Exception as error:
            return _one("Pillow", BROKEN, f"{found[0].found}, but {type(error).__name__}: {error}")
    return found


def _pytorch() -> list[Finding]:
    advice = "for optimize and torch.compile: pip install 'minidnn[torch]'"
    return _package("PyTorch", "torch", ("torch",), advice)


def _onnx() -> list[Finding]:
    engine = "to compare with it: pip install onnxruntime"
    return [
        *_package("ONNX", "onnx", ("onnx",), "for .onnx files: pip install 'minidnn[onnx]'"),
        *_package("ONNX Runtime", "onnxruntime", ("onnxruntime",), engine),
    ]


def _supported() -> list[Finding]:
    """Lists the packages that minidnn needs or can use: the installed version, the supported range,
    and the versions that tests run with."""
    lines, unsupported = [], []
    for each in (PYTHON, *SUPPORTED):
        installed = platform.python_version() if each is PYTHON else _versions(each.name)
        extra = f"minidnn[{each.extra}]" if each.extra else "minidnn"
        text = installed or f"not installed (of {extra})"
        if installed and not each.takes(installed):
            text += ", which is not supported"
            unsupported.append(f"{each.name} {installed}")
        lines.append(f"{each.name} {text}: {each.range}; tested with {each.tested()}")
    advice = "not supported, as no test runs with them: " + ", ".join(unsupported)
    state = MISSING if unsupported else FOUND
    return _one("versions", state, "\n".join(lines), advice if unsupported else "")


def _cache() -> list[Finding]:
    """Checks that the cache's folder can be used, and the space that is left."""
    from minidnn import cache

    root = cache.root()
    existing = next((path for path in (root, *root.parents) if path.exists()), root)
    try:
        with (
            cache.open_folder(root, create=True),
            tempfile.TemporaryFile(dir=root, prefix=".work-"),
        ):
            pass
    except cache.UntrustedError as error:
        advice = "close it to others if nobody has put anything there, or set MINIDNN_CACHE"
        return _one("cache", BROKEN, f"{root} is not used: {error}", advice)
    except OSError as error:
        text = f"{root} cannot be written: {error}"
        return _one("cache", BROKEN, text, "set MINIDNN_CACHE to a folder that can be written")
    size = sum(use.size + use.unfinished for use in cache.usage().values())
    free = shutil.disk_usage(existing).free
    text = f"{root}, {size / 1e6:.1f} MB used, {free / 1e9:.1f} GB free"
    advice = "there is little space left: 'minidnn cache clear'" if free < _SMALL_SPACE else ""
    return _one("cache", FOUND, text, advice)


def _device() -> list[Finding]:
    """Finds the default device, and why better ones are not used."""
    from minidnn.backends.backend import default_device

    try:
        name, reasons = default_device()
    except DeviceError as error:
        return _one("default device", BROKEN, str(error))
    lines = [name, *(f"not {reason}" for reason in reasons)]
    slow = name == "reference"
    advice = "NumPy: right, but slow; what is missing above makes others usable" if slow else ""
    return _one("default device", FOUND, "\n".join(lines), advice)


def _third_parties() -> list[Finding]:
    """Checks third parties' backends and front ends, each in a process of its own."""
    from minidnn.third_parties import BACKENDS, FRONTENDS, described, entries

    findings = []
    for group, module, title, reason in (
        (BACKENDS, "minidnn.backends.backend", "Backend", "made.unavailable() or ''"),
        (FRONTENDS, "minidnn.frontends.frontend", "FrontEnd", "''"),
    ):
        for entry in entries(group):
            code = (
                f"import json; from {module} import {title}; "
                "from minidnn.third_parties import entries, make; "
                f"found = [e for e in entries({group!r}) if e.name == {entry.name!r}]; "
                f"made = make(found[0], {title}); print(json.dumps({reason}))"
            )
            unusable, problem = _ask(code)
            state = BROKEN if problem else MISSING if unusable else FOUND
            what = "device" if group == BACKENDS else "front end"
            usable = f"{described(entry)}{': ' * bool(unusable)}{unusable}"
            findings += _one(f"{what} {entry.name}", state, problem or usable)
    return findings


def _environment() -> list[Finding]:
    settings = [f"{name}={os.environ[name]}" for name in _VARIABLES if os.environ.get(name)]
    return _one("environment", FOUND, "\n".join(settings)) if settings else []


CHECKS: tuple[tuple[str, Callable[[], list[Finding]]], ...] = (
    ("Python", _python),
    ("minidnn", _minidnn),
    ("NumPy", _numpy),
    ("processor", _processor),
    ("ISPC", _toolchain),
    ("GPU", _gpu),
    ("CuPy", _cupy),
    ("cuDNN", _cudnn),
    ("NVRTC", _nvrtc),
    ("Pillow", _pillow),
    ("PyTorch", _pytorch),
    ("ONNX", _onnx),
    ("versions", _supported),
    ("cache", _cache),
    ("default device", _device),
    ("third parties", _third_parties),
    ("environment", _environment),
)
