"""Looks for generated programs that differ from eager PyTorch, and prints the shortest.

python -m tests.torch.programs.search [--way optimize] [--examples 200] [--seed 0]
"""

from __future__ import annotations

import argparse
import logging
import re

from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import seed as fixed

from minidnn._torch_internals import VERSION
from tests.torch.programs.generated import Drawn, drawn, made, source
from tests.torch.programs.harness import faults, run
from tests.torch.programs.ways import EAGER, OPTIMIZE

#: What Dynamo takes for False before PyTorch 2.13, whatever the backend.
_ASKS = re.compile(r"no_grad\(\):\s+if \w+\.requires_grad")
#: Hooks on the argument, and writes to anything that is not the module's.
_HOOKS = re.compile(r"\bx\.register_hook")
_WRITES = re.compile(r"\b[xy]\d*(\[|\.)[^=\n]*(\w_\(|\] ?[-+*/]?= )")
PHASES = [Phase.explicit, Phase.reuse, Phase.generate]


class DiffersError(AssertionError):
    """A generated program differs from eager PyTorch's; the text of the program says which."""


def check(text: str, way: str, device: str = "reference") -> None:
    """Whether a program does through minidnn what it does in PyTorch.

    Programs that PyTorch refuses, for writes to what a gradient needs, are left out.  So are, with
    PyTorch before 2.13, those that ask for ``requires_grad`` where gradients are off, and always
    those that hook the argument and write to it or a view of it: Dynamo hooks it after the run, for
    every backend.
    """
    assume(VERSION >= (2, 13) or _ASKS.search(text) is None)
    assume(_HOOKS.search(text) is None or _WRITES.search(text) is None)
    program = made(text)
    expected = run(program, EAGER, device)
    assume(expected.error is None)
    found = faults(program, run(program, way, device), expected)
    if found:
        said = "\n".join(map(str, found[:4]))
        raise DiffersError(f"{way} differs from eager PyTorch in\n\n{text}\n{said}")


def search(way: str, examples: int, shrinks: bool, seed: int | None = None) -> None:
    """Looks for a program that differs among so many; DiffersError if there is one.

    shrinks: whether to look for the shortest, which takes longer than finding the first.
    """

    @settings(
        max_examples=examples,
        phases=[*PHASES, Phase.shrink] if shrinks else PHASES,
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
        database=None,
        deadline=None,
    )
    @given(drawn())
    def differs(found: Drawn) -> None:
        check(source(found), way)

    if seed is not None:
        differs = fixed(seed)(differs)
    differs()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--way", default=OPTIMIZE)
    parser.add_argument("--examples", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    logging.getLogger("torch").setLevel(logging.ERROR)
    try:
        search(given.way, given.examples, True, given.seed)
    except DiffersError as error:
        raise SystemExit(str(error)) from None
    print(f"{given.examples} programs are as in eager PyTorch")


if __name__ == "__main__":
    main()
