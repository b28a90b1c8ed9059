"""optimize: the same module to its callers; parts, weights, sizes, errors."""

from __future__ import annotations

import copy
import logging
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import minidnn as md
from minidnn.errors import DeviceError, GraphError, MiniDNNWarning, UnsupportedError


def examples(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(2))


class Strange(nn.Module):
    """A user's own layer of operations that nobody knows."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.fft.ifft(torch.fft.fft(x)).real * 2


class Looking(nn.Module):
    """A user's own layer that cannot be captured: it looks at values, and leaves PyTorch."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(2.0))
        self.calls = 0

    def forward(self, x: torch.Tensor, shift: float = 0.0) -> torch.Tensor:
        self.calls += 1
        if x.sum() > 0:
            return x * self.factor + shift
        return torch.from_numpy(np.cos(x.detach().numpy()))


class Network(nn.Module):
    def __init__(self, middle: nn.Module) -> None:
        super().__init__()
        self.begin = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(True))
        self.middle = middle
        self.end = nn.Sequential(
            nn.Conv2d(8, 4, 1), nn.ReLU(True), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.begin(x)
        return self.end(self.middle(y) + y)


def make(middle: nn.Module | None = None, seed: int = 0) -> Network:
    torch.manual_seed(seed)
    return Network(middle or nn.Tanh()).eval()


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name.startswith("minidnn.")]


def close(got: Any, expected: Any) -> None:
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


def optimized(module: nn.Module, *args: Any, **options: Any) -> Any:
    options.setdefault("device", "reference")
    return md.optimize(module, args or None, **options)


def test_a_network_that_is_known_throughout_is_one_part() -> None:
    net, x = make(), examples(2, 3, 8, 8)
    fast = md.optimize(net, x, device="reference", strict=True)
    with torch.no_grad():
        close(fast(x), net(x))
    (program,) = fast.programs
    assert len(program.parts) == 1
    assert program._direct is not None
    assert fast.explain().startswith(
        "Network for float32[2, 3, 8, 8] on device 'reference': 9 of 9 operations taken, in 1 part"
    )


def test_the_cpu_engine_is_taken_for_tensors_on_the_cpu() -> None:
    net, x = make(), examples(2, 3, 8, 8)
    with torch.inference_mode():
        close(md.optimize(net, x)(x), net(x))


def kinds(fast: Any) -> list[list[str]]:
    parts = [part for program in fast.programs for part in program.parts]
    return [[node.op.name for node in part.part.graph.nodes] for part in parts]


@torch.no_grad()
def test_an_unknown_operation_in_the_middle_runs_in_its_place() -> None:
    net, x = make(Strange()), examples(2, 3, 8, 8)
    fast = optimized(net, x)
    close(fast(x), net(x))
    close(fast(-x), net(-x))
    (program,) = fast.programs
    assert [level.taken for level in program.levels] == [True, False, True]
    # What surrounds it is whole: the convolution before, and all after it.
    first, last = kinds(fast)
    assert first == ["Conv2d", "BatchNorm", "ReLU"]
    assert last[-5:] == ["Add", "Conv2d", "ReLU", "AdaptiveAvgPool2d", "Reshape"]


@torch.no_grad()
def test_what_surrounds_a_layer_that_looks_at_values_is_whole() -> None:
    net, x = make(Looking()), examples(1, 3, 8, 8)
    fast = optimized(net, x)
    assert net.middle.calls == 0
    hooked: list[int] = []
    net.middle.register_forward_hook(lambda *_: hooked.append(1))
    close(fast(x), net(x))
    net.middle.factor.fill_(5.0)
    for each in (x, -x):
        close(fast(each), net(each))
    assert net.middle.calls == 6 and len(hooked) == 6
    assert ["Conv2d", "BatchNorm", "ReLU"] in kinds(fast)
    assert ["Add", "Conv2d", "ReLU", "AdaptiveAvgPool2d", "Reshape"] in kinds(fast)
    assert "goes on in Python: " in fast.explain()


def test_explain_says_what_was_left_and_why_all_at_once() -> None:
    fast = optimized(make(Strange()), examples(1, 3, 8, 8))
    lines = fast.explain().splitlines()
    assert lines[0] == (
        "Network for float32[1, 3, 8, 8] on device 'reference': 10 of 13 operations "
        "taken, in 2 parts"
    )
    assert lines[1:5] == [
        "left to PyTorch:",
        "  middle: aten.fft_fft.default: it is not known",
        "  middle: aten.fft_ifft.default: a tensor has dtype complex64",
        "  middle: aten.view_as_real.default: a tensor has dtype complex64",
    ]
    assert any(
        line.startswith("part 1: 3 nodes, of %")
        and line.endswith(": float32[1, 3, 8, 8] makes %begin.2: float32[1, 8, 8, 8]")
        for line in lines
    )
    assert any("part 2: " in line for line in lines)


def test_strict_refuses_what_is_not_taken_whole() -> None:
    with pytest.raises(UnsupportedError) as caught:
        optimized(make(Strange()), examples(1, 3, 8, 8), strict=True)
    assert str(caught.value).startswith(
        "strict=True, and not all of Network is taken:\n"
        "  middle: aten.fft_fft.default: it is not known\n"
    )


def test_a_network_of_which_nothing_is_known_warns() -> None:
    class Only(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.fft.fft(x)

    x = examples(1, 3, 8, 8)
    with pytest.warns(MiniDNNWarning) as caught:
        fast = optimized(Only().eval(), x)
    said = [str(each.message) for each in caught]
    assert said[0].startswith("Only: a piece runs in PyTorch: nothing of it is taken:")
    assert said[1].startswith("Only: nothing was taken, all runs in PyTorch:")
    close(fast(x), Only()(x))


def test_a_network_that_cannot_be_captured_as_a_whole_says_so() -> None:
    class Deciding(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.relu() if x.sum() > 0 else x

    with pytest.raises(UnsupportedError) as caught:
        optimized(Deciding().eval(), examples(1, 3), strict=True)
    text = str(caught.value)
    assert text.startswith(
        "strict=True, and Deciding cannot be captured whole: Data-dependent branching"
    )


class Manifold(nn.Module):
    """Arguments and results of many kinds."""

    def forward(
        self, a: torch.Tensor, pair: tuple[torch.Tensor, float], *, more: dict[str, Any]
    ) -> dict[str, Any]:
        b, factor = pair
        total = torch.relu(a + b) * factor + more["shift"]
        return {"total": total, "rest": [b, torch.tanh(total).flatten(1), 3, None], "same": total}


def test_arguments_and_results_of_many_kinds() -> None:
    net, x, y = Manifold().eval(), examples(2, 3, 4), examples(2, 3, 4)
    fast = optimized(net)
    for factor, shift in ((2.0, 1.0), (3.0, 1.0), (2.0, y)):
        got = fast(x, (y, factor), more={"shift": shift})
        expected = net(x, (y, factor), more={"shift": shift})
        assert list(got) == list(expected)
        close(got["total"], expected["total"])
        close(got["rest"][1], expected["rest"][1])
        assert got["rest"][0] is y
        assert got["rest"][2:] == [3, None]
    assert len(fast.programs) == 3


def test_memory_is_shared_without_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = make(Strange()), examples(1, 3, 8, 8)
    fast = optimized(net, x)
    seen: list[int] = []
    for part in fast.programs[0].parts:
        program = part.executable.program
        inner = program.run

        def run(inputs: Any, outputs: Any, inner: Any = inner) -> None:
            seen.extend(array.ctypes.data for array in inputs)
            inner(inputs, outputs)

        monkeypatch.setattr(part.executable, "program", type("P", (), {"run": staticmethod(run)})())
    with torch.no_grad():
        fast(x)
    assert seen[0] == x.data_ptr()


# Weights


def test_changed_weights_are_noticed_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    net, x = make(), examples(2, 3, 8, 8)
    fast = optimized(net, x)

    def changed(name: str) -> None:
        caplog.clear()
        with torch.no_grad(), caplog.at_level(logging.INFO, "minidnn.acceleration"):
            close(fast(x), net(x))
        (message,) = [text for text in said(caplog) if "compiled again" in text]
        assert message.startswith("Network: compiled again in ")
        assert message.endswith(f"weight {name} changed")
        caplog.clear()
        with torch.no_grad(), caplog.at_level(logging.INFO, "minidnn.acceleration"):
            close(fast(x), net(x))
        assert said(caplog) == []

    with torch.no_grad():
        net.begin[0].weight.mul_(1.5)
    changed("begin.0.weight")
    net.begin[1].running_mean.add_(0.25)
    changed("begin.1.running_mean")
    net.end[0].bias.data = torch.ones(4)
    changed("end.0.bias")
    fast.load_state_dict(make(seed=5).state_dict())
    changed("begin.0.weight")
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    net(x).sum().backward()
    optimizer.step()
    changed("begin.0.weight")


@torch.no_grad()
def test_changes_that_pytorch_does_not_count() -> None:
    net, x = make(), examples(2, 3, 8, 8)
    fast = optimized(net, x)
    net.end[0].weight.data.mul_(3.0)
    close(fast(x), net(x))
    net.end[0].weight.numpy()[0] = 2.0
    fast.refresh()
    close(fast(x), net(x))


@torch.no_grad()
def test_replaced_weights_and_modules_are_captured_anew() -> None:
    net, x = make(), examples(2, 3, 8, 8)
    fast = optimized(net, x)
    for channels in (6, 5):  # weights of another type
        net.end[0].weight = nn.Parameter(examples(channels, 8, 1, 1))
        net.end[0].bias = nn.Parameter(examples(channels))
        close(fast(x), net(x))
    net.end[0] = nn.Conv2d(8, 6, 1)
    close(fast(x), net(x))
    net.middle = nn.Sigmoid()
    close(fast(x), net(x))
    nn.utils.parametrizations.weight_norm(net.begin[0])
    close(fast(x), net(x))
    assert len(fast.pieces) == 5


# Sizes


@torch.no_grad()
def test_another_size_compiles_once_and_few_are_kept(caplog: pytest.LogCaptureFixture) -> None:
    net = make()
    fast = optimized(net, examples(1, 3, 8, 8), sizes=2)
    with caplog.at_level(logging.INFO, "minidnn.acceleration"):
        for batch in (1, 2, 1, 2):
            x = examples(batch, 3, 8, 8)
            close(fast(x), net(x))
    (message,) = said(caplog)
    assert message.startswith("Network: compiled in ")
    assert message.endswith(" s for float32[2, 3, 8, 8]")
    caplog.clear()
    with caplog.at_level(logging.INFO, "minidnn.acceleration"):
        for shape in ((1, 3, 8, 9), (2, 3, 8, 8), (3, 3, 8, 8), (1, 3, 8, 8), (1, 3, 8, 9)):
            fast(examples(*shape))
    messages = said(caplog)
    warnings = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert warnings == [messages[1]]
    assert messages[1] == (
        "Network: 3 sizes of arguments and modules so far, of which sizes=2 are kept: one that was "
        "dropped is compiled again when it comes again; sizes= as many as there will be keeps them "
        "all (this is said once)"
    )
    assert messages[-1].endswith(
        " s for float32[1, 3, 8, 9], which had been dropped: 4 sizes of arguments and modules so "
        "far"
    )
    assert len(fast.programs) == 2
    fast = optimized(net, examples(1, 3, 8, 8), sizes=4)  # as many as the message says
    caplog.clear()
    with caplog.at_level(logging.INFO, "minidnn.acceleration"):
        for _ in range(2):
            for shape in ((1, 3, 8, 9), (2, 3, 8, 8), (3, 3, 8, 8), (1, 3, 8, 8)):
                fast(examples(*shape))
    assert len(said(caplog)) == 3


# A drop-in module


def test_it_is_a_module_like_the_original() -> None:
    net, x = make(), examples(1, 3, 8, 8)
    fast = optimized(net, x)
    assert isinstance(fast, nn.Module)
    assert list(fast.state_dict()) == list(net.state_dict())
    assert [name for name, _ in fast.named_parameters()] == [n for n, _ in net.named_parameters()]
    assert [name for name, _ in fast.named_modules()][1:] == [n for n, _ in net.named_modules()][1:]
    assert fast.begin is net.begin
    assert fast.original is net
    assert repr(fast) == f"OptimizedModule({net!r})"
    with pytest.raises(AttributeError, match="'Network' object has no attribute 'nothing'"):
        _ = fast.nothing
    outer = nn.Sequential(fast, nn.ReLU())
    assert list(outer.state_dict()) == [f"0.{name}" for name in net.state_dict()]
    outer.load_state_dict({f"0.{k}": v for k, v in make(seed=3).state_dict().items()})
    close(outer(x), torch.relu(make(seed=3)(x)))


def test_changing_to_training_mode_and_back() -> None:
    net, x = make(), examples(4, 3, 8, 8)
    fast = optimized(net, x)
    assert fast.train() is fast
    assert net.training and net.begin[1].training
    mean = net.begin[1].running_mean.clone()
    loss = fast(x).sum()
    loss.backward()
    assert net.begin[0].weight.grad is not None
    assert not torch.equal(net.begin[1].running_mean, mean)
    assert fast.eval() is fast
    assert not net.training
    close(fast(x), net(x))
    with torch.no_grad():
        assert not fast(x).requires_grad


@torch.no_grad()
def test_a_submodule_put_into_training_mode() -> None:
    net, x = make(nn.Dropout(0.5)), examples(1, 3, 8, 8)
    fast = optimized(net, x)
    net.middle.train()
    fast(x)
    assert "it is in training mode, and draws random numbers" in fast.explain()
    torch.manual_seed(7)
    first = fast(x)
    torch.manual_seed(7)
    close(first, net(x))


def test_a_network_in_evaluation_mode_gives_gradients() -> None:
    net = make()
    x = examples(1, 3, 8, 8).requires_grad_()
    fast = optimized(net, x.detach(), strict=True)
    found = [x, *net.parameters()]
    grads = torch.autograd.grad(fast(x).square().sum(), found)
    close(grads, torch.autograd.grad(net(x).square().sum(), found))
    with torch.no_grad():
        result = fast(x)
    assert not result.requires_grad
    close(result, net(x).detach())


def test_a_block_under_autocast_is_named() -> None:
    class Casting(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                y = x @ x.transpose(0, 1)
            return y.float().relu()

    fast = md.optimize(Casting().eval(), torch.ones(2, 3), device="reference")
    close(fast(torch.ones(2, 3)), Casting()(torch.ones(2, 3)))
    assert (
        "matmul: autocast('cpu', torch.bfloat16, enabled=True): it is in a block under autoca"
        in (fast.explain())
    )


def test_what_containers_hold_is_found_in_an_optimized_one() -> None:
    conv, relu = nn.Conv2d(3, 4, 3), nn.ReLU()
    fast: Any = md.optimize(nn.Sequential(conv, relu).eval(), device="reference")
    assert fast[0] is conv and len(fast) == 2 and list(fast) == [conv, relu] and relu in fast
    assert isinstance(fast[:1], nn.Sequential) and fast and not md.optimize(nn.Sequential().eval())
    single: Any = md.optimize(nn.ReLU().eval(), device="reference")
    assert single
    for ask in (len, iter, lambda module: module[0], lambda module: relu in module):
        with pytest.raises(TypeError, match=r"ReLU"):
            ask(single)


def test_moves_are_followed_or_refused() -> None:
    x = examples(1, 3, 8, 8)
    fast = optimized(make(), x)
    assert fast.to("cpu") is fast
    fast.double()
    close(fast(x.double()), fast.original(x.double()))
    fast.to("meta")
    with pytest.raises(DeviceError) as caught:
        fast(x.double().to("meta"))
    assert str(caught.value) == (
        "device='reference' computes on tensors of PyTorch's 'cpu', but those given are on "
        "'meta'; move them, or leave device away to have it follow them"
    )


def test_copies_and_pickles_compile_for_themselves() -> None:
    net, x = make(), examples(1, 3, 8, 8)
    fast = optimized(net, x)
    for other in (copy.deepcopy(fast), pickle.loads(pickle.dumps(fast))):
        assert other.programs == []
        assert other.begin[0].weight is not net.begin[0].weight
        close(other(x), net(x))


def test_channels_last_and_other_strides() -> None:
    net, x = make(Strange()).to(memory_format=torch.channels_last), examples(2, 3, 8, 8)
    fast = optimized(net, x)
    for given in (x.to(memory_format=torch.channels_last), x.transpose(2, 3), x[:, :, :, ::1]):
        close(fast(given), net(given))


# Arguments


def refused(kind: type[Exception], text: str, *args: Any, **options: Any) -> None:
    with pytest.raises(kind) as caught:
        md.optimize(*args, **options)
    assert str(caught.value) == text


def test_arguments_that_are_not_legal() -> None:
    net, x = make(), examples(1, 3, 8, 8)
    text = "optimize: module=5 is a int; valid is a torch.nn.Module"
    refused(GraphError, text, 5, x)
    text = "optimize: sizes=0; valid is an int of at least 1"
    refused(GraphError, text, net, x, sizes=0)
    text = "optimize: example is a list; valid is a tensor, or a tuple of the arguments"
    refused(GraphError, text, net, [x])
    text = "optimize: kwargs is a list; valid is a dict of arguments by name"
    refused(GraphError, text, net, kwargs=[1])
    text = "optimize: strict='no'; valid are True and False"
    refused(GraphError, text, net, x, strict="no")
    for example in (x, None):  # at once, not at the first call
        with pytest.raises(DeviceError, match="device='tpu'; valid are "):
            md.optimize(net, example, device="tpu")
        with pytest.raises(UnsupportedError, match="precision='int8' on device 'reference'"):
            md.optimize(net, example, device="reference", precision="int8")
        with pytest.raises(UnsupportedError, match="option 'speed' of device 'reference'"):
            md.optimize(net, example, device="reference", speed=3)


def test_optimizing_twice_is_optimizing_once() -> None:
    net, x = make(), examples(1, 3, 8, 8)
    assert optimized(optimized(net, x), x).original is net


def test_only_a_gpu_is_started_before_weights_are_looked_at() -> None:
    fast = md.optimize(make(), examples(1, 3, 8, 8), device="reference")
    assert not fast.programs[0].starts_early
