"""Gradients of every operator: by automatic differentiation in PyTorch, and by differences."""

from __future__ import annotations

import numpy as np
import pytest

from minidnn.gradients import rules  # noqa: F401 (it fills the table)
from minidnn.gradients.table import REASONS, RULES
from minidnn.graph import operators as ops
from minidnn.graph.attention_patterns import expand_attention
from minidnn.graph.operator import Operator
from tests.cases import CASES, REFERENCE_CASES, Case
from tests.cases.record import Arrays, Shape, one_thread
from tests.gradients.losses import differences, differentiable, gradients, opened, with_loss

#: Rules are alike for all sizes, and PyTorch's derivatives are the slower half of these tests.
MOST_ELEMENTS = 900

#: Of these numbers PyTorch's gradient is not asked for; NaN it sees differently in each function.
TORCH_DIFFERS = {
    "gelu-tanh": "it overflows at other numbers",
}


def small(case: Case) -> list[tuple[Shape, ...]]:
    """The last two of a case's sets of shapes that are small."""
    sizes = {shapes: sum(int(np.prod(shape)) for shape in shapes) for shapes in case.shapes}
    return [shapes for shapes, size in sizes.items() if size <= MOST_ELEMENTS][-2:]


SMALL = [case for case in (*CASES, *REFERENCE_CASES) if small(case)]


def by_torch(case: Case, inputs: Arrays, given: np.ndarray) -> dict[str, np.ndarray] | None:
    """PyTorch's gradients: of inputs by "0", "1", ..., of parameters by name; None if it has none,
    as it is NumPy that computes."""
    import torch

    tensors = [torch.from_numpy(array.copy()).requires_grad_() for array in inputs]
    made = case.torch()
    with one_thread():
        if isinstance(made, torch.nn.Module):
            state = case.network().state_dict()
            made.load_state_dict({name: torch.from_numpy(v) for name, v in state.items()})
            own = dict(made.double().eval().named_parameters())
            out = made(*tensors)
        else:
            arrays = case.parameters().items()
            own = {name: torch.from_numpy(v).requires_grad_() for name, v in arrays}
            try:
                out = made(*tensors, **own)
            except RuntimeError as error:
                assert "numpy()" in str(error)
                return None
        every = {**{str(i): tensor for i, tensor in enumerate(tensors)}, **own}
        values = list(every.values())
        found = torch.autograd.grad(out, values, torch.from_numpy(given), materialize_grads=True)
    return {name: each.numpy() for name, each in zip(every, found, strict=True)}


def check(case: Case, shapes: tuple[Shape, ...], special: bool) -> None:
    graph, constants = opened(case.graph(shapes))
    (output,) = graph.outputs
    graph, _ = expand_attention(with_loss(graph))  # of one gradient alone not all operands count
    inputs = case.inputs(shapes, "float64", special)
    random = np.random.default_rng(1)
    given = random.standard_normal(output.shape)
    of = differentiable(graph)
    if not of:
        return
    arrays = (*inputs, *constants, given)
    found = gradients(graph, of, arrays)
    for value, each in zip(of, found, strict=True):
        assert each.shape == value.shape
    at_ties = all(np.array_equal(array, np.rint(array)) for array in inputs)
    rounds = any(getattr(node.op, "dtype", None) == "float32" for node in graph.nodes)
    if not (special or at_ties or rounds):
        directions = [random.standard_normal(value.shape) for value in of]
        change = differences(graph, of, arrays, directions)
        products = [a * b for a, b in zip(found, directions, strict=True)]
        magnitude = sum(np.abs(product).sum() for product in products)
        assert abs(change - sum(p.sum() for p in products)) <= 2e-6 * magnitude + 1e-7, (
            "differences"
        )
    expected = by_torch(case, inputs, given)
    if expected is None or (special and case.name in TORCH_DIFFERS):
        return
    for value, actual in zip(of, found, strict=True):
        place = graph.inputs.index(value)
        name = str(place) if place < len(inputs) else value.name
        if name not in expected:
            continue  # what PyTorch has as a buffer
        # Of a NaN some functions pass the gradient on, and others give 0 or NaN.
        asked = ~np.isnan(arrays[place])
        np.testing.assert_allclose(
            actual[asked], expected[name][asked], rtol=1e-7, atol=1e-10, err_msg=f"{case} {name}"
        )


@pytest.mark.sampled(4)
@pytest.mark.parametrize("case", SMALL, ids=str)
def test_case(case: Case) -> None:
    for shapes in small(case):
        check(case, shapes, special=False)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", [case for case in SMALL if case.special], ids=str)
def test_extraordinary_numbers(case: Case) -> None:
    check(case, small(case)[-1], special=True)


def test_every_operator_has_a_rule_or_a_reason() -> None:
    every = [
        kind for kind in vars(ops).values() if isinstance(kind, type) and issubclass(kind, Operator)
    ]
    without = [
        kind.__name__
        for kind in every
        if not any(base in RULES or base in REASONS for base in kind.__mro__)
    ]
    assert len(every) > 40
    assert without == [], "enter a rule (minidnn/gradients/rules), or a reason in REASONS"
    assert not set(RULES) & set(REASONS)
