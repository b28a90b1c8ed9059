"""The ladder of convolutions: right in the emulator, compiled, and refused with a reason."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from minidnn import lab
from minidnn import layers as L
from minidnn.backends.cuda import nvrtc
from minidnn.backends.cuda.functions import compile_kernels
from minidnn.errors import UnsupportedError
from minidnn.graph.evaluate import evaluate
from minidnn.lab.api import H100
from minidnn.lab.cuda.convolution import CHANGES, CONVOLUTION, planes, worked, worked_examples
from minidnn.lab.operands import ConvolutionShape, convolve, draw
from minidnn.layers.build import to_graph
from tests.sampling import IS_FULL, only

LARGE = ConvolutionShape(32, 64, 56, 56, 64, padding=1)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "10 9 8; 5 7 11; 7 8 7"),
        ({"padding": 1}, "1 5 4 4 2; 3 10 9 8 4; 6 5 7 11 6; 4 7 8 7 3; 2 4 3 2 1"),
        ({"stride": 2}, "10 8; 7 7"),
        ({"dilation": 2}, "4 9; 5 6"),
        ({"stride": 2, "padding": 1, "dilation": 2}, "3 4; 2 6"),
    ],
    ids=["plain", "padding", "stride", "dilation", "together"],
)
def test_worked_examples(changes: dict[str, int], expected: str) -> None:
    np.testing.assert_array_equal(worked(changes).ravel(), planes(expected))


def test_the_page_shows_the_worked_examples() -> None:
    text = worked_examples()
    assert len(CHANGES) == 5 and "   10  9  8\n    5  7 11\n    7  8  7\n" in text
    study = lab.model("conv", ["general"])
    page = lab.study_page(study, CONVOLUTION)
    assert text.splitlines()[0] in page and "stride 2, padding 1, dilation 2" in page


@pytest.mark.parametrize("changes", [{}, {"stride": 2, "padding": 1, "dilation": 2}])
def test_the_reference_is_that_of_the_layers(changes: dict[str, Any]) -> None:
    shape = replace(ConvolutionShape(2, 3, 9, 8, 4, 3, 2), **changes)
    net = L.Conv2d(3, 4, (3, 2), bias=False, **changes)
    operands = draw(["x", "w", "y"], shape)
    net.load_state_dict({"weight": operands["w"].reshape(4, 3, 3, 2)})
    size = (2, 3, 9, 8)
    (expected,) = evaluate(to_graph(net, size), [operands["x"].reshape(size)], "float64")
    np.testing.assert_allclose(convolve(shape, operands), expected, atol=1e-5)


@pytest.mark.parametrize("arch", only(["sm_90"], ["sm_80", "sm_90"]))
def test_steps_compile_without_spills(arch: str) -> None:
    shapes = [LARGE, ConvolutionShape(32, 3, 224, 224, 64, 7, 7, 2, 3)]
    calls = [
        call
        for i, step in enumerate(CONVOLUTION.steps)
        for shape in (shapes if IS_FULL else [shapes[i % 2]])
        for call in step.calls(shape, (16, 16))
    ]
    for kernel in compile_kernels([call.launch.source for call in calls], arch):
        # Older compilers spill some of two steps.
        most = 0 if nvrtc.load().version >= (13, 2) else 96
        assert kernel.resources.stack_bytes <= kernel.resources.spill_bytes <= most, kernel.name
        assert kernel.resources.registers <= 128, kernel


def test_every_step_takes_the_shape_of_the_ladder() -> None:
    for step in CONVOLUTION.steps:
        assert step.why_not(CONVOLUTION.shape, (16, 16), H100) is None


def test_refusals_are_reasons() -> None:
    shape = LARGE
    reasons = {step.name: step.why_not(shape, (16, 16), H100) for step in CONVOLUTION.steps}
    assert reasons.pop("naive") == (
        "stride 1, padding 1, dilation 1; this step knows stride 1, padding 0, dilation 1"
    )
    assert reasons.pop("constant") == "36864 weights; constant memory holds 16384"
    assert set(reasons.values()) == {None}
    general = CONVOLUTION.step("general")
    assert general.why_not(shape, (64, 32), H100) == (
        "a block of 2048 threads; valid are 1 to 1024"
    )
    many = replace(shape, batch=65536, height=8, width=8)
    tiled = CONVOLUTION.step("tiled")
    assert tiled.why_not(many, (8, 8), H100) == "65536 blocks along z; there may be 65535"
    large = replace(shape, batch=1 << 15, height=112, width=112)
    assert (tiled.why_not(large, (8, 8), H100) or "").startswith("x has 26306674688 elements")
    far = replace(shape, dilation=70, padding=70)
    assert tiled.why_not(replace(far, stride=3), (64, 16), H100) == (
        "245520 bytes of shared memory a block; NVIDIA H100 has 232448"
    )
    with pytest.raises(UnsupportedError, match=r"conv has no step 'fast'; it has naive, general"):
        CONVOLUTION.step("fast")
    with pytest.raises(UnsupportedError, match="stride=0; valid are 1 and more"):
        replace(shape, stride=0)
    with pytest.raises(UnsupportedError, match="the window is larger than the padded image"):
        replace(shape, window_height=59)
