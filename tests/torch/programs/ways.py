"""The ways in which a program is run, and how much of it minidnn then runs itself.

Only what minidnn offers to everybody is used, so that this holds whatever is inside: the functions
``optimize``, ``backend`` and ``explain``, and the lines of an explanation that give counts.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Sequence
from typing import Any

import torch

import minidnn as md

EAGER, OPTIMIZE, COMPILE, AOT_EAGER = "eager", "optimize", "compile", "aot_eager"

#: "12 of 14 operations taken", of each program; a piece of which nothing was taken has no counts.
_COUNTS = re.compile(r"(\d+) of (\d+) operations taken")
_LEFT_WHOLE = re.compile(r"^left to PyTorch: ", re.MULTILINE)


def compiled(way: str, module: Any, device: str, options: dict[str, Any]) -> Any:
    """The module as this way runs it."""
    if way == EAGER:
        return module
    if way == AOT_EAGER:
        return torch.compile(module, backend="aot_eager")
    if way == OPTIMIZE:
        return md.optimize(module, device=device, **options)
    from minidnn.acceleration import dynamo

    return torch.compile(module, backend=dynamo.backend, options={"device": device, **options})


def explanation(way: str, modules: Sequence[Any]) -> str:
    """What minidnn says of the modules that a program has compiled."""
    if way == OPTIMIZE:
        return "\n\n".join(module.explain() for module in modules)
    if way == COMPILE:
        from minidnn.acceleration import dynamo

        return dynamo.explain()
    return ""


def share(text: str) -> float:
    """The part of operations that minidnn runs, by its own explanation."""
    counts = [(int(taken), int(count)) for taken, count in _COUNTS.findall(text)]
    taken = sum(each for each, _ in counts)
    count = sum(each for _, each in counts) + len(_LEFT_WHOLE.findall(text))
    return taken / count if count else 0.0


def forget() -> str:
    """PyTorch forgets what it has compiled, as at the start of a process.

    Returns what is explained of pieces that are garbage and not yet collected, which goes before
    what is explained of later ones.
    """
    from minidnn.acceleration import dynamo

    torch._dynamo.reset()
    gc.collect(1)
    return dynamo.explain()
