"""Convolutions on the GPU against float64: random ones, a thousand in each direction."""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from typing import Any, NamedTuple

import numpy as np
import pytest

from minidnn.cudnn import convolution, workspace
from minidnn.cudnn.enums import ConvolutionMode, MathType
from minidnn.cudnn.errors import CuDNNError, NoAlgorithmError

pytestmark = pytest.mark.gpu

CHUNKS, PER_CHUNK = 12, 130
FMA, DEFAULT = MathType.CUDNN_FMA_MATH, MathType.CUDNN_DEFAULT_MATH


def poison_workspace(cupy: Any, plan: convolution.ConvolutionPlan) -> None:
    """Fill with NaN what the plan is going to use."""
    memory = workspace.acquire(plan.choice.workspace)
    if memory is not None:
        memory.memset_async(0xFF, plan.choice.workspace)


def nan_like(cupy: Any, oracles: Any, shape: tuple[int, ...], like: Any, last: bool) -> Any:
    """An output that holds nothing but NaN."""
    return oracles.on_gpu(cupy, np.full(shape, np.nan), like.dtype.name, last, "")


def report(name: str, content: dict[str, Any]) -> None:
    """Keep figures where ``MINIDNN_TEST_REPORT`` says, one JSON line a call."""
    if os.environ.get("MINIDNN_TEST_REPORT"):
        with open(os.environ["MINIDNN_TEST_REPORT"], "a") as file:
            file.write(json.dumps({"test": name, **content}, default=str) + "\n")


@pytest.mark.parametrize("direction", ["forward", "backward_data", "backward_filter"])
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_random_convolutions(
    real_cupy: Any, oracles: Any, direction: str, chunk: int, tmp_path: Any, monkeypatch: Any
) -> None:
    monkeypatch.setenv("MINIDNN_CACHE", str(tmp_path))
    rng = np.random.default_rng([chunk, len(direction)])
    oracles.single_threaded()
    refused: list[str] = []
    unexpected: list[str] = []
    wrong: list[str] = []
    used: Counter[str] = Counter()
    worst, done = 0.0, 0
    for _ in range(PER_CHUNK):
        case = oracles.random_case(rng)
        options = {
            "algorithm": "find_ex" if rng.random() < 0.1 else "heuristic",
            "math": FMA if rng.random() < 0.5 else DEFAULT,
            "deterministic": bool(rng.random() < 0.2),
        }
        alpha, beta = (2.5, 0.75) if rng.random() < 0.2 else (1.0, 0.0)
        try:
            ratio, _, name = one_case(
                real_cupy, oracles, rng, case, direction, options, alpha, beta
            )
        except (CuDNNError, NoAlgorithmError) as error:
            refused.append(f"{case} {options}: {str(error).splitlines()[0]}")
            if not known_refusal(case, direction):
                unexpected.append(refused[-1])
            continue
        done += 1
        used[name] += 1
        worst = max(worst, ratio)
        if not ratio <= 1:
            wrong.append(f"{ratio:.3g} {name} {case} {options} {alpha} {beta}")
    figures = {"done": done, "worst": worst, "used": used, "refused": refused, "wrong": wrong}
    report(f"{direction}[{chunk}]", figures)
    assert not wrong, "\n".join(wrong)
    assert not unexpected, "\n".join(unexpected)
    assert done >= 0.6 * PER_CHUNK, "\n".join(refused)


def known_refusal(case: Any, direction: str) -> bool:
    """What cuDNN 9's fixed functions have no algorithm for (see docs/reference/cudnn.md)."""
    if case.channels_last and case.sliced:
        return True
    if case.channels_last and case.dtype == "float64":
        return direction != "forward" or len(case.extents) == 3
    return direction != "forward" and case.sliced == "space"


class Outcome(NamedTuple):
    """The largest error over its bound, the error's norm over the truth's, the algorithm."""

    ratio: float
    norm: float
    algorithm: str


def one_case(
    cupy: Any,
    oracles: Any,
    rng: np.random.Generator,
    case: Any,
    direction: Any,
    options: dict[str, Any],
    alpha: float,
    beta: float,
) -> Outcome:
    """Run one convolution and compare it with the truth."""
    x = oracles.rounded(rng, case.x_shape, case.dtype)
    w = oracles.rounded(rng, case.w_shape, case.dtype)
    y = oracles.convolve(case, x, w)
    dy = oracles.rounded(rng, y.shape, case.dtype)
    mode = (
        ConvolutionMode.CUDNN_CONVOLUTION
        if case.flipped
        else (ConvolutionMode.CUDNN_CROSS_CORRELATION)
    )
    given = dict(
        padding=case.padding, stride=case.stride, dilation=case.dilation, groups=case.groups,
        mode=mode, **options,
    )  # fmt: skip
    last = case.channels_last
    gx = oracles.on_gpu(cupy, x, case.dtype, last, case.sliced)
    gw = oracles.on_gpu(cupy, w, case.dtype, last, "")
    gdy = oracles.on_gpu(cupy, dy, case.dtype, last, case.sliced)
    if direction == "forward":
        truth, absolute = y, oracles.convolve(case, np.abs(x), np.abs(w))
    else:
        side = 0 if direction == "backward_data" else 1
        truth = oracles.gradients(case, x, w, dy)[side]
        absolute = oracles.gradients(case, np.abs(x), np.abs(w), np.abs(dy))[side]
    if beta:
        before = oracles.rounded(rng, truth.shape, case.dtype)
        out = oracles.on_gpu(cupy, before, case.dtype, last, "")
        truth = alpha * truth + beta * before
        absolute = alpha * absolute + beta * np.abs(before)
    else:
        out = nan_like(cupy, oracles, truth.shape, gx, last)
    arrays = {
        "forward": (gx, gw, out),
        "backward_data": (out, gw, gdy),
        "backward_filter": (gx, out, gdy),
    }[direction]
    plan = convolution.plan(direction, *arrays, **given)
    if beta == 0:
        out[...] = np.nan
    poison_workspace(cupy, plan)
    if direction == "forward":
        convolution.forward(gx, gw, out, alpha=alpha, beta=beta, **given)
    elif direction == "backward_data":
        convolution.backward_data(gw, gdy, out, alpha=alpha, beta=beta, **given)
    else:
        convolution.backward_filter(gx, gdy, out, alpha=alpha, beta=beta, **given)
    tf32 = options["math"] != FMA
    name = plan.choice.name
    found = oracles.host(out)
    norm = float(np.linalg.norm(found - truth) / max(float(np.linalg.norm(truth)), 1e-30))
    return Outcome(oracles.worst(found, truth, absolute, case.dtype, tf32, name), norm, name)


#: Bounds on the error's norm over the truth's: what TF32 has in float32 is 3e-4.  Winograd with
#: 5 x 5 windows is the one algorithm that is worse (7e-4), and is never chosen: see enums.py.
#: In float16 some algorithms add in the output's own type, which the bound of each element allows.
NORMS = {"float64": 1e-12, "float32": 5e-6, "float16": math.inf}
COARSE_NORM = 1.5e-3


@pytest.mark.parametrize("direction", ["forward", "backward_data", "backward_filter"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_every_algorithm(real_cupy: Any, oracles: Any, direction: str, dtype: str) -> None:
    """Each algorithm by hand, wherever cuDNN says that it can, under FMA math for float32."""
    from minidnn.cudnn.convolution.plan import FUNCTIONS
    from minidnn.cudnn.enums import is_coarse_winograd

    oracles.single_threaded()
    rng = np.random.default_rng(8)
    exact = FMA if dtype == "float32" else DEFAULT
    norms: dict[str, float] = {}
    bad: list[str] = []
    for algorithm in FUNCTIONS[direction].algorithm:
        for window, pad in ((3, 1), (5, 2), (1, 0)):
            for last in (False, True):
                case = oracles.Case(
                    3, 32, 32, (20, 18), (window,) * 2, (pad,) * 2, (1, 1), (1, 1), 1, dtype, last,
                    "", False,
                )  # fmt: skip
                options = {"algorithm": int(algorithm), "math": exact, "deterministic": False}
                try:
                    ratio, norm, name = one_case(
                        real_cupy, oracles, rng, case, direction, options, 1.0, 0.0
                    )
                except CuDNNError as error:
                    assert "NOT_SUPPORTED" in str(error), str(error)
                    continue
                assert name == algorithm.name
                coarse = dtype == "float32" and is_coarse_winograd(name, (window,))
                label = f"{name} {window}x{window} {'NHWC' if last else 'NCHW'}"
                norms[label] = norm
                if not norm <= (COARSE_NORM if coarse else NORMS[dtype]):
                    bad.append(f"{label}: norm {norm:.3g}")
                if not coarse and not ratio <= 1:
                    bad.append(f"{label}: {ratio:.3g} of its bound")
    report(f"{direction} by hand {dtype}", norms)
    assert len({label.split()[0] for label in norms}) >= 2, norms
    assert not bad, "\n".join(bad)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("with_z", [False, True])
@pytest.mark.parametrize("activation", ["RELU", "IDENTITY"])
def test_fused_bias_activation(
    real_cupy: Any, oracles: Any, dtype: str, channels_last: bool, with_z: bool, activation: str
) -> None:
    from minidnn.cudnn.enums import ActivationMode

    rng = np.random.default_rng(5)
    case = oracles.Case(
        2, 16, 32, (9, 11), (3, 3), (1, 1), (1, 1), (1, 1), 1, dtype, channels_last, "", False
    )
    x, w = (oracles.rounded(rng, shape, dtype) for shape in (case.x_shape, case.w_shape))
    bias = oracles.rounded(rng, (32,), dtype)
    truth = oracles.convolve(case, x, w) + bias[:, None, None]
    absolute = oracles.convolve(case, np.abs(x), np.abs(w)) + np.abs(bias)[:, None, None]
    z = oracles.rounded(rng, truth.shape, dtype)
    if with_z:
        truth, absolute = truth + z, absolute + np.abs(z)
    if activation == "RELU":
        truth = np.maximum(truth, 0)
    gx, gw, gz = (oracles.on_gpu(real_cupy, a, dtype, channels_last, "") for a in (x, w, z))
    gbias = real_cupy.asarray(bias.astype(dtype))
    y = nan_like(real_cupy, oracles, truth.shape, gx, channels_last)
    convolution.bias_activation_forward(
        gx, gw, gbias, y, z=gz if with_z else None, padding=1, math=FMA,
        activation=ActivationMode[f"CUDNN_ACTIVATION_{activation}"],
    )  # fmt: skip
    found = oracles.host(y)
    assert oracles.worst(found, truth, absolute, dtype, False, "WINOGRAD") <= 1


def test_bias_gradient(real_cupy: Any, oracles: Any) -> None:
    rng = np.random.default_rng(6)
    for shape in ((2, 5, 7), (3, 4, 5, 6), (2, 3, 4, 5, 6)):
        for dtype in ("float32", "float64", "float16"):
            for last in (False, True):
                dy = oracles.rounded(rng, shape, dtype)
                found = convolution.backward_bias(oracles.on_gpu(real_cupy, dy, dtype, last, ""))
                axes = (0, *range(2, len(shape)))
                bound = {"float32": 1e-5, "float64": 1e-12, "float16": 2e-2}[dtype]
                np.testing.assert_allclose(oracles.host(found), dy.sum(axes), atol=bound * 10)


def test_int8_convolution_is_exact(real_cupy: Any) -> None:
    rng = np.random.default_rng(7)
    x = rng.integers(-20, 20, (2, 8, 8, 16)).astype(np.int8)
    w = rng.integers(-20, 20, (8, 3, 3, 16)).astype(np.int8)
    gx = real_cupy.asarray(x).transpose(0, 3, 1, 2)
    gw = real_cupy.asarray(w).transpose(0, 3, 1, 2)
    y = real_cupy.full((2, 8, 8, 8), np.nan, "float32").transpose(0, 3, 1, 2)
    convolution.forward(gx, gw, y, padding=1, algorithm=1)
    import torch

    tx, tw = (torch.from_numpy(a.astype(np.float64)).permute(0, 3, 1, 2) for a in (x, w))
    truth = torch.nn.functional.conv2d(tx, tw, padding=1).numpy()
    assert (y.get() == truth).all()


def test_find_ex_leaves_the_buffers_alone(real_cupy: Any) -> None:
    cupy = real_cupy
    x, w = cupy.random.randn(2, 8, 9, 9), cupy.random.randn(8, 8, 3, 3)
    y = cupy.full((2, 8, 9, 9), 7.0)
    copies = [a.copy() for a in (x, w, y)]
    plan = convolution.plan("forward", x, w, y, padding=1, algorithm="find_ex")
    assert plan.choice.time_ms is not None
    for before, after in zip(copies, (x, w, y), strict=True):
        assert (before == after).all()


def test_by_hand_and_workspace_query(real_cupy: Any) -> None:
    cupy = real_cupy
    x, w = cupy.ones((2, 8, 9, 9), "float32"), cupy.ones((8, 8, 3, 3), "float32")
    y = convolution.forward(x, w, algorithm=0)
    plan = convolution.plan("forward", x, w, y, algorithm=0)
    assert plan.choice.name == "CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM"
    assert plan.choice.workspace == convolution.workspace_size(plan.key, 0)
    assert (y == 72).all()
    assert any(c.name.endswith("WINOGRAD_NONFUSED") for c in convolution.algorithms(plan.key)) or (
        len(convolution.algorithms(plan.key)) >= 1
    )


def test_a_smaller_limit_takes_another_algorithm(real_cupy: Any) -> None:
    cupy = real_cupy
    x, w = cupy.ones((16, 64, 56, 56), "float32"), cupy.ones((64, 64, 3, 3), "float32")
    y = cupy.empty((16, 64, 56, 56), "float32")
    options: dict[str, Any] = {"padding": 1, "math": FMA, "algorithm": "find_ex"}
    rich = convolution.plan("forward", x, w, y, workspace_limit=1 << 30, **options)
    poor = convolution.plan("forward", x, w, y, workspace_limit=0, **options)
    assert poor.choice.workspace == 0
    assert rich.choice.time_ms is not None and poor.choice.time_ms is not None
    assert rich.choice.time_ms <= poor.choice.time_ms * 1.2


def test_the_choice_is_remembered_on_disk(real_cupy: Any, tmp_path: Any, monkeypatch: Any) -> None:
    from minidnn.cudnn.convolution import choose, functions

    monkeypatch.setenv("MINIDNN_CACHE", str(tmp_path))
    cupy = real_cupy
    x, w = cupy.ones((2, 8, 9, 10), "float32"), cupy.ones((8, 8, 3, 3), "float32")
    y = cupy.empty((2, 8, 7, 8), "float32")
    first = convolution.plan("forward", x, w, y, algorithm="find_ex")
    choose.forget()
    functions._warm.clear()
    monkeypatch.setattr(choose, "ask", None)  # asking cuDNN again would fail
    again = convolution.plan("forward", x, w, y, algorithm="find_ex")
    assert again is not first and again.choice == first.choice
