"""One record per operator case, which every backend's tests are driven by.

``CASES`` has all of them; ``check(case, dtype, run)`` runs one.  A new operator gets its record
in the file named after its family.
"""

from tests.cases import (
    activations,
    arithmetic,
    attention,
    contraction,
    gradients,
    indexing,
    mixed,
    movement,
    normalization,
    pooling,
    random,
    ranks,
    reduction,
)
from tests.cases.check import Run, assert_close, check, reference
from tests.cases.record import Case, like_torch

FAMILIES = (
    *(activations, arithmetic, mixed, contraction, movement, indexing),
    *(normalization, pooling, ranks, reduction),
)
CASES: tuple[Case, ...] = tuple(case for family in FAMILIES for case in family.CASES)
#: Of operators that not every device computes, or files of ONNX have not; ``CASES`` are everyone's.
REFERENCE_CASES: tuple[Case, ...] = (
    *(*attention.CASES, *gradients.CASES, *random.CASES, *indexing.SUMS),
)

__all__ = [
    "CASES",
    "REFERENCE_CASES",
    "Case",
    "Run",
    "assert_close",
    "check",
    "like_torch",
    "reference",
]
