"""Cells on a GPU as ``minidnn bench`` measures them.  Nothing here needs PyTorch, or a GPU but to
ask for its name."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minidnn.backends.backend import get_backend
from minidnn.bench.engines import INSTALL, OWN
from minidnn.bench.measure import Earlier, Effort, Step, now, times_of
from minidnn.bench.networks import Case
from minidnn.bench.process import EngineError, EngineProcess
from minidnn.bench.results import Record
from minidnn.errors import UnsupportedError

#: PyTorch's modes; the first three are peers unless others are asked for.
PEERS = ("torch", "torch-channels-last", "torch-compile", "torch-max-autotune", "torch-calls")
USUAL = PEERS[:3]
PRECISIONS = ("float32", "tf32", "float16", "bfloat16")
NEEDED = ("torch", "torchvision")

#: Of the process that has a cell's engines; "max-autotune" compiles for a quarter of an hour.
TARGET = "minidnn.bench.gpu.cell:cell"
TIMEOUT = 3600.0


@dataclass(frozen=True)
class Gpu:
    """Cells on one GPU: minidnn and PyTorch's modes in one process, called in turn.

    Attributes:
        device: "cuda", or "cuda:1" for the second GPU.
        engines: minidnn and the peers.
    """

    device: str
    engines: tuple[str, ...]
    #: What has begun is measured to its end: making the engines takes longer than all rounds.
    in_pieces = False
    #: What is said before anything is measured.
    notice = ""

    @property
    def index(self) -> int:
        return int(self.device.partition(":")[2] or 0)

    def machine(self) -> str:
        """What results are filed under: the GPU, its driver, minidnn's cuDNN."""
        from minidnn.cudnn import machine

        return f"{machine.device_name(self.index)}, {machine.library_name()}"

    def suited(self, case: Case) -> list[str]:
        """The names of the engines that are measured."""
        return list(self.engines)

    def prepare(self, case: Case, names: Sequence[str], folder: Path) -> None:
        """Compiles minidnn's kernels and measures their choices, for the cache.

        Raises:
            EngineError: minidnn failed.
        """
        with self._process(case, [OWN], 0.0) as process:
            _require_own(process)

    def measure(
        self,
        case: Case,
        names: Sequence[str],
        folder: Path,
        effort: Effort,
        step: Step,
        earlier: Earlier | None = None,
    ) -> dict[str, Record]:
        """A record for each engine; ``earlier``: rounds of all of these, which count too.

        All rounds are run, even if they end later than ``effort`` says.  An engine that cannot be
        made has a record with its error, and does not stop the others.

        Raises:
            EngineError: minidnn itself failed, or the process ended.
        """
        begun = earlier.begun if earlier else now()
        done = len(earlier.rounds[OWN]) if earlier else 0
        with self._process(case, names, effort.burst) as process:
            _require_own(process)
            records = {
                name: {**about, "measured": now()}
                for name, about in process.about["engines"].items()
            }
            there = [name for name, record in records.items() if "error" not in record]
            rounds: list[list[float]] = []
            for number in range(done, effort.rounds):
                step("running all", 1 + number, 1 + effort.rounds)
                (seconds,) = process.outputs()
                rounds.append(seconds.tolist())
        times = dict(zip(there, map(list, zip(*rounds, strict=True)), strict=True))
        if earlier:
            times = {name: [*earlier.rounds[name], *found] for name, found in times.items()}
        for name, found in times.items():
            records[name] |= {"begun": begun, **times_of(found, times[OWN], name)}
        return records

    def _process(self, case: Case, names: Sequence[str], burst: float) -> EngineProcess:
        options: dict[str, Any] = {"network": case.network, "shape": case.shape}
        options |= {"precision": case.dtype, "engines": list(names), "burst": burst}
        return EngineProcess(OWN, TARGET, options, self._environment(), TIMEOUT)

    def _environment(self) -> dict[str, str]:
        """The process sees this GPU alone, and calls it its first."""
        seen = os.environ.get("CUDA_VISIBLE_DEVICES")
        return {"CUDA_VISIBLE_DEVICES": seen.split(",")[self.index] if seen else str(self.index)}


def gpu_bench(device: str, against: Sequence[str] | None, argument: str) -> Gpu:
    """Cells on that device with the peers of these names; without names, the usual ones.

    Raises:
        DeviceError: there is no such device, or it cannot be used.
        UnsupportedError: a name is unknown, or PyTorch is not installed.
    """
    for name in against or ():
        if name not in PEERS:
            raise UnsupportedError(f"{argument} {name!r}: valid on a GPU are {', '.join(PEERS)}")
    get_backend(device)
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise UnsupportedError(
            f"--device {device!r}: needs {' and '.join(missing)}, which "
            f"{'is' if len(missing) == 1 else 'are'} not installed: {INSTALL}"
        )
    return Gpu(device, (OWN, *dict.fromkeys(USUAL if against is None else against)))


def _require_own(process: EngineProcess) -> None:
    if (error := process.about["engines"][OWN].get("error")) is not None:
        raise EngineError(f"engine {OWN!r}: could not make: {error}", OWN)
