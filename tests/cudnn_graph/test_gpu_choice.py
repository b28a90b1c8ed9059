"""The choice between graph plans and fixed functions, on a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from minidnn.cudnn import choice
from minidnn.cudnn.graph import Constraints
from tests.cudnn_graph.cases import TOLERANCE, error

pytestmark = pytest.mark.gpu
OPERATIONS = ("forward", "backward_data", "backward_filter")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MINIDNN_CACHE", str(tmp_path))
    return tmp_path


def arrays(dtype: str, layout: str, window: int = 3) -> tuple[Any, Any, Any]:
    """Images, filters and gradients of a convolution that keeps 14 x 14 pixels."""
    import cupy

    def made(*shape: int) -> Any:
        n, c, h, w = shape
        memory = (n, h, w, c) if layout == "NHWC" else shape
        values = cupy.random.standard_normal(memory, dtype=cupy.float32).astype(dtype)
        return values.transpose(0, 3, 1, 2) if layout == "NHWC" else values

    return made(4, 32, 14, 14), made(64, 32, window, window), made(4, 64, 14, 14)


def reference(operation: str, x: Any, w: Any, y: Any) -> tuple[Any, Any]:
    """The array that is written, and what should stand in it."""
    import torch

    a, b, c = (torch.from_dlpack(array).double() for array in (x, w, y))
    padding = w.shape[-1] // 2
    if operation == "forward":
        return y, torch.nn.functional.conv2d(a, b, padding=padding)
    if operation == "backward_data":
        return x, torch.nn.grad.conv2d_input(x.shape, b, c, padding=padding)
    return w, torch.nn.grad.conv2d_weight(a, w.shape, c, padding=padding)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "tf32"])
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("window", [3, 5])
def test_every_candidate_is_right(operation: str, dtype: str, layout: str, window: int) -> None:
    import cupy
    import torch

    x, w, y = arrays("float32" if dtype == "tf32" else dtype, layout, window)
    out, wanted = reference(operation, x, w, y)
    limits = Constraints(tf32=dtype == "tf32")
    problem = choice.Problem(operation, x, w, y, padding=window // 2, constraints=limits)
    found = choice.candidates(problem)
    names = [one.alternative.name(operation) for one in found]
    if dtype == "float32" and window == 5:
        assert not [name for name in names if "WINOGRAD" in name]
    assert {one.alternative.family for one in found} == {"graph", "fixed"}
    for one in found:
        out.fill(cupy.nan)
        one.run()
        cupy.cuda.get_current_stream().synchronize()
        assert error(torch.from_dlpack(out), wanted) < TOLERANCE[dtype], one.alternative


@pytest.mark.parametrize("operation", OPERATIONS)
def test_choice_is_ranked_remembered_and_leaves_the_arrays_alone(
    operation: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import cupy
    import torch

    x, w, y = arrays("float32", "NCHW")
    before = [array.copy() for array in (x, w, y)]
    first = choice.choose(operation, x, w, y, padding=1)
    for array, copy in zip((x, w, y), before, strict=True):
        cupy.testing.assert_array_equal(array, copy)
    times = [one.milliseconds for one in first.ranked]
    assert None not in times
    monkeypatch.setattr(choice, "_measure", None)
    again = choice.choose(operation, x, w, y, padding=1)
    assert again.ranked == first.ranked
    out, wanted = reference(operation, x, w, y)
    out.fill(cupy.nan)
    again.bind(x, w, y)()
    cupy.cuda.get_current_stream().synchronize()
    assert error(torch.from_dlpack(out), wanted) < TOLERANCE["float32"]


def test_accuracy_high_has_no_winograd_and_no_fft() -> None:
    x, w, y = arrays("float32", "NCHW")
    names = [
        one.alternative.name("forward")
        for one in choice.candidates(
            choice.Problem("forward", x, w, y, 1, constraints=Constraints(accuracy="high"))
        )
    ]
    assert names
    assert not [name for name in names if "WINO" in name or "FFT" in name]
