"""What a format of files has to say about itself to be tested with damage."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import minidnn as md
from minidnn.graph.ir import Graph
from minidnn.graph.totals import totals

MOST_OPERATIONS = 50_000_000
"""Of a graph that is run; what a damaged one asks for may take days, and rightly so."""
MOST_MEMORY = 64 << 20


class Format(ABC):
    """Files that minidnn reads.

    Attributes:
        name: of the format, in commands.
        accepted: the least and the most share of mutants that are read without an error: damage is
            neither harmless nor always fatal.
        seed: of the mutant that is looked at.
    """

    name: str
    accepted: tuple[float, float] = (0.01, 0.9)
    seed: int

    @abstractmethod
    def make(self, folder: Path) -> None:
        """Writes whole files to a folder.  It runs once, where PyTorch and compilers are."""

    def open(self, folder: Path) -> None:
        """Reads all of them, and imports what reading mutants needs."""
        self.samples = {each.name: each.read_bytes() for each in sorted(folder.iterdir())}

    @abstractmethod
    def mutate(self, draw: random.Random) -> dict[str, bytes]:
        """Damaged files by name."""

    @abstractmethod
    def read(self, folder: Path) -> Any:
        """What the files in a folder hold; MiniDNNError if they are refused."""

    def run(self, found: Any) -> None:  # noqa: B027  not every format has something to run
        """Uses what was read; MiniDNNError if that is not possible."""

    def sample(self, draw: random.Random) -> tuple[str, bytes]:
        return draw.choice(list(self.samples.items()))


def run_graph(graph: Graph) -> None:
    """Compiles a graph for the reference and runs it, unless that takes long."""
    executable = md.compile(graph, device="reference", memory_limit=MOST_MEMORY)
    if totals(graph).operations <= MOST_OPERATIONS:
        executable(*executable.random_inputs())
