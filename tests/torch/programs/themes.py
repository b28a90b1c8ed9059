"""All files of programs: importing this fills ``harness.PROGRAMS``."""

from tests.torch.programs import (
    arguments,
    codebooks,
    evaluating,
    looking,
    precision,
    results,
    sizes,
    taping,
    writes,
)

__all__ = [
    "arguments",
    "codebooks",
    "evaluating",
    "looking",
    "precision",
    "results",
    "sizes",
    "taping",
    "writes",
]
