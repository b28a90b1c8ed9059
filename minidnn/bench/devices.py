"""The benches of ``minidnn bench``: predictions on the CPU or on a GPU, and training steps.

A bench names its machine, says which engines can run a case, and measures it.  Nothing in this
module imports PyTorch, and a GPU is only asked for its name: engines run in other processes.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from minidnn.backends.backend import get_backend
from minidnn.backends.cpu.machine import describe_machine
from minidnn.bench import files, measure, networks
from minidnn.bench.engines import INSTALL, KINDS, NEEDED, OWN, Kind, chosen
from minidnn.bench.measure import Earlier, Effort, Step, now, times_of
from minidnn.bench.networks import Case, Prepared
from minidnn.bench.process import EngineError, EngineProcess
from minidnn.bench.results import Record
from minidnn.errors import UnsupportedError

#: PyTorch's modes on a GPU; the first three are the peers by default.
PEERS = ("torch", "torch-channels-last", "torch-compile", "torch-max-autotune", "torch-calls")
USUAL = PEERS[:3]
PRECISIONS = ("float32", "tf32", "float16", "bfloat16")
#: PyTorch's modes for training steps; all of them are the peers by default.
_TRAINED = ("torch", "torch-channels-last", "torch-compile", "torch-reduce-overhead")
TORCH = ("torch", "torchvision")
#: The function that makes all engines of a case in one process, and seconds that it may take:
#: "max-autotune" compiles for a quarter of an hour.
TARGET = "minidnn.bench.gpu_cell:cell"
_TIMEOUT = 3600.0


@dataclass(frozen=True)
class Cpu:
    """Measures predictions on the CPU, each engine in its own process.

    Attributes:
        kinds: minidnn and its peers.
        asked: whether the user named the peers.
    """

    kinds: tuple[Kind, ...]
    asked: bool

    @property
    def notice(self) -> str:
        """A message that is printed first if there is no peer to compare with; "" otherwise."""
        if len(self.kinds) > 1:
            return ""
        missing = [name for name in NEEDED if find_spec(name) is None]
        why = f"{' and '.join(missing)} not installed" if missing else "no other engine installed"
        return (
            f"minidnn runs alone ({why}; {INSTALL} brings other engines), and is compared with its "
            "reference"
        )

    #: A case can be interrupted between two rounds and resumed by a later run.
    in_pieces = True

    def machine(self) -> str:
        """The key of results in a file: a description of the machine."""
        return describe_machine().line()

    def suited(self, case: Case) -> list[str]:
        """The names of the engines that can run the case: an ONNX file is no module of PyTorch.

        Raises:
            UnsupportedError: one that was asked for cannot.
        """
        unsuited = [kind.name for kind in self.kinds if case.file and kind.needs_module]
        if unsuited and self.asked:
            raise UnsupportedError(
                f"--against {unsuited[0]!r}: it takes modules of PyTorch, and {case.network} is an "
                "ONNX file"
            )
        return [kind.name for kind in self.kinds if kind.name not in unsuited]

    def prepare(self, case: Case, names: Sequence[str], folder: Path) -> None:
        """Writes the files of a case, and compiles minidnn's kernels for the cache.

        Raises:
            EngineError: an engine cannot load the network.
        """
        prepared = self._prepared(case, folder)
        for kind in self._named(names):
            kind.prepare(prepared)

    def measure(
        self,
        case: Case,
        names: Sequence[str],
        folder: Path,
        effort: Effort,
        step: Step,
        earlier: Earlier | None = None,
    ) -> dict[str, Record]:
        """Measures a case; returns a record for each engine, see
        :func:`minidnn.bench.measure.measure`."""
        prepared = self._prepared(case, folder)
        return measure.measure(prepared, self._named(names), effort, step, earlier)

    def _prepared(self, case: Case, folder: Path) -> Prepared:
        if len(self.suited(case)) > 1:
            return (files.prepare_file if case.file else networks.prepare)(case, folder)
        return (files.prepare_file_alone if case.file else networks.prepare_alone)(case, folder)

    def _named(self, names: Sequence[str]) -> list[Kind]:
        return [kind for kind in self.kinds if kind.name in names]


def cpu_bench(against: Sequence[str] | None) -> Cpu:
    """A bench of minidnn and the peers with these names, by default all that are installed.

    Raises:
        UnsupportedError: a name is unknown, or what an engine needs is not installed.
    """
    return Cpu((KINDS[OWN], *chosen(against)), against is not None)


def visible(gpu: int) -> str:
    """The GPU of that number among those that this process may see."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    return given.split(",")[gpu] if given else str(gpu)


@dataclass(frozen=True)
class Gpu:
    """Measures predictions on one GPU: minidnn and PyTorch's modes, interleaved in one process.

    Attributes:
        device: "cuda", or "cuda:1" for the second GPU.
        engines: minidnn and its peers.
    """

    device: str
    engines: tuple[str, ...]
    #: A case cannot be interrupted between rounds: making its engines takes longer than all rounds.
    in_pieces = False
    #: A message that is printed first; there is none.
    notice = ""

    @property
    def index(self) -> int:
        return int(self.device.partition(":")[2] or 0)

    def machine(self) -> str:
        """The key of results in a file: the GPU, its driver, and minidnn's cuDNN."""
        from minidnn.cudnn import machine

        return f"{machine.device_name(self.index)}, {machine.library_name()}"

    def suited(self, case: Case) -> list[str]:
        """The names of the engines that can run the case: all."""
        return list(self.engines)

    def prepare(self, case: Case, names: Sequence[str], folder: Path) -> None:
        """Compiles minidnn's kernels and measures their alternatives, for the cache.

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
        """Measures a case; returns a record for each engine.

        All rounds are run, even if they end later than ``effort`` says.  ``earlier``: rounds of an
        earlier run of the same engines, which count too.  An engine that cannot be made has a
        record with its error, and does not stop the others.

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
        return EngineProcess(OWN, TARGET, options, self._environment(), _TIMEOUT)

    def _environment(self) -> dict[str, str]:
        """Variables of the engines' process, which sees only this GPU, as its first."""
        return {"CUDA_VISIBLE_DEVICES": visible(self.index)}


def gpu_bench(device: str, against: Sequence[str] | None) -> Gpu:
    """A bench on a GPU of minidnn and the peers with these names, by default :data:`USUAL`.

    Raises:
        DeviceError: there is no such device, or it cannot be used.
        UnsupportedError: a name is unknown, or PyTorch is not installed.
    """
    for name in against or ():
        if name not in PEERS:
            raise UnsupportedError(f"--against {name!r}: valid on a GPU are {', '.join(PEERS)}")
    get_backend(device)
    _check_torch(f"--device {device!r}")
    return Gpu(device, (OWN, *dict.fromkeys(USUAL if against is None else against)))


def _check_torch(option: str) -> None:
    missing = [name for name in TORCH if find_spec(name) is None]
    if missing:
        raise UnsupportedError(
            f"{option}: needs {' and '.join(missing)}, which "
            f"{'is' if len(missing) == 1 else 'are'} not installed: {INSTALL}"
        )


def _require_own(process: EngineProcess) -> None:
    if (error := process.about["engines"][OWN].get("error")) is not None:
        raise EngineError(f"engine {OWN!r}: could not make: {error}", OWN)


@dataclass(frozen=True)
class Trained(Gpu):
    """Measures training steps of minidnn and of PyTorch's modes, interleaved in one process, on
    ``device``: "cpu" or a GPU."""

    def machine(self) -> str:
        """The key of results in a file: a description of the machine."""
        return describe_machine().line() if self.device == "cpu" else super().machine()

    def _process(self, case: Case, names: Sequence[str], burst: float) -> EngineProcess:
        options: dict[str, Any] = {"network": case.network, "shape": case.shape}
        options |= {"precision": case.dtype, "device": case.device, "threads": case.threads}
        options |= {"engines": list(names), "burst": burst}
        target = "minidnn.bench.steps:steps"
        return EngineProcess(OWN, target, options, self._environment(), _TIMEOUT)

    def _environment(self) -> dict[str, str]:
        return {} if self.device == "cpu" else super()._environment()


def trained_bench(device: str, against: Sequence[str] | None) -> Trained:
    """A bench of training steps on a device, with the peers of these names, by default all.

    Raises:
        DeviceError: there is no such device, or it cannot be used.
        UnsupportedError: a name is unknown, or PyTorch is not installed.
    """
    peers = _TRAINED if against is None else tuple(dict.fromkeys(against))
    for name in peers:
        if name not in _TRAINED:
            raise UnsupportedError(
                f"--against {name!r}: valid with --train are {', '.join(_TRAINED)}"
            )
    get_backend(device)
    _check_torch("--train")
    return Trained(device, (OWN, *peers))
