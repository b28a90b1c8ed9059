"""All files of programs: importing this fills ``harness.PROGRAMS``."""

from tests.torch.programs import (
    arguments,
    codebooks,
    evaluating,
    kinks,
    lifecycle,
    looking,
    precision,
    results,
    sizes,
    taping,
    transforms,
    untaped,
    writes,
)

__all__ = [
    "arguments",
    "codebooks",
    "evaluating",
    "kinks",
    "lifecycle",
    "looking",
    "precision",
    "results",
    "sizes",
    "taping",
    "transforms",
    "untaped",
    "writes",
]
