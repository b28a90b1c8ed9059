"""PyTorch modules compiled for named sizes."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

import minidnn as md
from minidnn.dynamic.executable import DynamicExecutable


class Looking(nn.Module):
    """A module whose code looks at the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * (2.0 if x.shape[0] == 5 else 1.0)


def test_a_module_gives_what_pytorch_gives_for_every_batch() -> None:
    torch.manual_seed(0)
    net = Looking().eval()
    exe = md.compile(net, (md.Dim("n", 1, 16), 6), device="reference")
    assert isinstance(exe, DynamicExecutable) and exe.why_not_parts is None
    with torch.inference_mode():
        for rows in (3, 5):
            x = torch.randn(rows, 6)
            y = exe(x)
            assert isinstance(y, torch.Tensor)
            np.testing.assert_allclose(y.numpy(), net(x).numpy(), rtol=1e-5, atol=1e-6)
    assert exe.counts.in_parts == 1
