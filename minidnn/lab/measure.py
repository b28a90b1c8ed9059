"""Measures a step on a GPU: compiles it, checks its result against the reference, then times it.

Jobs run in a process of their own (:mod:`.isolated_jobs`), since a faulty kernel can end it.
"""

from __future__ import annotations

import re
import shutil
import statistics
import subprocess
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from ..backends.cuda.functions import compile_kernels
from ..backends.cuda.kernels import Launch
from ..backends.cuda.machine import machine_of
from ..cudnn.gpu_lock import gpu_lock
from ..cudnn.graph.timing import Contestant, sample, timing_stream
from ..gpu import cupy
from ..measure import median
from .cuda.step import KernelCall, Texture
from .isolated_jobs import FaultError
from .operands import RESULT, Operands, WrongResultError, first_wrong

_GUARD = 1024
"""Guard elements before and after a result, which kernels must not write."""
_MOST_SHARED, _PLENTY = 8, 48 << 10  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_BETWEEN = 3  # cudaMemcpyDeviceToDevice


@dataclass(frozen=True)
class Job:
    """A step's launches on a shape, as plain data for the measuring process.

    Attributes:
        calls: its kernel launches in their order, with their arguments.
        symbols: mangled symbols of constant-memory arrays, and the operands that they hold.
        size: elements of the result.
        operands: files of the operands and of the expected result.
        result: NumPy's name of the result's dtype.
        scratch: names and sizes, in floats, of the arrays that kernels pass on to each other.
    """

    calls: tuple[KernelCall, ...]
    symbols: dict[str, str]
    size: int
    operands: Operands
    result: str = "float32"
    scratch: Mapping[str, int] = field(default_factory=dict)

    @property
    def launch(self) -> Launch:
        """The launch of the main kernel, which has the step's name."""
        return self.calls[-1].launch


def measure(job: Job) -> dict[str, Any]:
    """Checks and times a step; returns the measured part of a study's cell.

    Raises:
        WrongResultError: the result is wrong, or guard elements were written.
        FaultError: the GPU reports a fault, after which this process cannot use it any more.
    """
    try:
        with gpu_lock(cupy().cuda.runtime.getDevice()):
            run = run_once(job)
            row = times(run)
        return row | ({"machine_code": code} if (code := _machine_code(job)) else {})
    except WrongResultError:
        _forget()  # operands may have been written, too
        raise
    except _errors() as error:
        raise FaultError(f"the kernel failed: {error}") from error


def _errors() -> tuple[type[Exception], ...]:
    return (cupy().cuda.runtime.CUDARuntimeError, cupy().cuda.driver.CUDADriverError)


def run_once(job: Job) -> Callable[[], object]:
    """Binds the step to its operands and checks its first result; returns a function
    that runs it again.  Raises as :func:`measure` does."""
    operands, expected = arrays(job.operands)
    guarded = cupy().full(job.size + 2 * _GUARD, np.nan, job.result)
    y = guarded[_GUARD : _GUARD + job.size]
    run = bound(job, {**operands, RESULT: y})
    try:
        with timing_stream() as stream:
            run()
            stream.synchronize()
        if (wrong := first_wrong(y, expected, job.operands.tolerance)) is not None:
            raise WrongResultError(f"the result is wrong: {wrong}")
        y[:] = np.nan
        if not bool(cupy().isnan(guarded).all()):
            raise WrongResultError("memory outside the result was written")
        return run
    except _errors() as error:
        raise FaultError(f"the kernel failed: {error}") from error


def times(
    run: Callable[[], object], repeat: Callable[[int], Callable[[], object]] | None = None
) -> dict[str, Any]:
    """Times ``run``, which starts work on CuPy's current stream: the median with its confidence
    interval, and the variability.  ``repeat``: see :class:`Contestant`."""
    seconds = [one * 1e-3 for one in sample(Contestant(run, repeat))]
    if not seconds:
        raise WrongResultError("it failed when it was timed")
    return summarized(seconds)


def summarized(seconds: Sequence[float]) -> dict[str, Any]:
    """The part of a cell that says how long repeated runs took."""
    estimate = median(seconds)
    return {
        "measured_seconds": estimate.value,
        "measured_interval": [estimate.low, estimate.high],
        "variability": statistics.stdev(seconds) / statistics.fmean(seconds),
        "samples": len(seconds),
    }


@cache
def _uploaded(path: Path) -> Any:
    return cupy().asarray(np.load(path))


_kept: list[Operands] = []


def _forget() -> None:
    _kept.clear()
    _uploaded.cache_clear()


def arrays(operands: Operands) -> tuple[dict[str, Any], Any]:
    """The operands and the expected result on the GPU; those of the last call stay cached."""
    if _kept != [operands]:
        _forget()
        _kept.append(operands)
    uploaded = {name: _uploaded(path) for name, path in operands.files.items()}
    return uploaded, _uploaded(operands.expected)


def _machine_code(job: Job) -> dict[str, int]:
    (kernel,) = compile_kernels([job.launch.source], _arch())
    return machine_code(kernel.cubin)


def _arch() -> str:
    return machine_of(cupy().cuda.runtime.getDevice()).arch


def bound(job: Job, given: dict[str, Any]) -> Callable[[], object]:
    """Binds the kernels to these arrays, fills the main kernel's constant memory, and fills scratch
    arrays with NaN; returns a function that launches all kernels once."""
    scratch = {name: cupy().full(size, np.nan, np.float32) for name, size in job.scratch.items()}
    arrays = {**given, **scratch}
    textures = {name: _texture(arrays[name]) for name in _textures(job)}
    kernels = compile_kernels([call.launch.source for call in job.calls], _arch())
    bound = []
    for call, kernel in zip(job.calls, kernels, strict=True):
        module = cupy().cuda.function.Module()
        module.load(kernel.cubin)
        function = module.get_function(kernel.name)
        if call.launch.shared_bytes > _PLENTY:
            most = call.launch.shared_bytes
            cupy().cuda.driver.funcSetAttribute(function.ptr, _MOST_SHARED, most)
        arguments = tuple(
            textures[one.operand].ptr
            if isinstance(one, Texture)
            else arrays[one].data.ptr
            if isinstance(one, str)
            else one
            for one in call.arguments
        )
        bound.append((module, function, call.launch, arguments))
    for symbol, operand in job.symbols.items():
        source = given[operand]
        address = bound[-1][0].get_global_var(symbol)
        cupy().cuda.runtime.memcpy(int(address), source.data.ptr, source.nbytes, _BETWEEN)
    cupy().cuda.Device().synchronize()

    def run() -> None:
        # The closure keeps arrays, modules and textures alive.
        assert arrays is not None and textures is not None
        for _, function, launch, arguments in bound:
            function(launch.grid, launch.block, arguments, shared_mem=launch.shared_bytes)

    return run


def _textures(job: Job) -> set[str]:
    arguments = [one for call in job.calls for one in call.arguments]
    return {one.operand for one in arguments if isinstance(one, Texture)}


def _texture(array: Any) -> Any:
    """An array of floats as a linear texture: it is fetched by index, and is 0 out of bounds."""
    texture, runtime = import_module("cupy.cuda.texture"), cupy().cuda.runtime
    kind = texture.ChannelFormatDescriptor(32, 0, 0, 0, runtime.cudaChannelFormatKindFloat)
    source = {"arr": array, "chDesc": kind, "sizeInBytes": array.nbytes}
    resource = texture.ResourceDescriptor(runtime.cudaResourceTypeLinear, **source)
    return texture.TextureObject(resource, texture.TextureDescriptor())


_LINE = re.compile(
    r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z]\w*)((?:\.\w+)*)", re.MULTILINE
)
_ACCESSES = ("LDG", "STG", "LDS", "STS", "LDL", "STL")
_MOST = 10


def machine_code(cubin: bytes) -> dict[str, int]:
    """Counts the most frequent instructions of a cubin, and all of them under "all"; empty where
    there is no ``cuobjdump``, which comes with the CUDA toolkit."""
    if (tool := shutil.which("cuobjdump")) is None:
        return {}
    with TemporaryDirectory(prefix="minidnn-lab-") as folder:
        path = Path(folder) / "step.cubin"
        path.write_bytes(cubin)
        command = [tool, "--dump-sass", str(path)]
        process = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return instructions(process.stdout)


def instructions(text: str) -> dict[str, int]:
    """Counts the instructions of a SASS listing; memory accesses of 64 and 128 bits count apart
    from narrower ones."""
    counts: Counter[str] = Counter()
    for name, suffixes in _LINE.findall(text):
        if name != "NOP":
            width = re.search(r"\.(64|128)\b", suffixes) if name in _ACCESSES else None
            counts[name + (width[0] if width else "")] += 1
    if not counts:
        return {}
    return {**dict(counts.most_common(_MOST)), "all": counts.total()}
