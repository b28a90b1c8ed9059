"""Every ATen operation that is taken, at its kinks, zeros of either sign, the smallest and largest
numbers, infinities, NaN, ties, rows of zeros and of equal numbers: values and gradients beside
PyTorch's."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch

from minidnn.frontends.torch.aten.call import known, operator_named
from tests.devices import unavailable
from tests.torch.one_call import OneCall
from tests.torch.special_calls import calls

#: Which elements of an operand's gradient, or of results, are not compared.
Where = Callable[[OneCall, np.ndarray], np.ndarray]


def _rows_with(found: Callable[[np.ndarray], np.ndarray]) -> Where:
    """All of a row (of all elements, if there is one axis) that has such an element."""

    def where(call: OneCall, shape: np.ndarray) -> np.ndarray:
        x = call.tensors[0].numpy()
        some = np.asarray(found(x).any(axis=-1, keepdims=True))
        if shape.shape == x.shape:
            return np.asarray(np.broadcast_to(some, x.shape))
        return some.reshape(shape.shape) if some.size == shape.size else np.ones_like(shape, bool)

    return where


def _elements_with(found: Callable[..., np.ndarray]) -> Where:
    def where(call: OneCall, shape: np.ndarray) -> np.ndarray:
        floats = [t.numpy() for t in call.tensors if t.is_floating_point()]
        return np.asarray(np.broadcast_to(found(*floats), shape.shape))

    return where


def _is_tiny(x: np.ndarray) -> np.ndarray:
    return (x != 0) & (np.abs(x) < np.finfo(x.dtype).tiny)


def _not_normal(x: np.ndarray) -> np.ndarray:
    return ~np.isfinite(x) | _is_tiny(x)


_INFINITE = "PyTorch gives NaN, or infinity, to rows that have infinities or NaN in its own way"

#: What docs/explanation/numerics-and-determinism.md lists: where gradients are not PyTorch's.
GRADIENTS: dict[str, Where] = {
    # NaN among elements: which gets the gradient of the extreme, which is NaN.
    **dict.fromkeys(("max.default", "min.default"), _rows_with(np.isnan)),
    # By infinity divided by itself in PyTorch; a product of the others has no such quotient.
    "prod": _rows_with(lambda x: ~(np.abs(x) < 1e18)),
    **dict.fromkeys(
        ("linalg_norm", "linalg_vector_norm", "norm", "var", "std", "var_mean", "std_mean"),
        _rows_with(_not_normal),
    ),
    # What is larger than 1e4 hides the logarithm of how many are alike.
    "logsumexp": _rows_with(lambda x: ~(np.abs(x) < 1e4)),
    # The gradient of a bound that does not bound, as the other one is lower or the same.
    "clamp.Tensor": _elements_with(
        lambda x, low, high=None: np.isnan(low) if high is None else (low >= high) | np.isnan(low)
    ),
    # The inverse root of -0 is -inf here as there; its slope there is that of a power.
    "pow": _elements_with(lambda x, *_: (x == 0) & np.signbit(x) | (x == -np.inf)),
    # x + 3 is rounded to the kink.
    "hardswish": _elements_with(lambda x: (np.abs(x) != 3) & np.isclose(np.abs(x), 3)),
    "hardsigmoid": _elements_with(
        lambda x: (np.abs(x) != 3) & np.isclose(np.abs(x), 3) | np.isnan(x)
    ),
}
VALUES: dict[str, Where] = {
    # The mean of what has infinities, which PyTorch makes NaN by Welford's sums.
    **dict.fromkeys(("var_mean", "std_mean"), _rows_with(np.isinf)),
}
#: Resized images have weights in float32.
LOOSE = ("upsample", "_upsample", "grid_sampler", "hardsigmoid", "celu", "selu")


def excused(table: dict[str, Where], call: OneCall, array: np.ndarray) -> np.ndarray:
    where = table.get(call.name, table.get(call.name.split(".")[0]))
    return np.zeros(array.shape, bool) if where is None else where(call, array)


def differ(found: np.ndarray, wanted: np.ndarray, loose: bool) -> np.ndarray:
    """Where numbers are of other kinds (NaN, infinities) or further apart than rounding makes
    them, by themselves or beside the largest of their row."""
    if wanted.dtype.kind != "f":
        return np.asarray(found != wanted)
    info = np.finfo(wanted.dtype)
    with np.errstate(all="ignore"):
        other = (np.isnan(found) != np.isnan(wanted)) | (np.isinf(found) != np.isinf(wanted))
        other |= np.isinf(wanted) & (np.sign(found) != np.sign(wanted))
        finite = np.isfinite(found) & np.isfinite(wanted)
        size = np.where(finite, np.maximum(np.abs(found), np.abs(wanted)), 0.0)
        largest = np.max(np.minimum(size, 1e30), axis=-1, keepdims=True) if size.ndim else size
        relative = 2e-5 if loose else 64 * info.eps
        near = relative * np.maximum(size, largest if loose else 0.0)
        near += 32 * info.eps * np.maximum(largest, 1.0) + 1e3 * info.tiny
        return np.asarray(other | (finite & ~(np.abs(found - wanted) <= near)))


def check(call: OneCall, device: str, dtype: str) -> list[str]:
    """What is not as in PyTorch."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # PyTorch's of variances of one element
        wanted = [call.by_torch(), call.by_torch(apart=True)]
        found = call.by_minidnn(device, dtype)
    loose = call.name.startswith(LOOSE)
    problems = []
    for what, table, place in (("value", VALUES, 0), ("gradient", GRADIENTS, 1)):
        either = [each[place] for each in wanted]
        for i, own in enumerate(found[place]):
            expected = [each[i] for each in either]
            if expected[0] is None or (own is None and place == 0):
                continue
            own = np.zeros_like(expected[0]) if own is None else own
            assert own.shape == expected[0].shape, (call.name, what, i)
            wrong = np.all([differ(own, each, loose) for each in expected if each is not None], 0)
            wrong &= ~excused(table, call, own)
            if wrong.any():
                problems.append(_described(call, what, i, wrong, own, expected[0]))
    return problems


def _described(
    call: OneCall, what: str, place: int, wrong: np.ndarray, own: np.ndarray, wanted: np.ndarray
) -> str:
    given = {
        name: each
        for name, each in call.arguments.items()
        if not isinstance(each, torch.Tensor) and not isinstance(each, list)
    }
    examples = []
    for index in map(tuple, np.argwhere(wrong)[:6].tolist()):
        operands = [
            str(t.numpy()[index if t.shape == wrong.shape else index[:1]])
            for t in call.tensors
            if t.shape == wrong.shape or (t.dim() == 2 and t.shape[0] == (wrong.shape or (0,))[0])
        ]
        examples.append(f"at {index} of {', '.join(operands)}: {own[index]}, not {wanted[index]}")
    count = f"{int(wrong.sum())} of {wrong.size}"
    return f"{call.name}{given} {what} {place}, {count}: " + "; ".join(examples)


#: These are compiled for the CPU in each run of the tests, the others in a full one.
FEW = ("clamp.Tensor", "log_sigmoid.default", "max.dim", "linalg_vector_norm.default")
#: No gradient flows through the first, and PyTorch sees to that; in training the second is left;
#: the third draws.
OTHER = ("detach.default", "embedding.default", "bernoulli.p")
NAMES = [name for name in known() if name not in OTHER]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.full)])
@pytest.mark.parametrize("name", NAMES)
def test_operation(name: str, dtype: str) -> None:
    problems = []
    for call in calls(name, getattr(torch, dtype)):
        problems += check(call, "reference", dtype)
    assert not problems, "\n".join(problems)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "name", [name if name in FEW else pytest.param(name, marks=pytest.mark.full) for name in NAMES]
)
def test_operation_on_the_cpu(name: str) -> None:
    if unavailable("cpu") is not None:
        pytest.skip("the CPU engine cannot be used here")
    problems = []
    for call in list(calls(name, torch.float32))[: None if name not in FEW else 3]:
        problems += check(call, "cpu", "float32")
    assert not problems, "\n".join(problems)


def test_an_operation_is_found_by_its_name() -> None:
    assert all(operator_named(name) is entry for name, entry in known().items())
    assert list(known()) == sorted(known()) and operator_named("none.such") is None
