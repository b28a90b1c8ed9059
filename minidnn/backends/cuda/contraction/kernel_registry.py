"""Our kernels of contractions: a kernel is a file beside this one and an entry here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ....cudnn._cupy import cupy
from ..functions import Loaded, Run, in_turn
from ..kernels import Launch
from ..machine import machine_of
from .depthwise import DepthwiseKernel
from .direct import DirectKernel
from .halo import HaloKernel
from .kernel import ContractionKernel
from .problem import Addresses, ContractionProblem
from .rows import RowsKernel
from .stream import StreamKernel
from .tile import TileKernel
from .window import WindowKernel
from .winograd import WinogradKernel

Load = Callable[[Sequence[Launch]], list[Loaded]]

_ENTRIES: tuple[ContractionKernel, ...] = (
    DepthwiseKernel(),
    DirectKernel(),
    HaloKernel(),
    RowsKernel(),
    StreamKernel(),
    TileKernel(),
    WindowKernel(),
    WinogradKernel(),
)
KERNELS: Mapping[str, ContractionKernel] = {kernel.name: kernel for kernel in _ENTRIES}
"""By name."""


@dataclass(frozen=True)
class LoadedContraction:
    """A kernel's choice on the device: what it launches, one after the other."""

    problem: ContractionProblem
    kernel: ContractionKernel
    choice: int
    multiprocessors: int
    loaded: Sequence[Loaded]

    @property
    def workspace(self) -> int:
        """Bytes for what one launch leaves to the next."""
        return self.kernel.workspace(self.problem, self.choice)

    def bind(self, at: Addresses) -> Run:
        """Runs on those addresses, on CuPy's current stream; ``at.x`` is where the image begins."""
        every = self.kernel.arguments(self.problem, self.choice, at, self.multiprocessors)
        return in_turn([one.bind(some) for one, some in zip(self.loaded, every, strict=True)])


def launches_by(
    problem: ContractionProblem, kernel: ContractionKernel, choice: int
) -> Sequence[Launch]:
    """What a kernel's choice launches on the current device."""
    return kernel.launches(problem, choice, multiprocessors())


def load_contraction(
    problem: ContractionProblem, kernel: ContractionKernel, choice: int, load: Load
) -> LoadedContraction:
    """A kernel's choice, loaded."""
    loaded = load(launches_by(problem, kernel, choice))
    return LoadedContraction(problem, kernel, choice, multiprocessors(), loaded)


def refusals(problem: ContractionProblem, arch: str) -> dict[str, str]:
    """The kernels that are not tried for a problem, and why."""
    reasons = ((name, kernel.refusal(problem, arch)) for name, kernel in KERNELS.items())
    return {name: reason for name, reason in reasons if reason is not None}


def multiprocessors() -> int:
    """Of the current device."""
    return machine_of(cupy().cuda.runtime.getDevice()).multiprocessors
