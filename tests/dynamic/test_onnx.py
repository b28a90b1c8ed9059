"""ONNX models whose open sizes are named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import minidnn as md
from minidnn.dynamic.executable import DynamicExecutable
from minidnn.errors import GraphError
from tests.onnx.models import model, network, node, save


def test_a_file_is_read_once(tmp_path: Path) -> None:
    """Programs of all sizes have its weights, though the file goes away."""
    path = save(network(), tmp_path / "net.onnx")
    exe = md.compile(path, (md.Dim("N", 1, 9), 3, 16, 16), device="reference")
    assert isinstance(exe, DynamicExecutable) and exe.why_not_parts is None
    path.unlink()
    x = np.random.default_rng(0).standard_normal((7, 3, 16, 16)).astype(np.float32)
    fixed = md.compile(network(), x.shape, device="reference")(x)
    for _ in range(3):
        np.testing.assert_allclose(exe(x), fixed, rtol=1e-5, atol=1e-6)
        exe.wait()
    np.testing.assert_array_equal(exe(x), fixed)


def test_inputs_that_share_a_name() -> None:
    two = model([node("Add", "a b")], [("a", ["N", 3]), ("b", ["N", 1])])
    exe = md.compile(two, {"a": (md.Dim("N", 2, 9), 3)}, device="reference")
    a, b = np.ones((5, 3), np.float32), np.ones((5, 1), np.float32)
    np.testing.assert_array_equal(exe(a, b), a + b)
    with pytest.raises(GraphError, match=r"^'N' is 5 along axis 0 of input 'a' and 4 along axis 0"):
        exe(a, b[:4])


def test_models_that_leave_sizes_open_say_how_to_name_them() -> None:
    with pytest.raises(GraphError, match=r"minidnn\.compile takes a minidnn\.Dim in place of"):
        md.compile(network(), device="reference")
