"""Poolings that ONNX has no operator for are written for the peers as matrix products."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest

from minidnn.bench.networks import _replace_uneven_pooling


@pytest.mark.parametrize("output", [(6, 6), (4, 7), 3])
def test_uneven_poolings_are_exported(output: int | tuple[int, int], tmp_path: Path) -> None:
    import torch

    onnxruntime = pytest.importorskip("onnxruntime")
    pool, even = torch.nn.AdaptiveAvgPool2d(output), torch.nn.AdaptiveAvgPool2d(1)
    inner = torch.nn.Sequential(pool, torch.nn.ReLU())
    module = torch.nn.Sequential(inner, even).eval()
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((2, 3, 5, 7), np.float32))
    expected = module(x).numpy()
    _replace_uneven_pooling(module, x)
    assert module[0][0] is not pool and module[1] is even
    path = str(tmp_path / "network.onnx")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter that needs no further package is old
        torch.onnx.export(module, (x,), path, dynamo=False, opset_version=17)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (y,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)


def test_even_poolings_stay() -> None:
    import torch

    pool = torch.nn.AdaptiveAvgPool2d((None, 3))
    module = torch.nn.Sequential(pool)
    _replace_uneven_pooling(module, torch.zeros(1, 2, 6, 9))
    assert module[0] is pool
