"""Convolutions on a GPU, all three directions, against PyTorch in float64."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from minidnn.cudnn.graph import Graph
from minidnn.errors import UnsupportedError
from tests.cudnn_graph.cases import TOLERANCE, Case, cases, error, tensor

pytestmark = pytest.mark.gpu
KINDS = ("forward", "backward_data", "backward_filter")


def problem(kind: str, case: Case) -> tuple[Graph, list[Any], Any, Any]:
    """The graph, its arrays, the output filled with NaN, and the reference."""
    import torch

    shapes = {
        "x": (case.n, case.c, *case.size),
        "w": (case.k, case.c // case.groups, *case.window),
        "y": case.output,
    }
    made = {
        name: tensor(shape, case.dtype, case.layout, case.slices and name != "w", "random")
        for name, shape in shapes.items()
    }
    g = Graph()
    double = {name: value.double() for name, value in made.items()}
    extra = {**case.settings, "groups": case.groups}
    if kind == "forward":
        arrays = [made["x"], made["w"]]
        result = g.convolution(*g.tensors(*arrays), **case.settings)
        wanted = torch.nn.functional.conv2d(double["x"], double["w"], **extra)
        name = "y"
    elif kind == "backward_data":
        arrays = [made["y"], made["w"]]
        dy, w = g.tensors(*arrays)
        result = g.convolution_backward_data(dy, w, shapes["x"], **case.settings)
        wanted = torch.nn.grad.conv2d_input(shapes["x"], double["w"], double["y"], **extra)
        name = "x"
    else:
        arrays = [made["y"], made["x"]]
        dy, x = g.tensors(*arrays)
        result = g.convolution_backward_filter(dy, x, shapes["w"], **case.settings)
        wanted = torch.nn.grad.conv2d_weight(double["x"], shapes["w"], double["y"], **extra)
        name = "w"
    out = tensor(shapes[name], case.dtype, case.layout, case.slices and name != "w", "nan")
    g.output(result, like=out)
    return g, arrays, out, wanted


def run(plan: Any, arrays: list[Any], out: Any) -> None:
    """Executes with a workspace full of NaN."""
    import cupy
    import torch

    workspace = cupy.full(max(plan.workspace, 1), 0xFF, dtype=cupy.uint8)
    torch.cuda.synchronize()
    plan.bind(*arrays, out=out, workspace=workspace)()
    cupy.cuda.get_current_stream().synchronize()


def sweep(kind: str, wanted_cases: list[Case]) -> int:
    """Runs every case that cuDNN supports and returns how many that were."""
    unsupported = []
    for case in wanted_cases:
        g, arrays, out, wanted = problem(kind, case)
        try:
            plan = g.build(choose="heuristic")
        except UnsupportedError:
            unsupported.append(case)
            continue
        run(plan, arrays, out)
        assert error(out, wanted) < TOLERANCE[case.dtype], (kind, case, plan)
        plan.close()
    assert len(unsupported) <= len(wanted_cases) // 10, unsupported
    return len(wanted_cases) - len(unsupported)


@pytest.mark.parametrize("kind", KINDS)
def test_random_convolutions(kind: str) -> None:
    sweep(kind, cases(150, seed=KINDS.index(kind)))


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
def test_a_thousand_random_convolutions(kind: str) -> None:
    done = sweep(kind, cases(1100, seed=100 + KINDS.index(kind)))
    print(f"{kind}: {done} ran")
    assert done >= 1000


@pytest.mark.parametrize("kind", KINDS)
def test_channel_slices(kind: str) -> None:
    chosen = [c for c in cases(120, seed=7, slices=True) if c.c % 8 == 0 and c.k % 8 == 0]
    assert len(chosen) >= 10
    sweep(kind, chosen)


@pytest.mark.parametrize("channels", [16, 64])
@pytest.mark.parametrize("dtype", ["int32", "float32"])
def test_sums_of_bytes_are_exact(channels: int, dtype: str) -> None:
    """By every plan."""
    import numpy as np
    import torch

    random = np.random.default_rng(channels)
    x, w = (
        torch.from_numpy(random.integers(-128, 128, shape).astype(np.int8))
        for shape in ((2, channels, 9, 11), (32, channels, 3, 3))
    )
    wanted = torch.nn.functional.conv2d(x.double(), w.double(), padding=1)
    last = torch.channels_last
    given = [each.to("cuda").to(memory_format=last) for each in (x, w)]
    out = torch.empty(wanted.shape, dtype=getattr(torch, dtype), device="cuda")
    out = out.to(memory_format=last)
    g = Graph()
    g.output(g.convolution(*g.tensors(*given), padding=1), like=out)
    plans = g.plans(most_compiled=2)
    assert plans
    for plan in plans:
        out.fill_(-1)
        run(plan, given, out)
        assert torch.equal(out.cpu().double(), wanted), plan


EVERY = Case(4, 64, (14, 14), 64, (3, 3), (1, 1), (1, 1), (1, 1), 1, "float32", "NHWC", False)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["float16", "float32", "tf32"])
def test_every_plan_is_right(kind: str, dtype: str) -> None:
    case = dataclasses.replace(EVERY, dtype="float32" if dtype == "tf32" else dtype)
    g, arrays, out, wanted = problem(kind, case)
    plans = g.plans(tf32=dtype == "tf32")
    assert len(plans) > 3
    for plan in plans:
        out.fill_(float("nan"))
        run(plan, arrays, out)
        assert error(out, wanted) < TOLERANCE[dtype], (kind, dtype, plan, plan.proposal)


def test_tf32_is_excluded_unless_asked_for() -> None:
    """With 10 bits of mantissa the error is near 3e-4; exact float32 is near 1e-7."""
    g, arrays, out, wanted = problem("forward", EVERY)
    for plan in g.plans(tf32=False, accuracy="high"):
        out.fill_(float("nan"))
        run(plan, arrays, out)
        assert error(out, wanted) < 1e-6, plan
    errors = []
    for plan in g.plans(tf32=True):
        run(plan, arrays, out)
        errors.append(error(out, wanted))
    assert max(errors) > 1e-4


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("window", [1, 3])
def test_convolution_bias_add_relu(dtype: str, window: int) -> None:
    import torch

    x = tensor((4, 64, 14, 14), dtype, "NHWC", False, "random")
    w = tensor((32, 64, window, window), dtype, "NHWC", False, "random")
    b = tensor((1, 32, 1, 1), dtype, "NHWC", False, "random")
    z = tensor((4, 32, 14, 14), dtype, "NHWC", False, "random")
    g = Graph()
    xt, wt, bt, zt = g.tensors(x, w, b, z)
    g.relu(g.convolution(xt, wt, padding=window // 2) + bt + zt)
    plan = g.build(choose="heuristic", tf32=True)
    out = tensor((4, 32, 14, 14), dtype, "NHWC", False, "nan")
    run(plan, [x, w, b, z], out)
    wanted = torch.nn.functional.conv2d(x.double(), w.double(), padding=window // 2)
    wanted = (wanted + b.double() + z.double()).relu()
    assert error(out, wanted) < TOLERANCE["tf32" if dtype == "float32" else dtype]
