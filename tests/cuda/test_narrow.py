"""Functions of which results are rounded to two bytes: every number of float16 and bfloat16 against
float64.  With the plugin ``tests.cuda.on_gpu`` the same runs on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from minidnn.backends.codegen.code import Code
from minidnn.backends.codegen.kernel import KernelSource
from minidnn.backends.cuda.expressions import narrowed, print_as
from minidnn.backends.cuda.kernels import Launch
from minidnn.backends.cuda.prelude import TYPES
from minidnn.gradients.scalar import derivative
from minidnn.graph import expression as scalar
from minidnn.graph import scalar_functions as formulas
from minidnn.graph.expression import Expression, argument, constant, evaluate, linearize
from minidnn.graph.operators import activations
from minidnn.graph.types import HALF_DTYPES
from minidnn.runtime.arrays import from_bits
from tests.cuda.emulator.run import Emulated

THREADS = 256
FORMULAS: dict[str, Callable[[Expression], Expression]] = {
    "silu": activations.SiLU().formula,
    "sigmoid": activations.Sigmoid().formula,
    "tanh": activations.Tanh().formula,
    "gelu": activations.GELU().formula,
    "gelu_tanh": activations.GELU("tanh").formula,
    "hardswish": activations.Hardswish().formula,
    "hardsigmoid": activations.Hardsigmoid().formula,
    "elu": activations.ELU().formula,
    "mish": formulas.mish,
    "softplus": lambda x: formulas.scaled_softplus(x, 1.0, 20.0),
    "log_sigmoid": formulas.log_sigmoid,
    "exp": scalar.exp,
    "erf": scalar.erf,
    "inverse": lambda x: 1.0 / x,
    "share": lambda x: x / (1.0 + abs(x)),
    "third": lambda x: x / 3.0,
    "negative": lambda x: x / -1.7,
}


def cases() -> dict[str, Expression]:
    """Each formula, and its derivative."""
    found = {name: formula(argument(0)) for name, formula in FORMULAS.items()}
    for name, expression in tuple(found.items()):
        slope = derivative(expression, 0, constant(1.5))
        assert slope is not None
        found[f"{name} gradient"] = slope
    return found


def computed(
    expressions: Sequence[Expression], dtype: str, of: np.ndarray, folder: Path
) -> list[np.ndarray]:
    """What kernels make of numbers of a dtype, given as bits: as float32, before rounding."""
    code = Code()
    pointers = ", ".join(f"float *y{i}" for i in range(len(expressions)))
    with code.block(f'extern "C" __global__ void k(const {TYPES[dtype]} *p, {pointers})'):
        code.line(f"const int t = blockIdx.x * {THREADS} + threadIdx.x;")
        code.line("const float x = md_value(p[t]);")
        for i, expression in enumerate(expressions):
            result = print_as(code, dtype, linearize(expression), ["x"])
            code.line(f"y{i}[t] = {result};")
    source = KernelSource("k", str(code))
    results = [np.empty(of.size, np.float32) for _ in expressions]
    launch = Launch(source, (of.size // THREADS, 1, 1), (THREADS, 1, 1))
    Emulated([source], folder, busy=True).launch(launch, [of, *results])
    return results


@pytest.mark.parametrize("dtype", HALF_DTYPES)
def test_every_number(dtype: str, tmp_path: Path) -> None:
    """Errors are those of the same code in float32, and a small part of what rounding takes; what
    is not finite is where NumPy has it."""
    bits = np.arange(1 << 16, dtype=np.uint16)
    x = from_bits(bits.view(np.float16) if dtype == "float16" else bits, dtype)
    with np.errstate(invalid="ignore"):
        x = np.asarray(x, np.float32)
    digits = 11 if dtype == "float16" else 8
    expressions = cases()
    found = computed(list(expressions.values()), dtype, bits, tmp_path)
    for (name, expression), y in zip(expressions.items(), found, strict=True):
        with np.errstate(all="ignore"):
            wide = np.asarray(evaluate(expression, [x.astype(np.float64)]))
            single = np.asarray(evaluate(expression, [x]))
            rounding = np.maximum(np.abs(wide), 2.0**-126) * 2.0**-digits
            own = _of_neighbours(np.abs(single - wide))
            error = np.abs(y - wide)
            # A sigmoid's inverse is 0 where its divisor is above 2^126.
            lost = np.nan_to_num(np.abs(x) * 2.0**-124)
        np.testing.assert_array_equal(np.isnan(y), np.isnan(single), name)
        finite = np.isfinite(single) & np.isfinite(wide)
        infinite = np.isinf(single) & np.isinf(wide)
        np.testing.assert_array_equal(y[infinite], single[infinite], name)
        bad = finite & ~(error <= 4 * own + rounding / 64 + lost)
        at = np.flatnonzero(bad)[:5]
        assert not at.size, (name, x[at], y[at], single[at], wide[at])
        zero = finite & (x == 0) & (single == 0)
        np.testing.assert_array_equal(np.signbit(y[zero]), np.signbit(single[zero]), name)


def _of_neighbours(errors: np.ndarray) -> np.ndarray:
    """The largest error nearby: where terms cancel, one number may have none by luck."""
    known = np.where(np.isfinite(errors), errors, 0.0)
    return np.maximum.reduce([np.roll(known, shift) for shift in range(-8, 9)])


def test_a_sigmoid_takes_one_exponential_and_one_inverse() -> None:
    slope = derivative(activations.SiLU().formula(argument(0)), 0, argument(1))
    assert slope is not None
    ops = [line.op for line in narrowed(linearize(slope))]
    assert ops.count("flushed_exp") == 1 and not {"exp", "div", "narrow_div"} & set(ops)
    assert len(set(ops) & {"fma"}) == 1
    # The compiler makes one of equal inverses.
    assert ops.count("inverse") == 3


def test_float32_stays_what_it_is() -> None:
    code = Code()
    print_as(code, "float32", linearize(activations.SiLU().formula(argument(0))), ["x"])
    assert "md_exp(" in str(code) and " / " in str(code)


def test_what_others_read_stays_exact() -> None:
    """An exponential that is more than a sigmoid's keeps subnormal numbers; a product that two
    read is rounded for both."""
    x = argument(0)
    power = scalar.exp(x)
    ops = [line.op for line in narrowed(linearize(power / (1.0 + power)))]
    assert "narrow_exp" in ops and "flushed_exp" not in ops
    product = x * argument(1)
    ops = [line.op for line in narrowed(linearize((product + 1.0) * product / power))]
    assert ops.count("mul") == 2 and "fma" not in ops


def test_code_without_functions_and_quotients_keeps_its_bits() -> None:
    code = linearize(argument(0) * argument(1) + 1.0)
    assert narrowed(code) == code
