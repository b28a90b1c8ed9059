"""md.compile takes PyTorch modules whole; a page of the reference says what is taken."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import minidnn as md
from minidnn.errors import DeviceError, GraphError, UnsupportedError
from minidnn.frontends.torch import frontend
from tools.pytorch_operations_page import page


class Two(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> dict[str, torch.Tensor]:
        total = torch.relu(a) + b
        return {"total": total, "doubled": total * 2}


class Bad(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return torch.fft.fft(torch.relu(x)).real, torch.special.i0(x), x, 3


def test_a_module_is_compiled_whole() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).eval()
    x = torch.randn(2, 3, 8, 8)
    exe = md.compile(net, (2, 3, 8, 8), device="reference")
    with torch.no_grad():
        torch.testing.assert_close(exe(x), net(x), rtol=1e-5, atol=1e-5)
    assert isinstance(exe(x.numpy()), np.ndarray)
    assert [node.name for node in exe.graph.nodes] == ["2"]


@pytest.mark.parametrize("shape", [[(2, 3), (3,)], {"a": (2, 3), "b": (3,)}])
def test_several_arguments_and_named_results(shape: Any) -> None:
    a, b = np.full((2, 3), -1.0, np.float32), np.arange(3, dtype=np.float32)
    exe = md.compile(Two().eval(), shape, device="reference")
    got = exe(a, b)
    assert list(got) == ["total", "doubled"]
    np.testing.assert_array_equal(got["doubled"], 2 * got["total"])
    np.testing.assert_array_equal(exe(b=b, a=a)["total"], np.stack([b, b]))


def test_everything_that_is_not_known_is_said_at_once() -> None:
    with pytest.raises(UnsupportedError) as caught:
        md.compile(Bad().eval(), (2, 3), device="reference")
    assert str(caught.value) == (
        "Bad cannot be taken whole (md.optimize runs the rest in PyTorch):\n"
        "  fft_fft: fft_fft.default: it is not known\n"
        "  view_as_real: view_as_real.default: a tensor has dtype complex64\n"
        "  special_i0: special_i0.default: it is not known\n"
        "  result 2 is x, which is not computed of the arguments\n"
        "  result 3 is 3, which is not computed of the arguments"
    )


def test_why_a_module_cannot_be_captured_is_said() -> None:
    class Looking(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.exp() if float(x.sum()) < 9 else x.neg()

    with pytest.raises(UnsupportedError) as caught:
        md.compile(nn.Sequential(nn.ReLU(), Looking()).eval(), (2, 3), device="reference")
    text = str(caught.value)
    assert text.startswith("Sequential cannot be captured: GuardOnDataDependentSymNode: ")
    assert text.endswith('torch.compile(model, backend="minidnn") splits a network at such places')


def test_what_is_not_legal() -> None:
    with pytest.raises(GraphError, match=r"^ReLU is in training mode; valid is a module in eval"):
        md.compile(nn.ReLU(), (2, 3), device="reference")
    wrong: tuple[Any, ...] = (None, 5, (), (2.0, 3))
    for shape in wrong:
        with pytest.raises(
            GraphError, match=r"^shape=.*; valid is the input's shape with the batch"
        ):
            md.compile(nn.ReLU().eval(), shape, device="reference")


@pytest.mark.parametrize(
    ("version", "accepted"),
    [
        ("2.10.1", False),
        ("2.11.0+cu130", True),
        ("2.14.1+cu130", True),
        ("2.15.0.dev2026", False),
        ("3.0", False),
        ("unknown", False),
    ],
)
def test_versions(monkeypatch: pytest.MonkeyPatch, version: str, accepted: bool) -> None:
    monkeypatch.setattr(frontend, "_installed", lambda: version)
    if accepted:
        frontend.require_torch()
        return
    with pytest.raises(DeviceError) as caught:
        md.optimize(nn.ReLU().eval())
    assert str(caught.value) == f"PyTorch {version} is installed; valid are 2.11 to 2.14"


def test_a_missing_pytorch_is_named() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import minidnn as md\n"
        "try:\n    md.optimize(5)\nexcept md.DeviceError as e:\n    print(e)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    valid = "valid are 2.11 to 2.14: pip install 'minidnn[torch]'"
    assert done.stdout.strip() == f"PyTorch is not installed; {valid}"


def test_optimize_is_what_imports_pytorch(root: Path) -> None:
    code = (
        "import sys, minidnn as md\n"
        "md.optimize, md.compile(md.layers.ReLU(), (1, 2), device='reference')\n"
        "print('torch' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "False"


def test_the_page_has_the_table_of_what_is_taken(root: Path) -> None:
    found = (root / "docs/reference/pytorch-operations.md").read_text(encoding="utf-8")
    assert found == page(), "python -m tools.pytorch_operations_page prints it"
