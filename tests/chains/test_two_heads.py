"""A network with two heads, from PyTorch through an interrupted training to ONNX Runtime."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import minidnn as md
from tests.chains.two_heads import LABELS, PICTURES, train

onnxruntime = pytest.importorskip("onnxruntime")


def test_a_stopped_run_ends_with_the_same_bits_and_serves_any_batch(tmp_path: Path) -> None:
    checkpoint, file = tmp_path / "run.checkpoint", tmp_path / "heads.onnx"
    command = [sys.executable, "-W", "error", "-m", "tests.chains.two_heads", str(checkpoint)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        for _ in range(9):  # within the second epoch of six steps
            assert run.stdout.readline() == "step\n"
        run.send_signal(signal.SIGTERM)
        rest = run.stdout.read().splitlines()
    assert run.returncode == 0 and rest[-1] == "interrupted" and checkpoint.exists()

    resumed, whole = train(checkpoint), train(tmp_path / "whole.checkpoint")
    state = whole.state_dict()
    for name, values in resumed.state_dict().items():
        np.testing.assert_array_equal(values, state[name], err_msg=name)

    resumed.network.load_state_dict(resumed.state_dict())
    md.save_onnx(resumed.network, file, (md.Dim("batch", 1, 64), 1, 8, 8))
    session = onnxruntime.InferenceSession(file)
    assert [each.name for each in session.get_outputs()] == ["main", "aux"]
    assert all(each.shape[0] == "batch" for each in session.get_inputs() + session.get_outputs())
    for rows in (1, 3, 8):
        exe = md.compile(resumed.network, (rows, 1, 8, 8), device="reference")
        (given,) = (each.name for each in session.get_inputs())
        found = session.run(None, {given: PICTURES[:rows]})
        expected = exe(PICTURES[:rows])
        for name, values in zip(("main", "aux"), found, strict=True):
            np.testing.assert_allclose(values, expected[name], rtol=1e-4, atol=1e-5)
            assert (values.argmax(1) == LABELS[:rows]).all()
