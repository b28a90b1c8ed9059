"""Linear layers whose sums are computed in parts: both kernels in the emulator, and compiled."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from minidnn.backends.cuda.contraction.algorithms import algorithms_for
from minidnn.backends.cuda.contraction.problem import ContractionProblem, EpilogueStep, spec_of
from minidnn.backends.cuda.functions import compile_kernels
from minidnn.backends.cuda.pointwise import CHAIN, Argument, PointStep
from minidnn.backends.cuda.tensor import Tensor
from minidnn.cudnn.graph.spec import TensorSpec
from minidnn.graph.expression import argument, linearize
from minidnn.graph.operators import ReLU
from tests.cuda.cards import A100, H200
from tests.sampling import every

from .contractions import ROWS
from .emulator.run import Emulated, guarded

RANDOM = np.random.default_rng(0)
BIAS = PointStep(linearize(argument(0) + argument(1)), (CHAIN, Argument("vector", 0)))
ADD = PointStep(linearize(argument(0) + argument(1)), (CHAIN, Argument("tensor", 1)))
RELU = PointStep(linearize(ReLU().expression()), (CHAIN,))


def row_tensor(features: int, step: int | None = None) -> Tensor:
    step = step or features
    return Tensor("float32", features, 1, 1, step, 1, step, step)


def problem_of(
    batch: int, filters: int, inputs: int, step: int | None = None, tf32: bool = False
) -> ContractionProblem:
    return ContractionProblem(
        x=row_tensor(inputs, step),
        w=TensorSpec((filters, inputs, 1, 1), (inputs, 1, inputs, inputs), "float32"),
        y=row_tensor(filters),
        batch=batch,
        padding=((0, 0), (0, 0)),
        stride=(1, 1),
        dilation=(1, 1),
        groups=1,
        stages=(EpilogueStep("bias", BIAS), EpilogueStep("add", ADD), EpilogueStep("relu", RELU)),
        others=(row_tensor(filters),),
        vectors=("float32",),
        planar=False,
        tf32=tf32,
    )


@pytest.mark.race
@pytest.mark.parametrize(
    ("batch", "filters", "inputs", "step", "parts"),
    [
        (1, 21, 260, None, 1),
        (3, 16, 516, 520, 3),
        (5, 130, 68, None, 2),
        (33, 131, 36, 40, 1),
        (65, 129, 100, None, 4),
        (130, 132, 52, None, 3),
    ],
)
@pytest.mark.parametrize("backwards", [False, True])
def test_results_are_those_of_the_product(
    batch: int,
    filters: int,
    inputs: int,
    step: int | None,
    parts: int,
    backwards: bool,
    tmp_path: Path,
) -> None:
    problem = problem_of(batch, filters, inputs, step)
    product, total = ROWS.launches(problem, parts, H200)
    emulated = Emulated([product.source, total.source], tmp_path)
    _, x = guarded(batch * problem.x.image, np.dtype("f"))
    x = x.reshape(batch, -1)
    x[:, :inputs] = RANDOM.standard_normal((batch, inputs))
    w = RANDOM.standard_normal((filters, inputs)).astype("f")
    bias = RANDOM.standard_normal(filters).astype("f")
    other = RANDOM.standard_normal((batch, filters)).astype("f")
    whole, room = guarded(ROWS.workspace(problem, parts, H200) // 4, np.dtype("f"))
    emulated.launch(product, [x, w, room], backwards)
    assert np.isfinite(room).all() and np.isnan(whole).sum() == whole.size - room.size
    y = np.full((batch, filters), np.nan, "f")
    emulated.launch(total, [*room.reshape(parts, -1), other, bias, y], backwards)
    right = np.maximum(x[:, :inputs].astype("d") @ w.T.astype("d") + bias + other, 0)
    np.testing.assert_allclose(y, right, atol=2e-6 * np.sqrt(inputs) * 8)


@pytest.mark.parametrize("batch", every(4, [1, 4, 32, 64, 128]))
def test_kernels_keep_to_their_budget(batch: int) -> None:
    problem = problem_of(batch, 4096, 9216)
    for parts in ROWS.choices(problem, H200):
        launches = ROWS.launches(problem, parts, H200)
        for machine in (A100, H200):
            kernels = compile_kernels([launch.source for launch in launches], machine.arch)
            for launch, kernel in zip(launches, kernels, strict=True):
                taken, threads = kernel.resources, launch.block[0]
                assert taken.spill_bytes == taken.stack_bytes == 0
                assert 2 * taken.registers * threads <= 65536
                assert 2 * launch.shared_bytes <= machine.shared_bytes


@pytest.mark.parametrize(
    ("batch", "filters", "inputs", "parts"),
    [(128, 4096, 9216, [8, 4, 16]), (128, 1000, 512, [4]), (1, 4096, 25088, [2, 1, 4])],
)
def test_parts_give_all_multiprocessors_work(
    batch: int, filters: int, inputs: int, parts: list[int]
) -> None:
    assert ROWS.choices(problem_of(batch, filters, inputs), H200) == parts


def test_only_exact_linear_layers_have_this_form() -> None:
    exact = problem_of(8, 16, 64)
    assert algorithms_for(exact, H200)[0].core == ROWS.name
    assert spec_of(exact.x, exact.batch).shape == (8, 64, 1, 1)
    for other in (
        problem_of(8, 16, 64, tf32=True),
        problem_of(8, 16, 66),
        problem_of(8, 16, 64, 65),
        problem_of(1000, 16, 64),
    ):
        assert ROWS.name not in [algorithm.core for algorithm in algorithms_for(other, H200)]
