"""What is tolerated at each precision: relative to the same case in float32."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minidnn.graph.ir import Graph
from minidnn.graph.types import rounded_to
from tests.cases import Case

#: The distance from 1 to the next number.
EPSILON = {"float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
#: TF32 has as many bits as float16.
PRODUCTS = EPSILON | {"tf32": EPSILON["float16"]}


def contracts(graph: Graph) -> bool:
    return any(node.op.kind == "contraction" for node in graph.nodes)


def tolerance(precision: str, graph: Graph) -> float:
    """What stands for a float32's epsilon in a case's tolerance."""
    if precision == "tf32" and not contracts(graph):
        return EPSILON["float32"]
    return PRODUCTS[precision]


def storage(precision: str) -> str:
    return "float32" if precision == "tf32" else precision


def rounded(arrays: Sequence[np.ndarray], precision: str) -> tuple[np.ndarray, ...]:
    """Float32 arrays whose numbers are those of the precision's dtype."""
    return tuple(rounded_to(storage(precision), a).astype(np.float32) for a in arrays)


def expected_of(case: Case, inputs: Sequence[np.ndarray], precision: str) -> np.ndarray:
    """What the case's formula gives in float64 with parameters as they are kept."""
    own = {
        name: rounded_to(storage(precision), array.astype(np.float32)).astype(np.float64)
        for name, array in case.network().state_dict().items()
        if array.dtype.kind == "f"
    }
    with np.errstate(all="ignore"):
        return np.asarray(case.formula(*(x.astype(np.float64) for x in inputs), **own))


def assert_near(
    case: Case,
    precision: str,
    epsilon: float,
    inputs: tuple[np.ndarray, ...],
    actual: np.ndarray,
    what: str,
) -> None:
    """Within the case's tolerance in units of ``epsilon``, and not finite exactly where that is
    expected."""
    expected = expected_of(case, inputs, precision)
    assert actual.shape == expected.shape, f"{what}: {actual.shape}, not {expected.shape}"
    with np.errstate(all="ignore"):
        single = expected.astype(np.float32)
    kept = rounded_to(storage(precision), single).astype(np.float64)
    wide = actual.astype(np.float64)
    smallest = 6.1e-5 if storage(precision) == "float16" else 1.2e-38
    with np.errstate(all="ignore"):
        # One rounding of the result itself is always allowed below float32.
        ulps = case.ulps * case.magnitude(inputs, "float32") + np.abs(expected) * (
            precision != "float32"
        )
        allowed = epsilon * np.maximum(ulps, (ulps > 0) * 8 * smallest)
        finite = np.isfinite(kept)
        near = np.abs(wide - kept) <= allowed
        same = (wide == kept) | (np.isnan(wide) & np.isnan(kept))
        wrong = ~np.where(finite, near, same)
    if wrong.any():
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise AssertionError(
            f"{what}: {int(wrong.sum())} of {wrong.size} elements are wrong, the first at {at}: "
            f"{wide[at]!r}, expected {kept[at]!r}, tolerated error {allowed[at]:.3g}"
        )
