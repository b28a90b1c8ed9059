"""Optimized modules where operations of PyTorch's are recorded, or computed in another way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.flop_counter import FlopCounterMode

import minidnn as md
from minidnn.acceleration import dynamo
from minidnn.errors import MiniDNNWarning, UnsupportedError

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*torch.jit.* is deprecated:DeprecationWarning"),
]


def examples(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(2))


X = examples(2, 3, 6, 6)


@pytest.fixture(scope="module")
def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten()).eval()


def optimized(net: nn.Module, **options: Any) -> Any:
    return md.optimize(net, X, device="reference", **options)


def _dual(net: Any) -> torch.Tensor:
    with forward_ad.dual_level():
        tangent = forward_ad.unpack_dual(net(forward_ad.make_dual(X, X))).tangent
        assert tangent is not None
        return tangent


TRANSFORMS: dict[str, Callable[[Any], Any]] = {
    "vmap": lambda net: torch.vmap(net)(torch.stack([X, X + 1])),
    "jvp": lambda net: torch.func.jvp(net, (X,), (X,))[1],
    "grad": lambda net: torch.func.grad(lambda x: net(x).sum())(X),
    "jacrev": lambda net: torch.func.jacrev(lambda x: net(x).sum())(X),
    "dual numbers": _dual,
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_are_pytorchs_with_a_warning(net: nn.Module, name: str) -> None:
    fast, transform = optimized(net), TRANSFORMS[name]
    with pytest.warns(MiniDNNWarning, match=r"^Sequential was called w.*: it runs in PyTorch"):
        found = transform(fast)
    torch.testing.assert_close(found, transform(net), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(transform(fast), found)  # warned of once
    with torch.no_grad():
        assert not fast(X).requires_grad


def test_dual_numbers_are_pytorchs_in_torch_compile(net: nn.Module) -> None:
    torch._dynamo.reset()
    fast = torch.compile(net, backend=dynamo.backend, options={"device": "reference"})
    with torch.no_grad():
        fast(X)
        with pytest.warns(MiniDNNWarning, match="a piece runs in PyTorch: its operations are rec"):
            found = _dual(fast)
        torch.testing.assert_close(found, _dual(net), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_are_refused_when_strict(net: nn.Module, name: str) -> None:
    where = "where forward-mode gradients" if name == "dual numbers" else "within a transform of"
    with pytest.raises(UnsupportedError, match=f"^strict=True, and Sequential was called {where}"):
        TRANSFORMS[name](optimized(net, strict=True))


def _flops(net: Any) -> int:
    with FlopCounterMode(display=False) as counted:
        net(X)
    return int(counted.get_total_flops())


RECORDERS: dict[str, Callable[[Any], Any]] = {
    "export": lambda net: torch.export.export(net, (X,)).module()(X + 1),
    "strict export": lambda net: torch.export.export(net, (X,), strict=True).module()(X + 1),
    "jit.trace": lambda net: torch.jit.trace(net, (X,))(X + 1),
    "make_fx": lambda net: make_fx(net)(X)(X + 1),
    "symbolic_trace": lambda net: torch.fx.symbolic_trace(nn.Sequential(net))(X + 1),
    "symbolic_trace of it": lambda net: torch.fx.symbolic_trace(net)(X + 1),
    "counted": _flops,
}


@pytest.mark.parametrize("name", RECORDERS)
def test_records_are_of_the_original(net: nn.Module, name: str) -> None:
    record = RECORDERS[name]
    with torch.no_grad():
        found = record(optimized(net, strict=True))
        if isinstance(found, torch.Tensor):
            torch.testing.assert_close(found, net(X + 1), rtol=1e-5, atol=1e-5)
        else:
            assert found == record(net) > 0


class Arranging(nn.Module):
    """Has arguments by name, tensors of its own and results of several kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 4)
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.register_buffer("shift", torch.tensor(3.0))
        self.factor = torch.tensor(4.0)

    def forward(self, x: torch.Tensor, *, times: Any = 2) -> dict[str, Any]:
        y = self.inner(x) * self.scale + self.shift - self.factor
        return {"y": (y * times).relu(), "rest": [x, None, 3]}


@pytest.mark.parametrize("training", [False, True])
def test_a_symbolic_trace_of_it_is_that_of_the_original(net: nn.Module, training: bool) -> None:
    for body, x in ((net, X), (Arranging().eval(), X)):
        expected = torch.fx.symbolic_trace(body)
        fast = md.optimize(body, x, device="reference", strict=True).train(training)
        names = set(vars(body))
        found = torch.fx.symbolic_trace(fast)
        assert str(found.graph) == str(expected.graph)
        assert names == set(vars(body))
        around = torch.fx.symbolic_trace(nn.Sequential(fast))
        fast.eval()
        with torch.no_grad():
            torch.testing.assert_close(found.eval()(x), body(x), rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(around.eval()(x), body(x), rtol=1e-5, atol=1e-5)
    with torch.no_grad():
        torch.testing.assert_close(found(x, times=5)["y"], body(x, times=5)["y"])


def test_training_is_transformed_by_pytorch_with_a_warning(net: nn.Module) -> None:
    body = nn.Sequential(nn.Linear(3, 4), nn.ReLU()).eval()
    x = examples(5, 2, 3)
    fast = md.optimize(body, examples(2, 3), device="reference").train()
    with pytest.warns(MiniDNNWarning, match=r"within a transform of torch\.func"):
        found = torch.vmap(fast)(x)
    torch.testing.assert_close(found, torch.vmap(body)(x))
    strict = md.optimize(body, examples(2, 3), device="reference", strict=True).train()
    with pytest.raises(UnsupportedError, match=r"within a transform of torch\.func"):
        torch.vmap(strict)(x)


def test_a_network_around_it_is_compiled_without_it(net: nn.Module) -> None:
    """torch.compile runs it between two pieces of its own."""
    fast = optimized(net)
    calls: list[int] = []
    (part,) = fast.programs[0].parts
    program = part.executable.program

    class Counted:
        def run(self, inputs: Any, outputs: Any) -> None:
            calls.append(1)
            program.run(inputs, outputs)

    part.executable.program = Counted()
    outer = nn.Sequential(nn.ReLU(), fast, nn.Linear(64, 2)).eval()
    with torch.no_grad():
        compiled = torch.compile(outer, backend="eager")
        for x in (X, X + 1):
            found = compiled(x)
            torch.testing.assert_close(found, outer[2](net(x.relu())), rtol=1e-5, atol=1e-5)
    assert len(calls) == 2 and len(fast.pieces) == 1
    torch._dynamo.reset()
