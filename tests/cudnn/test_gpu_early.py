"""cuDNN's fused function reads nothing before the kernel in front has written it."""

from __future__ import annotations

from typing import Any

import pytest

from minidnn.cudnn.convolution import bias_activation_forward
from minidnn.cudnn.enums import ConvolutionFwdAlgo
from minidnn.errors import MiniDNNError
from tests.cudnn_graph.late import read_early

pytestmark = pytest.mark.gpu
SHAPES = {
    "image": (16, 256, 14, 14),
    "filter": (256, 256, 3, 3),
    "bias": (256,),
    "residual": (16, 256, 14, 14),
}


@pytest.mark.parametrize(("dtype", "last"), [("float16", True), ("float32", False)])
def test_fused_convolution(dtype: str, last: bool) -> None:
    import cupy
    import torch

    arrays: dict[str, Any] = {}
    for name, shape in SHAPES.items():
        x = torch.randn(shape, device="cuda").to(getattr(torch, dtype)) / 8
        arrays[name] = x.to(memory_format=torch.channels_last) if last and x.ndim == 4 else x
    out = torch.empty_like(arrays["residual"])
    x, w, bias, z, y = (cupy.from_dlpack(a) for a in (*arrays.values(), out))
    ran, found = 0, {}
    for algorithm in ConvolutionFwdAlgo:

        def run(algorithm: int = int(algorithm)) -> None:
            bias_activation_forward(x, w, bias, y, z=z, padding=1, algorithm=algorithm)

        try:
            run()
        except MiniDNNError:
            continue  # cuDNN has no such algorithm for this
        ran += 1
        early = read_early(run, out, arrays)
        if early:
            found[algorithm.name] = early
    assert ran and not found, found
