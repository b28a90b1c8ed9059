"""NaN and infinities at single places of images, weights and gradients reach what reads them, and
nothing beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

import minidnn as md
from minidnn.backends.cpu import isa as isas
from minidnn.backends.cuda.contraction.problem import IMAGE_GRADIENT
from minidnn.graph.ir import Constant, Graph, Node
from tests.cuda.gradients import Convolved, Gradient
from tests.cuda.special import FORWARD, check, drawn


@dataclass(frozen=True)
class OnCpu:
    """A convolution or a gradient, on an instruction set; a convolution's weights are constants."""

    gradient: Gradient
    isa: str

    def __call__(self, given: Sequence[np.ndarray]) -> np.ndarray:
        graph, operands = self.gradient.graph, given
        if self.gradient.of == FORWARD:
            x, weight = graph.inputs
            (node,) = graph.nodes
            constant = Constant(weight.type, "weight", given[1])
            node = Node(node.op, [x, constant], "y", "y")
            graph, operands = Graph([x], [node.output], [node], "y"), given[:1]
        options: dict[str, Any] = {"isa": self.isa, "threads": 1, "accuracy": "direct"}
        exe = md.compile(graph, device="cpu", precision=self.gradient.precision, **options)
        return np.array(exe(*operands), np.float32)

    def expected(self, given: Sequence[np.ndarray]) -> np.ndarray:
        """In float64."""
        return self.gradient.reference(given)

    def check(self, seed: int = 0) -> None:
        """Convolutions make an image's gradient, and multiply weights by the zeros around the
        incoming one: there all weights are finite."""
        check(self, self, seed, (0,) if self.gradient.of == IMAGE_GRADIENT else (0, 1))


CASES = {
    "33 channels": Gradient(FORWARD, Convolved((2, 33, 6, 7), 17, (3, 2), padding=(1, 1))),
    "image": Gradient(IMAGE_GRADIENT, Convolved((2, 5, 7, 6), 20, (3, 3), padding=(1, 1))),
}


@pytest.mark.together
@pytest.mark.parametrize("name", CASES)
def test_results_that_are_not_finite(name: str, isa: isas.Isa) -> None:
    OnCpu(CASES[name], isa.name).check()


def any_gradient(seed: int) -> Gradient:
    """In float32, or forwards in bfloat16."""
    gradient = drawn(seed)
    half = gradient.of == FORWARD and gradient.precision != "float32"
    return replace(gradient, precision="bfloat16" if half else "float32")


@pytest.mark.full
@pytest.mark.parametrize("seed", range(90))
def test_any_geometry(seed: int, isa: isas.Isa) -> None:
    gradient = any_gradient(seed)
    if gradient.precision == "bfloat16" and isas.why_no_bfloat16(isa) is not None:
        pytest.skip(f"no bfloat16 on {isa.name}")
    OnCpu(gradient, isa.name).check(seed)
