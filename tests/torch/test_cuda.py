"""optimize and torch.compile on a GPU: the same memory, the current stream, moves followed."""

from __future__ import annotations

import copy
from collections.abc import Generator
from typing import Any

import pytest
import torch
from torch import nn

import minidnn as md
from minidnn.acceleration import dynamo
from minidnn.backends.backend import PREFERENCE, default_device
from minidnn.errors import DeviceError, MiniDNNWarning, UnsupportedError
from tests.torch.networks import Noted, UNet, errors, example, torchvision

pytestmark = pytest.mark.gpu


EXACT = 5e-6
"""Relative to the largest output: Winograd's algorithms stay below, TF32 is at 1e-4 and above."""


class Strange(nn.Module):
    """A user's own layer of operations that nobody knows."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.fft.ifft(torch.fft.fft(x)).real


def network(middle: nn.Module | None = None) -> Any:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        middle or nn.Tanh(),
        nn.Conv2d(16, 8, 1),
        nn.ReLU(True),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    ).eval()


def examples(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(2))


@pytest.fixture(autouse=True)
def exact() -> Generator[None]:
    """PyTorch computes in float32, too.  (These are no attributes that could be deleted, which is
    how monkeypatch takes them back from pytest 9.2 on.)"""
    backends = torch.backends
    flags = backends.cudnn.allow_tf32, backends.cuda.matmul.allow_tf32
    backends.cudnn.allow_tf32 = backends.cuda.matmul.allow_tf32 = False
    yield
    backends.cudnn.allow_tf32, backends.cuda.matmul.allow_tf32 = flags


def close(got: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("middle", [None, Strange()])
def test_it_gives_what_pytorch_gives(middle: nn.Module | None) -> None:
    net, x = network(middle).cuda(), examples(2, 3, 16, 16).cuda()
    fast = md.optimize(net, x)
    with torch.inference_mode():
        y = fast(x)
        assert y.device == x.device
        close(y, net(x))
    assert {program.engine.device for program in fast.programs} == {"cuda"}
    parts = [part for program in fast.programs for part in program.parts]
    assert len(parts) == (1 if middle is None else 2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_parts_and_pytorch_work_in_the_same_memory(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted, x = Noted(), examples(2, 3, 16, 16).to("cuda", dtype)
    fast = md.optimize(network(noted).to("cuda", dtype), x)
    parts = [part for program in fast.programs for part in program.parts]
    seen: list[list[int]] = []

    def following(inner: Any) -> Any:
        def run_on(stream: int, inputs: list[int], outputs: list[int], donated: int = 0) -> None:
            seen.extend([list(inputs), list(outputs)])
            inner(stream, inputs, outputs, donated)

        return run_on

    for part in parts:
        monkeypatch.setattr(part._program, "run_on", following(part._program.run_on))
    with torch.no_grad():
        y = fast(x)
    given, *between, result = seen
    assert (given, result) == ([x.data_ptr()], [y.data_ptr()])
    assert all(place in between for place in noted.places)
    if dtype is torch.float16:  # in exact float32 cuDNN is at the ends, whose addresses are its own
        ((reads, writes), (again, _)) = (in_place(part) for part in (parts[0], parts[-1]))
        assert (reads, writes, again) == (True, True, True)


def in_place(part: Any) -> list[bool]:
    """Of a part's inputs, and then its outputs: whether kernels work in PyTorch's memory, so that
    nothing was copied at the last call."""
    (instance,) = set(part._program._instances.values())
    return [end.is_direct for end in (*instance.takes, *instance.gives)]


class Last(nn.Module):
    """Looks at values, and gives its operand with channels last."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        order = torch.channels_last if x.mean() < 1e9 else torch.contiguous_format
        return x.contiguous(memory_format=order)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_tensors_that_lie_in_another_way_are_converted(dtype: torch.dtype) -> None:
    net, x = network(Last()).to("cuda", dtype), examples(2, 3, 16, 16).to("cuda", dtype)
    fast = md.optimize(net, x)
    room = torch.zeros(x.numel() + 1, dtype=dtype, device="cuda")
    with torch.inference_mode():
        y = fast(x)
        torch.testing.assert_close(y, net(x), rtol=1e-2, atol=1e-2)
        others = [x.to(memory_format=torch.channels_last), x.repeat(1, 1, 1, 2)[..., :16]]
        others.append(room[1:].view(x.shape).copy_(x))  # contiguous, and not where it may begin
        for other in others:
            assert torch.equal(fast(other), y)
        assert torch.equal(fast(x), y)
    assert y.is_contiguous()


class Looking(nn.Module):
    """Looks at values, so that it cannot be captured, and gives what it was given."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.mean() < 1e9 else x.abs()


def test_a_module_that_cannot_be_captured_stands_in_two_places() -> None:
    look = Looking()
    net, x = nn.Sequential(look, network(look), look).eval().cuda(), examples(2, 3, 16, 16).cuda()
    fast = md.optimize(net, x)
    assert len(fast.pieces) > 1 and all(program.parts for program in fast.programs)
    with torch.inference_mode():
        close(fast(x), net(x))
        close(fast(2 * x), net(2 * x))


def test_transforms_are_pytorchs() -> None:
    net, x = network().cuda(), examples(2, 3, 16, 16).cuda()
    fast = md.optimize(net, x)
    with pytest.warns(MiniDNNWarning, match="within a transform of torch.func"), torch.no_grad():
        close(torch.vmap(fast)(x[:, None]), torch.vmap(net)(x[:, None]))
    with torch.no_grad():
        close(fast(x), net(x))


def test_options_that_are_not_legal_are_refused_at_once() -> None:
    with pytest.raises(UnsupportedError, match="option 'speed' of device 'cuda'"):
        md.optimize(network(), device="cuda", speed=1)
    with pytest.raises(UnsupportedError, match="precision='int8' on device 'cuda'"):
        md.optimize(network(), device="cuda", precision="int8")
    md.optimize(network(), device="cuda", precision="float16", tune=False)


def test_weights_of_inference_mode() -> None:
    with torch.inference_mode():
        net, x = network().cuda(), examples(2, 3, 16, 16).cuda()
        fast = md.optimize(net, x)
        assert fast.programs[0].watch.uncounted == 8
        assert fast.programs[0].watch.is_as_it_was()
        close(fast(x), net(x))
        net[0].weight.mul_(2)
        fast.refresh()
        close(fast(x), net(x))


def test_a_move_is_followed() -> None:
    x = examples(2, 3, 16, 16)
    fast = md.optimize(network(), x, strict=True)
    expected = fast(x)
    assert fast.cuda() is fast
    close(fast(x.cuda()).cpu(), expected)
    fast.cpu()
    close(fast(x), expected)
    on_cpu = default_device([name for name in PREFERENCE if name != "cuda"])[0]
    assert {program.engine.device for program in fast.programs} == {"cuda", on_cpu}


def test_a_move_away_from_a_named_device_is_refused() -> None:
    x = examples(2, 3, 16, 16)
    fast = md.optimize(network(), x, device="reference")
    refused = "device='reference' computes on tensors of PyTorch's 'cpu'"
    with pytest.raises(DeviceError, match=refused):
        fast.cuda()(x.cuda())


def test_changed_weights_are_noticed() -> None:
    net, x = network().cuda(), examples(2, 3, 16, 16).cuda()
    fast = md.optimize(net, x)
    with torch.no_grad():
        fast(x)
        fast(x)
        assert fast.programs[0].starts_early
        net[0].weight.mul_(2)  # what has begun by then is thrown away
        close(fast(x), net(x))
        close(fast(x), net(x))


def test_what_a_call_has_begun_is_thrown_away_where_it_is_more() -> None:
    net, x = network().cuda(), examples(2, 3, 16, 16).cuda()
    fast, other = md.optimize(net, x), torch.cuda.Stream()
    with torch.inference_mode():
        for _ in range(2):
            close(fast(x), net(x))
        hook = fast.register_forward_hook(lambda module, args, result: result * 2)
        for _ in range(2):
            close(fast(x), net(x) * 2)
        hook.remove()
        for _ in range(2):
            close(fast(x), net(x))
        expected = net(x * 2)
        other.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(other):
            y = fast(x * 2)
        other.synchronize()
        close(y, expected)
    with torch.autocast("cuda"), torch.no_grad():
        assert fast(x).dtype is net(x).dtype is torch.float16
    fast.train()
    assert fast(x).requires_grad
    fast.eval()
    with torch.no_grad():
        for _ in range(2):
            close(fast(x), net(x))


@pytest.mark.parametrize("middle", [None, Strange()], ids=["whole", "in pieces"])
def test_the_shortest_way_is_left_where_a_call_is_more(middle: nn.Module | None) -> None:
    net = network(middle).cuda()
    x = examples(2, 3, 16, 16).cuda()
    fast = md.optimize(net, x)
    with torch.inference_mode():
        expected = net(x)
        for _ in range(2):
            close(fast(x), expected)
        for other in (x[:1], x.to(memory_format=torch.channels_last), x):
            close(fast(other), net(other))
    close(fast(x), expected)
    with torch.autocast("cuda"), torch.no_grad():
        assert fast(x).dtype is net(x).dtype is torch.float16
    with torch.no_grad():
        net[0].bias.add_(1)
        for _ in range(2):
            close(fast(x), net(x))


def test_work_runs_on_pytorchs_current_stream() -> None:
    net, x = network(Strange()).cuda(), examples(4, 3, 64, 64).cuda()
    fast = md.optimize(net, x)
    stream = torch.cuda.Stream()
    with torch.inference_mode():
        expected = net(x * 2)
        fast(x)
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            for _ in range(50):
                y = fast(x * 2)
        stream.synchronize()
    close(y, expected)


def test_results_are_fresh_tensors() -> None:
    net, x = network().cuda(), examples(2, 3, 16, 16).cuda()
    fast = md.optimize(net, x)
    with torch.inference_mode():
        first = fast(x)
        kept = first.clone()
        fast(x * 3)
        close(first, kept)


@pytest.mark.parametrize("precision", ["float16", "bfloat16", "tf32"])
def test_precisions_keep_the_dtypes_of_results(precision: str) -> None:
    net, x = network().cuda(), examples(2, 3, 16, 16).cuda()
    fast = md.optimize(net, x, precision=precision)
    with torch.inference_mode():
        y = fast(x)
        assert y.dtype == torch.float32
        torch.testing.assert_close(y, net(x), rtol=0.05, atol=0.02)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("precision", [None, "float32"])
def test_modules_of_half_precision(dtype: torch.dtype, precision: str | None) -> None:
    """They are taken whole, and computed in their own precision whatever is asked."""
    net, x = network().cuda(), examples(2, 3, 16, 16).cuda()
    with torch.no_grad():
        exact = net(x)
    fast = md.optimize(net.to(dtype), x.to(dtype), precision=precision, strict=True)
    (part,) = fast.programs[0].parts
    own = str(dtype).removeprefix("torch.")
    assert {value.dtype for value in part.executable.graph.values} == {own}
    assert part.executable.precision == (precision or own)
    with torch.inference_mode():
        y = fast(x.to(dtype))
        assert y.dtype == dtype
        error, pytorchs = ((r.float() - exact).abs().max() for r in (y, net(x.to(dtype))))
    assert error <= 2 * max(float(pytorchs), 1e-3 * float(exact.abs().max()))


def test_torch_compile() -> None:
    net, x = network(Strange()).cuda(), examples(2, 3, 16, 16).cuda()
    torch._dynamo.reset()
    fast = torch.compile(net, backend=dynamo.backend)
    with torch.inference_mode():
        close(fast(x), net(x))
        close(fast(x[:1]), net(x[:1]))


@pytest.mark.parametrize("way", ["optimize", "torch.compile"])
def test_statistics_that_training_writes_are_noticed(way: str) -> None:
    net, x = network().cuda().eval(), examples(2, 3, 16, 16).cuda()
    torch._dynamo.reset()
    fast: Any = md.optimize(net, x)
    if way == "torch.compile":
        fast = torch.compile(net, backend=dynamo.backend)
    with torch.no_grad():
        close(fast(x), net(x))
        before = net(x).clone()
        net.train()(3 * x + 1)
        close(fast.eval()(x), net.eval()(x))
    assert not torch.allclose(net(x), before, rtol=1e-2)


def test_a_network_that_goes_down_and_up_is_taken_whole() -> None:
    torch.manual_seed(0)
    net, x = UNet().eval().cuda(), examples(2, 3, 27, 22).cuda()
    ours, pytorchs = errors(net, md.optimize(net, x, strict=True), x)
    assert ours <= max(3 * pytorchs, EXACT)
    half, given = copy.deepcopy(net).half(), x.half()
    fast = md.optimize(half, given, strict=True)
    ours, pytorchs = (
        float((each(given).float() - net(x)).abs().max().detach()) for each in (fast, half)
    )
    assert ours <= 3 * pytorchs


@pytest.mark.early
@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v3_large", "shufflenet_v2_x1_0"])
def test_networks_are_taken_whole(name: str) -> None:
    net, x = torchvision(name).cuda(), example(name, 2, 64).cuda()
    fast = md.optimize(net, x, strict=True)
    ours, pytorchs = errors(net, fast, x)
    assert ours <= max(3 * pytorchs, EXACT)
