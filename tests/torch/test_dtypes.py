"""Modules of other dtypes than float32: what they are computed in, and what results have."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import minidnn as md
from minidnn.backends.backend import get_backend
from minidnn.backends.cpu.isa import best_isa, why_no_bfloat16
from minidnn.errors import MiniDNNWarning


def examples(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize(("dtype", "precision"), [("float64", "float64"), ("float16", "float32")])
def test_a_module_of_another_dtype_is_computed_in_it(dtype: str, precision: str) -> None:
    """At the precision of that name, if the device has it; absent weights are of the dtype, too."""
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8, affine=False), nn.ReLU()).eval()
    net, x = net.to(getattr(torch, dtype)), examples(1, 3, 8, 8).to(getattr(torch, dtype))
    fast = md.optimize(net, x, device="reference", strict=True)
    (part,) = fast.programs[0].parts
    assert part.executable.precision == precision
    y, tolerance = fast(x), {"float64": 1e-12, "float16": 2e-3}[dtype]
    torch.testing.assert_close(y, net(x), rtol=tolerance, atol=tolerance)


class Results(nn.Module):
    """Of several dtypes, with an operation between that only PyTorch knows."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 5, 3)
        self.second = nn.Linear(5, 7)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        y = self.first(x)
        z = self.second(torch.atan2(y, y + 2).mean((2, 3)))
        return {"y": y, "z": z, "class": z.argmax(1), "most": y.amax((2, 3)), "zeros": y * 0}


PRECISIONS = [("reference", each) for each in (None, "float32", "float64")] + [("cpu", None)]


@pytest.mark.usefixtures("unpriced")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize(("device", "precision"), PRECISIONS)
def test_results_have_the_dtypes_of_pytorchs(
    device: str, precision: str | None, dtype: torch.dtype
) -> None:
    net, x = Results().eval().to(dtype), examples(2, 3, 7, 6).to(dtype)
    # Some processors multiply bfloat16.
    name = str(dtype).removeprefix("torch.")
    lacks_bfloat16 = name == "bfloat16" and why_no_bfloat16(best_isa()) is not None
    if device == "cpu" and (name not in get_backend("cpu").precisions() or lacks_bfloat16):
        with pytest.warns(
            MiniDNNWarning, match=r"first: aten.conv2d.default: %\w+: (b?float16|float64)\["
        ) as said:
            fast = md.optimize(net, x, device=device, precision=precision)
        assert {each.category for each in said} == {MiniDNNWarning}
    else:
        fast = md.optimize(net, x, device=device, precision=precision)
        assert len(fast.programs[0].parts) == 2
    with torch.no_grad():
        found, expected = fast(x), net(x)
    tolerance = {torch.float16: 4e-3, torch.bfloat16: 4e-2}.get(dtype, 1e-6)
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype, name
        if tensor.is_floating_point():
            torch.testing.assert_close(found[name], tensor, rtol=tolerance, atol=tolerance)
