"""Training in half precision: under autocast, of modules in it, with a scaler; and its refusal.

The reference rounds each value to its dtype, so that these are the numbers that a GPU has, but for
the order of its sums.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import minidnn as md
from minidnn.acceleration.engine import Engine
from minidnn.acceleration.trained import TrainedProgram
from minidnn.backends.cpu import isa
from minidnn.backends.cpu.isa import AVX512, why_no_bfloat16
from minidnn.errors import MiniDNNWarning, UnsupportedError
from tests.torch.steps import trained_programs
from tests.torch.test_trained import DEVICE, program
from tests.torch.test_trained_programs import Custom

REASON = "device 'small' trains in float32"
BFLOAT16 = why_no_bfloat16(AVX512)


@pytest.fixture(params=[DEVICE, "cpu"])
def device(request: pytest.FixtureRequest) -> str:
    """One that computes in bfloat16: the reference, and this processor if it does."""
    if request.param == "cpu" and BFLOAT16 is not None:
        pytest.skip(BFLOAT16)
    return str(request.param)


class Network(nn.Module):
    """Convolutions, normalizations of both kinds, a maximum, a sum, and attention's products."""

    def __init__(self, middle: nn.Module | None = None) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.second = nn.Conv2d(8, 8, 3, padding=1, groups=2, bias=False)
        self.middle = nn.Identity() if middle is None else middle
        self.rows, self.head = nn.LayerNorm(8), nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.pool(self.norm(self.first(x)).relu())
        y = self.middle(F.gelu(self.second(y)) + y).flatten(2).mT
        z = self.rows(y)
        scores = (z @ z.mT / 3).softmax(2)
        return self.head((scores @ y).mean(1))


def inputs(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    return torch.randn(4, 3, 8, 8, generator=random), torch.randint(5, (4,), generator=random)


def loss_of(module: Any, dtype: torch.dtype | None, seed: int = 0) -> torch.Tensor:
    """The loss under autocast to that dtype, or in the module's own."""
    weight = next(module.parameters())
    x, target = (each.to(weight.device) for each in inputs(seed))
    if dtype is None:
        x = x.to(weight.dtype)
    with nullcontext() if dtype is None else torch.autocast(weight.device.type, dtype):
        y = module(x)
        return F.cross_entropy(y if dtype is not None else y.float(), target)


def away(found: Sequence[torch.Tensor], exact: Sequence[torch.Tensor]) -> float:
    """How far tensors are from others, all together, as part of their size."""
    one, other = (torch.cat([t.double().flatten() for t in each]) for each in (found, exact))
    return float((one - other).norm() / other.norm())


def errors_of(net: nn.Module, fast: Any, dtype: torch.dtype | None) -> list[list[float]]:
    """How far gradients are from float64, for several sets of weights: minidnn's and PyTorch's."""
    errors = []
    for seed in range(5):
        torch.manual_seed(seed)
        for module in net.modules():
            if hasattr(module, "reset_parameters"):
                module.reset_parameters()
        own, wide = copy.deepcopy(net), copy.deepcopy(net).double()
        found = []
        for module in (fast, own, wide):
            module.zero_grad()
            loss_of(module, None if module is wide else dtype, seed).backward()
            found.append([each.grad for each in module.parameters()])
        exact = found.pop()
        for mine, theirs in zip(*found, strict=True):
            assert mine.dtype == theirs.dtype
        errors.append([away(each, exact) for each in found])
        for name, tensor in net.state_dict().items():
            if "running" in name:
                torch.testing.assert_close(tensor, own.state_dict()[name], rtol=2e-2, atol=2e-3)
    return errors


@pytest.mark.parametrize("how", ["autocast", "module"])
def test_gradients_are_as_near_as_pytorchs(how: str, device: str) -> None:
    check_gradients(torch.bfloat16, how, device)


@pytest.mark.parametrize("how", ["autocast", pytest.param("module", marks=pytest.mark.full)])
def test_gradients_in_float16(how: str) -> None:
    check_gradients(torch.float16, how, DEVICE)


def check_gradients(half: torch.dtype, how: str, device: str) -> None:
    """They are as near as PyTorch's in the median: rounding turns some signs."""
    net = Network()
    net = net.to(half) if how == "module" else net
    fast = md.optimize(net, device=device, strict=True).train()
    errors = errors_of(net, fast, half if how == "autocast" else None)
    ours, theirs = np.median(np.array(errors), axis=0)
    assert ours <= 2 * theirs, errors
    (part,) = program(fast).parts
    (pair,) = part.pairs.values()
    kept = pair.forward.part.graph.outputs[pair.outputs :]
    name = str(half).removeprefix("torch.")
    assert {v.dtype for v in kept if v.type.rank == 4 and v.type.plane[2:] != (1, 1)} == {name}


def test_results_have_pytorchs_dtypes(device: str) -> None:
    class Several(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> Any:
            y = self.linear(x)
            with torch.autocast("cpu", enabled=False):
                z = y.float() @ self.linear.weight
            return y, y.exp(), y + x, F.layer_norm(x, (4,)), z, y.argmax(1)

    net = Several()
    fast, x = md.optimize(net, device=device), torch.randn(3, 4)
    with torch.autocast("cpu", torch.bfloat16):
        found, own = fast(x), net(x)
    for one, other in zip(found, own, strict=True):
        assert one.dtype == other.dtype
        torch.testing.assert_close(one, other, rtol=2e-2, atol=2e-2)
    # Autocast is off in the block, as around a piece in float32.
    assert "it is in a block under autocast, which PyTorch honours" in fast.explain()


def test_what_multiplies_in_float32_is_left(device: str) -> None:
    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.one(x).relu().float()
            return self.two((y @ y.mT @ y).to(x.dtype))

    torch.manual_seed(0)
    net = Wide().bfloat16()
    own = copy.deepcopy(net)
    fast, x = md.optimize(net.train(), device=device), torch.randn(3, 4).bfloat16()
    for module in (fast, own):
        module(x).float().sum().backward()
    for one, other in zip(net.parameters(), own.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=5e-2, atol=5e-2)
    assert "it multiplies in float32, between values in half precision" in fast.explain()


def test_a_scaler() -> None:
    check_scaler(DEVICE, "cpu")


def check_scaler(device: str, memory: str) -> None:
    """It begins with a scale at which gradients in float16 are infinite, and finds one that fits,
    as beside PyTorch's."""
    torch.manual_seed(0)
    nets: list[Any] = [Network().to(memory)]
    nets.append(copy.deepcopy(nets[0]))
    scales: list[list[float]] = []
    for module in (md.optimize(nets[0].train(), device=device), nets[1]):
        optimizer = torch.optim.SGD(module.parameters(), 0.05, 0.9)
        scaler = torch.amp.GradScaler(memory, 2.0**22, growth_interval=3)
        scales.append([])
        for step in range(10):
            optimizer.zero_grad()
            scaler.scale(loss_of(module, torch.float16, step)).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(module.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            scales[-1].append(scaler.get_scale())
    assert scales[0][-1] < 2.0**22
    assert max(scales[0][-1] / scales[1][-1], scales[1][-1] / scales[0][-1]) <= 4
    for one, other in zip(*(each.parameters() for each in nets), strict=True):
        assert bool(one.isfinite().all())
        torch.testing.assert_close(one, other, rtol=0.1, atol=0.05)


def test_evaluation_and_float32_in_between(device: str) -> None:
    net = Network()
    own = copy.deepcopy(net)
    fast, (x, _) = md.optimize(net.train(), device=device), inputs()
    for _ in range(2):
        loss_of(fast, torch.bfloat16).backward()
        fast.eval()
        own.load_state_dict(net.state_dict())
        own.eval()
        with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
            found = fast(x)
            assert found.dtype is torch.bfloat16 and not found.requires_grad
            torch.testing.assert_close(found, own(x), rtol=3e-2, atol=3e-2)
        with torch.no_grad():
            torch.testing.assert_close(fast(x), own(x), rtol=1e-4, atol=1e-5)
        fast.train(), own.train()
    torch.testing.assert_close(fast(x), own(x), rtol=1e-4, atol=1e-5)
    assert len(trained_programs(fast)) == 3  # under autocast in both modes, and in float32


def test_a_layer_of_somebodys_own_in_the_middle(device: str) -> None:
    torch.manual_seed(0)
    net = Network(Custom())
    own = copy.deepcopy(net)
    fast = md.optimize(net.train(), device=device)
    for module in (fast, own):
        loss_of(module, torch.bfloat16).backward()
    assert away([p.grad for p in net.parameters()], [p.grad for p in own.parameters()]) < 0.05
    (kept,) = trained_programs(fast)
    assert isinstance(kept, TrainedProgram) and len(kept.parts) == 2


def test_a_module_whose_code_cannot_be_captured() -> None:
    class Looking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = Network()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.body(x)
            return y if float(y.detach().sum()) < 1e9 else -y

    torch.manual_seed(0)
    net = Looking()
    own = copy.deepcopy(net)
    fast = md.optimize(net.train(), device=DEVICE)
    for module in (fast, own):
        loss_of(module, torch.bfloat16).backward()
    assert away([p.grad for p in net.parameters()], [p.grad for p in own.parameters()]) < 0.05
    assert "trained in bfloat16 on device 'reference'" in fast.explain()


def test_a_gradient_of_an_input_in_half_precision(device: str) -> None:
    torch.manual_seed(0)
    net = Network().bfloat16()
    own = copy.deepcopy(net)
    fast = md.optimize(net.train(), device=device)
    given = [inputs()[0].bfloat16().requires_grad_() for _ in range(2)]
    for module, x in zip((fast, own), given, strict=True):
        module(x).float().square().sum().backward()
    assert given[0].grad.dtype is torch.bfloat16
    assert away([given[0].grad], [given[1].grad]) < 0.05


@pytest.fixture
def single(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device without half precision."""
    monkeypatch.setattr(Engine, "why_not_mixed", lambda self, half: REASON)


@pytest.mark.usefixtures("single")
def test_a_device_that_trains_in_float32_leaves_it_to_pytorch() -> None:
    net = Network().train()
    fast = md.optimize(net, device=DEVICE)
    said = f"autocast is on, which PyTorch honours, as {REASON}"
    with pytest.warns(MiniDNNWarning, match=said):
        loss = loss_of(fast, torch.float16)
    torch.testing.assert_close(loss, loss_of(net, torch.float16))
    strict = md.optimize(net, device=DEVICE, strict=True)
    with pytest.raises(UnsupportedError, match=said):
        loss_of(strict, torch.float16)
    net.bfloat16()
    with pytest.warns(MiniDNNWarning, match=f"it computes in bfloat16, and {REASON}"):
        loss_of(fast, None).backward()


@pytest.mark.usefixtures("single")
def test_there_evaluation_under_autocast_is_pytorchs() -> None:
    net = Network().eval()
    fast = md.optimize(net, device=DEVICE)
    with pytest.warns(MiniDNNWarning, match=f"autocast is on, which PyTorch honours, as {REASON}"):
        loss = loss_of(fast, torch.bfloat16)
    torch.testing.assert_close(loss, loss_of(net, torch.bfloat16))


def test_which_devices_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def reasons(half: str) -> dict[str, str | None]:
        return {name: Engine(name).why_not_mixed(half) for name in ("cuda", "cuda:1", "cpu")}

    able: dict[str, str | None] = {"cuda": None, "cuda:1": None}
    if BFLOAT16 is None:
        assert reasons("bfloat16") == able | {"cpu": None}
        assert reasons("float16") == able | {"cpu": "device 'cpu' trains in float32 and bfloat16"}
        for option, why in ({"isa": "avx2"}, "isa='avx2'"), ({"accuracy": "high"}, "accuracy="):
            found = Engine("cpu", options=option).why_not_mixed("bfloat16")
            assert why in str(found) and "bfloat16" in str(found)
    monkeypatch.setattr(isa, "processor_flags", lambda: frozenset(AVX512.flags))
    said = "device 'cpu' trains in float32, and not in bfloat16: this processor lacks avx512_bf16"
    for half in ("bfloat16", "float16"):
        assert str(reasons(half)["cpu"]).startswith(said)


@pytest.mark.skipif(BFLOAT16 is not None, reason=str(BFLOAT16))
def test_float16_on_the_cpu_is_pytorchs() -> None:
    net = Network().train()
    fast = md.optimize(net, device="cpu")
    said = "autocast is on, which PyTorch honours, as device 'cpu' trains in float32 and bfloat16"
    with pytest.warns(MiniDNNWarning, match=said):
        loss = loss_of(fast, torch.float16)
    torch.testing.assert_close(loss, loss_of(net, torch.float16))


@pytest.mark.skipif(BFLOAT16 is not None, reason=str(BFLOAT16))
@pytest.mark.parametrize("lying", ["contiguous", "channels last", "strided", "backwards"])
def test_tensors_on_the_cpu_may_lie_in_any_way(lying: str) -> None:
    """Those that lie as PyTorch's usually do are read where they lie."""
    torch.manual_seed(0)
    net = Network().bfloat16()
    own = copy.deepcopy(net)
    fast, x = md.optimize(net.train(), device="cpu", strict=True), inputs()[0].bfloat16()
    if lying == "channels last":
        x = x.contiguous(memory_format=torch.channels_last)
    elif lying == "strided":
        x = x.repeat_interleave(2, 3)[..., ::2]
    elif lying == "backwards":
        x = x.mT.contiguous().mT
    for module in (fast, own):
        module(x).float().square().sum().backward()
    assert away([p.grad for p in net.parameters()], [p.grad for p in own.parameters()]) < 0.05
