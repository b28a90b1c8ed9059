"""Cases on the processor as ``minidnn bench`` measures them: each engine in its own process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from minidnn.backends.cpu.machine import describe_machine
from minidnn.bench import files, measure, networks
from minidnn.bench.engines import INSTALL, KINDS, NEEDED, OWN, Kind, chosen
from minidnn.bench.measure import Earlier, Effort, Step
from minidnn.bench.networks import Case, Prepared
from minidnn.bench.results import Record
from minidnn.errors import UnsupportedError


@dataclass(frozen=True)
class Cpu:
    """Cases on the processor.

    Attributes:
        kinds: minidnn and the peers.
        asked: whether peers were asked for by name.
    """

    kinds: tuple[Kind, ...]
    asked: bool

    @property
    def notice(self) -> str:
        """What is said before anything is measured: that there is nothing to compare with."""
        if len(self.kinds) > 1:
            return ""
        missing = [name for name in NEEDED if find_spec(name) is None]
        why = f"{' and '.join(missing)} not installed" if missing else "no other engine installed"
        return (
            f"minidnn runs alone ({why}; {INSTALL} brings other engines), and is compared with its "
            "reference"
        )

    #: A case may be left between two rounds, and gone on with later.
    in_pieces = True

    def machine(self) -> str:
        """What results are filed under."""
        return describe_machine().line()

    def suited(self, case: Case) -> list[str]:
        """The names of the engines that can have the case: an ONNX file is no module of PyTorch.

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
        """Prepares files and minidnn's kernels.

        Raises:
            EngineError: an engine cannot have the network.
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
        """A record for each engine, see :func:`minidnn.bench.measure.measure`."""
        prepared = self._prepared(case, folder)
        return measure.measure(prepared, self._named(names), effort, step, earlier)

    def _prepared(self, case: Case, folder: Path) -> Prepared:
        if len(self.suited(case)) > 1:
            return (files.prepare_file if case.file else networks.prepare)(case, folder)
        return (files.prepare_file_alone if case.file else networks.prepare_alone)(case, folder)

    def _named(self, names: Sequence[str]) -> list[Kind]:
        return [kind for kind in self.kinds if kind.name in names]


def cpu_bench(against: Sequence[str] | None, argument: str) -> Cpu:
    """Cases with the peers of these names; without names, all that are installed.

    Raises:
        UnsupportedError: a name is unknown, or what an engine needs is not installed.
    """
    return Cpu((KINDS[OWN], *chosen(against, argument)), against is not None)
