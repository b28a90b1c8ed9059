"""What minidnn asks of PyTorch that its documentation does not name."""

from __future__ import annotations

from torch._functorch.aot_autograd import aot_export_module
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

__all__ = ["FakeTensorMode", "ShapeEnv", "aot_export_module"]
