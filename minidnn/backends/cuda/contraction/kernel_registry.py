"""The registry of our contraction kernels: each is a file beside this one and an entry here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..functions import Load, Loaded
from ..machine import Machine
from ..table import KernelRow, Row
from .backward import BackwardKernel
from .depthwise import DepthwiseKernel
from .depthwise_filter import DepthwiseFilterKernel
from .depthwise_nchw import DepthwiseNchwKernel
from .depthwise_nchw_filter import DepthwiseNchwFilterKernel
from .depthwise_steps import DepthwiseStepsKernel
from .direct import DirectKernel
from .dp4a import Dp4aKernel
from .filter_gradient import FilterGradientKernel
from .halo import HaloKernel
from .kernel import ContractionKernel
from .problem import Addresses, ContractionProblem
from .rows import RowsKernel
from .small_channels_gradient import SmallChannelsGradientKernel
from .stream import StreamKernel
from .tile import TileKernel
from .winograd import WinogradKernel

_ENTRIES: tuple[ContractionKernel, ...] = (
    BackwardKernel(DepthwiseKernel()),
    BackwardKernel(DirectKernel()),
    BackwardKernel(HaloKernel()),
    BackwardKernel(StreamKernel()),
    DepthwiseKernel(),
    DepthwiseFilterKernel(),
    DepthwiseStepsKernel(),
    DirectKernel(),
    FilterGradientKernel(),
    HaloKernel(),
    DepthwiseNchwKernel(),
    DepthwiseNchwFilterKernel(),
    Dp4aKernel(),
    RowsKernel(),
    SmallChannelsGradientKernel(),
    StreamKernel(),
    TileKernel(),
    WinogradKernel(),
)
KERNELS: Mapping[str, ContractionKernel] = {kernel.name: kernel for kernel in _ENTRIES}
"""The kernels, by the names that algorithms and the tuning cache have."""


@dataclass(frozen=True)
class LoadedContraction:
    """A choice of a kernel of ours, loaded on the device: the core of a configuration.

    Attributes:
        loaded: what it launches, one after the other.
    """

    problem: ContractionProblem
    kernel: ContractionKernel
    choice: int
    machine: Machine
    loaded: Sequence[Loaded]

    @property
    def workspace(self) -> int:
        """Bytes of device memory in which launches pass results to the next ones."""
        return self.kernel.workspace(self.problem, self.choice, self.machine)

    def rows(self, at: Addresses) -> list[Row]:
        """The launches for those addresses; ``at.x`` includes the image's offset."""
        arguments = self.kernel.arguments(self.problem, self.choice, at, self.machine)
        return [
            KernelRow(kernel, tuple(pointers))
            for kernel, pointers in zip(self.loaded, arguments, strict=True)
        ]


def load_contraction(
    problem: ContractionProblem,
    kernel: ContractionKernel,
    choice: int,
    machine: Machine,
    load: Load,
) -> LoadedContraction:
    """Loads the kernels of a choice; ``load`` compiles them where that has not been done."""
    loaded = load(kernel.launches(problem, choice, machine))
    return LoadedContraction(problem, kernel, choice, machine, loaded)


def refusals(problem: ContractionProblem, machine: Machine) -> dict[str, str]:
    """The names of the kernels that are not tried for a problem, and why."""
    reasons = ((name, kernel.refusal(problem, machine)) for name, kernel in KERNELS.items())
    return {name: reason for name, reason in reasons if reason is not None}
