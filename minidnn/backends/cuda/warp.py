"""Where threads of a warp may be apart: see :mod:`.prelude`, *Warps*."""

from __future__ import annotations

from collections.abc import Sequence

from ...graph.expression import Instruction
from ..codegen.functions import BOUNDS

_CALLED = frozenset(("div", "sqrt", *BOUNDS))
"""Operations that call a function for some operands, a division for infinite ones for example."""


def may_part(code: Sequence[Instruction]) -> bool:
    """Whether threads of a warp may be apart behind it."""
    return any(line.op in _CALLED for line in code)
