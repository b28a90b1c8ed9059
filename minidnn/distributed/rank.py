"""Which of several processes this one is, by the variables of whatever started it, and how ranks
make sure that they run the same programs.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from minidnn.errors import MiniDNNError


class DistributedError(MiniDNNError, RuntimeError):
    """Processes cannot train together: nobody said how many they are, or one of them is gone."""


#: Behind the port that a launcher names, since torchrun itself listens on that.
_BEHIND = 1
_PORT = 29400
_STARTERS = "torchrun, mpirun, srun (Slurm) and minidnn launch"


@dataclass(frozen=True)
class RankInfo:
    """A process among those that train together.

    Attributes:
        rank: from 0 to ``size`` - 1.
        local_rank: among those of its machine; its GPU's number.
        host, port: where rank 0 listens.
    """

    rank: int
    size: int
    local_rank: int
    host: str
    port: int


#: What each starter calls rank, size and local rank; the first that is there counts.
_NAMES = {
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    "Open MPI": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    "MPICH": ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    "Slurm": ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
}


def find_rank(environment: Mapping[str, str] = os.environ) -> RankInfo:
    """The place that a starter gave this process.

    DistributedError if there is none, or if its variables make no sense.
    """
    for starter, names in _NAMES.items():
        if names[0] in environment and names[1] in environment:
            rank, size, local = (_number(environment, name, starter) for name in names)
            if not 0 <= rank < size:
                raise DistributedError(
                    f"{names[0]}={rank} and {names[1]}={size}; valid are ranks from 0 to the size "
                    "less 1"
                )
            return RankInfo(rank, size, local, *_address(environment, starter, size))
    raise DistributedError(
        "distributed=True: no variable says which process this is and of how many; valid is to "
        f"start it by {_STARTERS}"
    )


def _number(environment: Mapping[str, str], name: str, starter: str) -> int:
    text = environment.get(name)
    if text is None or not re.fullmatch(r"\d{1,9}", text, re.ASCII):
        raise DistributedError(
            f"{name}={text!r}, as {starter} says; valid is a whole number from 0"
        )
    return int(text)


def _address(environment: Mapping[str, str], starter: str, size: int) -> tuple[str, int]:
    port = _PORT
    if "MASTER_PORT" in environment:
        port = _number(environment, "MASTER_PORT", starter) + _BEHIND
    elif "SLURM_JOB_ID" in environment:
        port += _number(environment, "SLURM_JOB_ID", starter) % 20_000  # jobs may share a machine
    if "MASTER_ADDR" in environment:
        return environment["MASTER_ADDR"], port
    if starter == "Slurm" and (nodes := environment.get("SLURM_STEP_NODELIST")):
        return _first_node(nodes), port
    local_sizes = ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "LOCAL_WORLD_SIZE")
    if any(environment.get(name) == str(size) for name in local_sizes):
        return "127.0.0.1", port
    raise DistributedError(
        f"MASTER_ADDR is not set, and {starter} does not say where rank 0 is; valid is its host's "
        "name, passed on to every process (mpirun -x MASTER_ADDR)"
    )


def _first_node(nodes: str) -> str:
    """``gpu[07-09,12],login`` -> ``gpu07``."""
    found = re.match(r"([^\[,]+)(?:\[(\d+)[^\]]*\])?", nodes)
    if found is None:
        raise DistributedError(f"SLURM_STEP_NODELIST={nodes!r}; valid is a list of hosts")
    return found[1] + (found[2] or "")


class ConsensusCheck:
    """Texts about which ranks were asked already."""

    place: RankInfo

    def __init__(self) -> None:
        self._texts: set[str] = set()

    def sum_of(self, numbers: Sequence[float]) -> list[float]:
        """See :class:`RankGroup`."""
        raise NotImplementedError

    def agree(self, text: str) -> None:
        """See :class:`RankGroup`."""
        if text in self._texts:
            return
        digest = hashlib.sha256(text.encode()).digest()
        parts = [int.from_bytes(digest[i : i + 3]) for i in range(0, 30, 3)]
        # A rank that says what is the mean of all may be wrong; then another one sees it.
        if self.sum_of(parts) != [self.place.size * part for part in parts]:
            raise DistributedError(
                f"rank {self.place.rank} trains by another program than the others; valid are the "
                "same network, shapes, options and version in all ranks. Its sums over ranks are\n"
                f"{text}"
            )
        self._texts.add(text)
