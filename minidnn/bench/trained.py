"""Training steps as ``minidnn bench --train`` measures them.  Nothing here needs PyTorch, or a GPU
but to ask for its name."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from minidnn.backends.backend import get_backend
from minidnn.backends.cpu.machine import describe_machine
from minidnn.bench.engines import INSTALL, OWN
from minidnn.bench.gpu.measure import NEEDED, TIMEOUT, Gpu
from minidnn.bench.networks import Case
from minidnn.bench.process import EngineProcess
from minidnn.errors import UnsupportedError

#: PyTorch's modes, all of them peers unless others are asked for.
PEERS = ("torch", "torch-channels-last", "torch-compile", "torch-reduce-overhead")
TARGET = "minidnn.bench.steps:steps"


@dataclass(frozen=True)
class Trained(Gpu):
    """Steps of minidnn and of PyTorch's modes in one process, in turn, on ``device``: "cpu" or a
    GPU."""

    def machine(self) -> str:
        """What results are filed under."""
        return describe_machine().line() if self.device == "cpu" else super().machine()

    def _process(self, case: Case, names: Sequence[str], burst: float) -> EngineProcess:
        options: dict[str, Any] = {"network": case.network, "shape": case.shape}
        options |= {"precision": case.dtype, "device": case.device, "threads": case.threads}
        options |= {"engines": list(names), "burst": burst}
        return EngineProcess(OWN, TARGET, options, self._environment(), TIMEOUT)

    def _environment(self) -> dict[str, str]:
        return {} if self.device == "cpu" else super()._environment()


def trained_bench(device: str, against: Sequence[str] | None, argument: str) -> Trained:
    """Steps on that device beside the peers of these names; without names, beside all.

    Raises:
        DeviceError: there is no such device, or it cannot be used.
        UnsupportedError: a name is unknown, or PyTorch is not installed.
    """
    peers = PEERS if against is None else tuple(dict.fromkeys(against))
    for name in peers:
        if name not in PEERS:
            raise UnsupportedError(
                f"{argument} {name!r}: valid with --train are {', '.join(PEERS)}"
            )
    get_backend(device)
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise UnsupportedError(
            f"--train: needs {' and '.join(missing)}, which "
            f"{'is' if len(missing) == 1 else 'are'} not installed: {INSTALL}"
        )
    return Trained(device, (OWN, *peers))
