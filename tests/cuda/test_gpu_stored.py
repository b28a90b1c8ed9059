"""Compiled networks of GPUs in files: the same bits in a process that compiles nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from minidnn.backends.cuda.block import Block
from minidnn.backends.cuda.contraction.problem import Addresses
from minidnn.backends.cuda.machine import machine_of
from minidnn.backends.cuda.stored import _table, store
from minidnn.backends.cuda.table import CudaTable
from minidnn.errors import UnsupportedError
from tests.compile.several import Several
from tests.cuda.contractions import residual
from tests.cuda.lowered import problems_of
from tests.cuda.test_gpu_early import configs

pytestmark = pytest.mark.gpu
ROOT = Path(__file__).resolve().parents[2]
SHAPE = (4, 3, 20, 20)


PROGRAM = """
    import sys
    import numpy as np
    import minidnn as md

    file, x, y, dtype, explained = sys.argv[1:]
    exe = md.load(file, check=True)
    want, x = np.load(y), np.load(x)
    for _ in range(2):
        got = exe(x)
        assert sorted(got) == ["again", "given", "scores"], sorted(got)
        np.testing.assert_array_equal(got["scores"], want)
        np.testing.assert_array_equal(got["again"], want)
    import cupy
    bound = exe.bind(cupy.asarray(x, dtype))
    bound()
    assert exe.explain() == explained
    assert "minidnn.backends.cuda.lower" not in sys.modules
"""


@pytest.mark.parametrize("precision", ["float32", "tf32", "float16"])
def test_it_runs_where_nothing_compiles(precision: str, tmp_path: Path) -> None:
    exe = md.compile(Several(), SHAPE, device="cuda", precision=precision)
    exe.save(tmp_path / "net.mdx")
    x = np.random.default_rng(0).standard_normal(SHAPE, np.float32)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", exe(x)["scores"])
    given = ("net.mdx", "x.npy", "y.npy", exe.graph.inputs[0].dtype, exe.explain())
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), *given],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=tmp_path,
        env=os.environ
        | {
            "PYTHONPATH": str(ROOT),
            "MINIDNN_NO_COMPILE": "1",
            "MINIDNN_CACHE": str(tmp_path / "cache"),
        },
    )
    assert done.returncode == 0, done.stderr


def test_another_card_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from minidnn.backends.cuda import stored

    md.compile(L.ReLU(), (2, 3), device="cuda").save(tmp_path / "net.mdx")
    monkeypatch.setattr(stored, "_card", lambda machine: "another card")
    with pytest.raises(UnsupportedError, match=r"is for NVIDIA .*, and cuda:0 is another card"):
        md.load(tmp_path / "net.mdx")


@pytest.mark.parametrize("precision", ["float32", "tf32", "float16"])
def test_every_recipe_comes_back_with_its_bits(precision: str) -> None:
    """Kernels of ours, plans and fixed functions of cuDNN's, with what stands around them."""
    import torch

    (problem,) = problems_of(residual(64, 3), (4, 64, 14, 14), precision)
    kind = getattr(torch, problem.x.dtype)
    image = torch.randn(4 * 64 * 14 * 14, device="cuda").to(kind)
    weight = torch.randn(problem.w.span, device="cuda").to(kind) / 24
    vectors = [torch.randn(64, device="cuda").to(getattr(torch, d)) for d in problem.vectors]
    out, other = torch.empty_like(image), torch.randn_like(image)
    at = Addresses(
        *(image.data_ptr(), weight.data_ptr(), out.data_ptr(), (other.data_ptr(),)),
        tuple(vector.data_ptr() for vector in vectors),
    )
    kinds: set[str] = set()
    for built in configs(problem):
        room = torch.zeros(max(1, built.workspace), dtype=torch.uint8, device="cuda")
        rows = tuple(built.rows(at, room.data_ptr()))
        table = CudaTable((rows,), Block(0, 0, (), (), {}), (), (), ())
        file = store(table, np.zeros(0, np.uint8), machine_of(0))
        kinds |= {row[0] for row in file.document["tasks"][0]}
        code: Any = {name: memoryview(data) for name, data in file.code.items()}
        results = []
        for one in (table, _table(file.document, code.__getitem__, 0)):
            out.fill_(float("nan"))
            torch.cuda.synchronize()
            for row in one.tasks[0]:
                row.bind(())()
            torch.cuda.synchronize()
            results.append(out.clone())
        assert torch.equal(*results), built.config
        assert not results[0].isnan().any()
    assert kinds == {"kernel", "plan"} | ({"fixed"} if precision == "float32" else set())


def test_all_batches_of_one_file(tmp_path: Path) -> None:
    """Programs whose constants are equal share them, and each finds its own."""
    net = L.Sequential(
        L.Conv2d(3, 16, 3, padding=1), L.ReLU(), L.Flatten(), L.Linear(16 * 36, 10)
    ).initialize(0)
    shape: Any = (md.Dim("batch", 1, 6), 3, 6, 6)
    md.compile(net, shape, device="cuda").save(tmp_path / "net.mdx")
    loaded = md.load(tmp_path / "net.mdx")
    for rows in (1, 3, 6):
        x = np.random.default_rng(rows).standard_normal((rows, 3, 6, 6), np.float32)
        expected = md.compile(net, x.shape, device="reference")(x)
        np.testing.assert_allclose(_numpy(loaded(x)), expected, rtol=1e-3, atol=1e-3)
    assert _numpy(loaded(np.empty((0, 3, 6, 6), np.float32))).shape == (0, 10)


def _numpy(array: Any) -> np.ndarray:
    return np.asarray(array.get() if hasattr(array, "get") else array)
