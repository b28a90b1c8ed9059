"""Element-wise operators, of one operand and of several."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.onnx.random_models import Drawer, RandomModel

from .registry import ALL, FLOATS, NUMBERS, registrar

DRAWERS: list[Drawer] = []
_drawer = registrar(DRAWERS)

_PLAIN = (
    *("Abs", "Erf", "Exp", "HardSwish", "Identity", "Mish", "Neg", "Relu", "Sigmoid", "Softplus"),
    *("Softsign", "Tanh", "Celu", "Elu", "Gelu", "HardSigmoid", "LeakyRelu", "Selu", "Swish"),
)
_EXACT = ("Abs", "Identity", "Neg", "Relu", "Sign", "Ceil", "Floor", "Round")


@_drawer
@_drawer
@_drawer
def plain(m: RandomModel) -> None:
    kind = m.draw.choice(_PLAIN)
    whole = kind in ("Abs", "Neg", "Identity")
    x = m.value(dtypes=NUMBERS if whole else FLOATS)
    ranges: dict[str, dict[str, Any]] = {
        "Celu": {"alpha": 0.75},
        "Elu": {"alpha": 1.5},
        "Gelu": {"approximate": m.draw.choice(["none", "tanh"])},
        "HardSigmoid": {"alpha": m.draw.choice([0.3, 1 / 6]), "beta": 0.5},
        "LeakyRelu": {"alpha": 0.25},
        "Selu": {"alpha": 1.5, "gamma": 0.5},
        "Swish": {"alpha": 0.5},
    }
    m.add(kind, [x], exact=kind in _EXACT, **m.maybe(ranges.get(kind, {})))


@_drawer
def jumping(m: RandomModel) -> None:
    """Functions that jump, of values that are exact."""
    kind = m.draw.choice(["Sign", "Ceil", "Floor", "Round", "Shrink", "ThresholdedRelu"])
    x = m.value(exact=True)
    attributes: dict[str, Any] = {}
    if kind == "Shrink":
        attributes = m.maybe({"lambd": 0.75, "bias": 0.25})
    elif kind == "ThresholdedRelu":
        attributes = m.maybe({"alpha": 0.5})
    m.add(kind, [x], exact=True, **attributes)


@_drawer
def positive(m: RandomModel) -> None:
    """Roots and the like, of positive numbers."""
    x = m.step("Abs", m.value())
    above = m.step("Add", x, m.constant(np.float32(0.5)))
    if above:
        m.add(m.draw.choice(["Sqrt", "Log", "Reciprocal", "ReduceLogSum"]), [above])


@_drawer
def circular(m: RandomModel) -> None:
    """Circular and hyperbolic functions and their inverses, where none of them is steep."""
    x = m.value()
    kind = m.draw.choice(["Asinh", "Atan", "Acosh", "bounded", "bounded", "bounded"])
    if kind in ("Asinh", "Acosh") and m.opset < 9:
        return
    found: str | None = x
    if kind == "Acosh":
        found = m.step("Add", m.step("Abs", x), m.constant(np.float32(1.5)))
    elif kind == "bounded":
        kinds = ["Acos", "Asin", "Cos", "Sin", "Tan", "Atanh", "Cosh", "Sinh"]
        kind = m.draw.choice(kinds[: 8 if m.opset >= 9 else 5])
        within = m.add("Tanh", [x])
        scaled = m.add("Mul", [within[0], m.constant(np.float32(0.75))]) if within else ()
        found = scaled[0] if scaled else None
    if found:
        m.add(kind, [found])


@_drawer
def clip(m: RandomModel) -> None:
    x = m.value(dtypes=FLOATS if m.opset < 12 else NUMBERS)
    low, high = m.draw.choice([(-1, 1), (0, 6), (0, 2), (1, -1)])
    if m.opset < 11:
        m.add("Clip", [x], exact=True, **m.maybe({"min": float(low), "max": float(high)}))
        return
    dtype = str(m.arrays[x].dtype)
    operands = [x]
    if m.chance(0.8):
        operands.append(m.constant(low, dtype) if m.chance(0.7) else "")
    if len(operands) == 2 and m.chance(0.7):
        operands.append(m.constant(high, dtype))
    m.add("Clip", operands, exact=True)


@_drawer
def dropout(m: RandomModel) -> None:
    x = m.value()
    operands = [x]
    attributes = m.maybe({"ratio": 0.25}) if m.opset < 12 else m.maybe({"seed": 1})
    if m.opset >= 12 and m.chance(0.5):
        operands.append(m.constant(0.25, "float32"))
        if m.chance(0.5):
            operands.append(m.constant(False, "bool"))
    # Before opset 12 it is not said what the mask is at inference.
    m.add("Dropout", operands, 1 + (m.opset >= 12 and m.chance(0.3)), exact=True, **attributes)


@_drawer
def binary(m: RandomModel) -> None:
    kind = m.draw.choice(["Add", "Sub", "Mul", "Max", "Min", "Sum", "Mean"])
    numbers = FLOATS if kind in ("Sum", "Mean") or m.opset < 12 else NUMBERS
    x = m.value(dtypes=numbers)
    operands = [x, m.partner(x)]
    m.draw.shuffle(operands)
    if kind in ("Max", "Min", "Sum", "Mean"):
        if m.chance(0.4):
            operands.append(m.partner(x))
        if m.chance(0.1):
            operands = operands[:1]
    m.add(kind, operands, exact=kind in ("Add", "Sub", "Mul", "Max", "Min"))


@_drawer
def quotient(m: RandomModel) -> None:
    kind = m.draw.choice(["Div", "Mod", "Pow", "PRelu"])
    if kind == "PRelu":
        x = m.value((1, 2, 3, 4))
        shape = m.arrays[x].shape[m.draw.randint(0, 1) :]
        m.add(kind, [x, m.weight([n if m.chance(0.7) else 1 for n in shape])])
        return
    x = m.value(dtypes=FLOATS if kind == "Pow" else NUMBERS, exact=kind == "Mod")
    dtype = str(m.arrays[x].dtype)
    if kind == "Pow":
        power = m.draw.choice([2.0, 3.0, 1.0, 0.0, 2])
        if isinstance(power, int) and m.opset < 12:
            power = 2.0
        m.add(kind, [x, m.constant(power, "int64" if isinstance(power, int) else "float32")])
        return
    divisor = m.constant(m.draw.choice([2, 3, -3, 5]), dtype)
    if m.chance(0.5):  # of several numbers
        many = m.numbers(m.arrays[x].shape[-1:], dtype)
        divisor = m.constant(np.where(many == 0, 1, many), dtype)
    fmod = dtype == "float32" or m.chance(0.5)
    m.add(kind, [x, divisor], exact=True, **({"fmod": int(fmod)} if kind == "Mod" else {}))


@_drawer
def comparison(m: RandomModel) -> None:
    kind = m.draw.choice(["Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal"])
    older = kind in ("Less", "Greater") and m.opset < 9
    x = m.value(dtypes=FLOATS if older else NUMBERS, exact=True)
    other = m.partner(x)
    if other in m.exact:
        m.add(kind, [x, other], exact=True)


@_drawer
def logic(m: RandomModel) -> None:
    x = m.value(dtypes=("bool",), exact=True)
    if m.chance(0.2):
        m.add("Not", [x], exact=True)
        return
    m.add(m.draw.choice(["And", "Or", "Xor", "Equal"]), [x, m.partner(x)], exact=True)


@_drawer
def where(m: RandomModel) -> None:
    x = m.value(dtypes=NUMBERS)
    shape = [n if m.chance(0.7) else 1 for n in m.arrays[x].shape]
    condition = m.constant(m.numbers(shape, "bool"))
    if m.chance(0.6):
        condition = m.input(shape, "bool")
    m.add("Where", [condition, x, m.partner(x)], exact=True)


@_drawer
def cast(m: RandomModel) -> None:
    x = m.value(dtypes=ALL, exact=True)
    if m.opset >= 15 and m.chance(0.3):
        like = m.constant(m.numbers((1,), m.draw.choice(ALL)))
        m.add("CastLike", [x, like], exact=True)
        return
    m.add("Cast", [x], exact=True, to=m.draw.choice([1, 6, 7, 9]))


@_drawer
def tests_of_numbers(m: RandomModel) -> None:
    kind = m.draw.choice(["IsNaN", "IsInf"])
    attributes = m.maybe({"detect_positive": 0, "detect_negative": 0})
    m.add(kind, [m.value()], exact=True, **(attributes if kind == "IsInf" else {}))
