"""What was measured to be the fastest, remembered in the cache folder for each machine."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from ....cache import CacheStore, digest
from ..compilers.toolchain import ispc_banners
from ..contraction import Choice, Question
from ..contraction.algorithms import usable_algorithms
from ..machine import describe_machine

log = logging.getLogger("minidnn.cpu")

VERSION = 1
CACHE_BYTES = 32 << 20


class Choices:
    """The choices of this machine.

    An entry is named by the question, the processor with its caches and cores, the compiler, and
    the text of the modules that make kernels of contractions: when one of these changes, choices
    are measured again.

    Args:
        threads: of the whole network; a question's are those that compute it together.
        near: whether the network's weights and values stay in the last cache from run to run.
            It changes what is fastest, so it is a part of an entry's name as well.
    """

    def __init__(self, threads: int, near: bool) -> None:
        self._store = CacheStore("cpu_choices", ".json", CACHE_BYTES)
        machine = describe_machine()
        self._of = (VERSION, threads, near, machine)
        self._banners = ispc_banners()

    def read(self, question: Question, tune: str) -> Choice | None:
        """What was chosen by ``tune``, or better; None if nothing is known."""
        for how in ("exhaustive",) if tune == "exhaustive" else ("exhaustive", "quick"):
            for banner in self._banners:
                data = self._store.read(self._key(question, how, banner))
                if data is None:
                    continue
                found = _decode(data, question)
                if found is not None:
                    return found
                log.warning("a remembered choice of kernels is of no use; it is measured again")
        return None

    def write(
        self, question: Question, tune: str, choice: Choice, measured: Mapping[str, Any]
    ) -> None:
        """Remembers a choice; ``measured`` is for people who look into the cache."""
        problem = question.problem
        shape = f"{problem.inputs}>{problem.outputs} {problem.kernel} @{problem.out}"
        entry = {
            "problem": f"{shape}, batch {problem.batch * question.images}",
            "algorithm": choice.algorithm.name,
            "scheme": choice.algorithm.describe(choice.scheme),
            **measured,
        }
        text = json.dumps(entry, indent=1).encode()
        self._store.put(self._key(question, tune, self._banners[0]), text, label="contraction")

    def _key(self, question: Question, tune: str, banner: str) -> str:
        return digest("cpu contraction", (*self._of, banner, _kernels()), tune, question)


def _decode(data: bytes, question: Question) -> Choice | None:
    """The choice that an entry names, if it is one that may be made."""
    try:
        entry = json.loads(data)
        name, described = entry["algorithm"], entry["scheme"]
    except (ValueError, KeyError, TypeError):
        return None
    problem, isa = question.problem, question.isa
    for algorithm in usable_algorithms(problem, question.has_prologue, isa, question.accuracy):
        if algorithm.name == name:
            schemes = algorithm.schemes(problem, question.has_prologue, isa, question.threads)
            for scheme in schemes:
                if algorithm.describe(scheme) == described:
                    return Choice(algorithm, scheme)
    return None


@cache
def _kernels() -> str:
    """A digest of the modules that make the kernels of contractions."""
    folder = Path(__file__).resolve().parent.parent / "contraction"
    parts = [(str(p.relative_to(folder)), p.read_bytes()) for p in sorted(folder.rglob("*.py"))]
    return digest(*((name, hashlib.sha256(data).hexdigest()) for name, data in parts))
