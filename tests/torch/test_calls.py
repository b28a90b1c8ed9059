"""What a call of an optimized module on the CPU engine does beside computing: little, and right."""

from __future__ import annotations

import copy
import gc
import weakref
from typing import Any

import pytest
import torch
from torch import nn

import minidnn as md
from minidnn.acceleration import part as parts
from minidnn.acceleration.piece import Piece
from minidnn.acceleration.watch import Watch
from minidnn.backends.backend import PREFERENCE, default_device
from minidnn.errors import MiniDNNWarning
from minidnn.frontends.torch.captured import Held

pytestmark = pytest.mark.usefixtures("unpriced")


class Strange(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.fft.ifft(torch.fft.fft(x)).real


class Turned(nn.Module):
    """An operation that is not known, of a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.atan2(x, self.weight)


def examples(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(2))


@pytest.fixture(scope="module")
def net() -> nn.Module:
    if default_device([name for name in PREFERENCE if name != "cuda"])[0] != "cpu":
        pytest.skip("the CPU engine is not there")
    torch.manual_seed(0)
    body = (nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), Strange(), nn.Conv2d(8, 4, 1))
    return nn.Sequential(*body).eval()


def test_parts_and_pytorch_work_in_the_same_memory(
    net: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[int]] = []

    def noted(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        y = torch.sin(x) * scale
        seen.append([x.data_ptr(), y.data_ptr()])
        return y

    operation = torch.library.custom_op("minidnn_tests::noted", noted, mutates_args=())
    operation.register_fake(lambda x, scale: torch.empty_like(x))

    class Noting(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return operation(x, torch.ones(()))

    x = examples(2, 3, 8, 8)
    network = nn.Sequential(*net[:3], Noting(), net[4]).eval()
    fast = md.optimize(network, x, device="cpu")
    first, second = fast.programs[0].parts

    def following(inner: Any) -> Any:
        def run_at(inputs: list[int], outputs: list[int]) -> None:
            seen.append([*inputs, *outputs])
            inner(inputs, outputs)

        return run_at

    for part in (first, second):
        monkeypatch.setattr(part._program, "run_at", following(part._program.run_at))
    seen.clear()
    with torch.no_grad():
        y = fast(x)
    ((given, taken), (read, made), (again, result)) = seen
    assert (given, result) == (x.data_ptr(), y.data_ptr())
    assert (taken, made) == (read, again)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "given",
    [
        examples(2, 3, 8, 8),
        examples(2, 3, 8, 8).requires_grad_(),
        nn.Parameter(examples(2, 3, 8, 8), requires_grad=False),
        examples(2, 3, 8, 8).transpose(2, 3),
        examples(4, 3, 8, 8)[::2],
        torch._neg_view(examples(2, 3, 8, 8)),
    ],
    ids=["plain", "grad", "parameter", "transposed", "strided", "negative"],
)
def test_tensors_of_many_kinds(net: nn.Module, given: torch.Tensor) -> None:
    fast = md.optimize(net, examples(2, 3, 8, 8), device="cpu")
    assert [part.is_addressed for part in fast.programs[0].parts] == [True, True]
    with torch.no_grad():
        found, expected = (each(given).as_subclass(torch.Tensor) for each in (fast, net))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_results_lie_in_memory_of_the_cpu_whatever_pytorchs_default_is(net: nn.Module) -> None:
    x = examples(2, 3, 8, 8)
    fast = md.optimize(net, x, device="cpu")
    first = fast.programs[0].parts[0]
    assert first.is_addressed
    with torch.device("meta"):
        found = first(x)
    assert found.is_cpu
    torch.testing.assert_close(found, net[:3](x), rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("ignore:.*torch.jit.* is deprecated:DeprecationWarning")
def test_a_trace_is_of_the_original(net: nn.Module) -> None:
    x = examples(2, 3, 8, 8)
    body = net[:3].eval()
    traced = torch.jit.trace(md.optimize(body, x, device="cpu"), x)
    with torch.no_grad():
        torch.testing.assert_close(traced(2 * x), body(2 * x))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("behind", [nn.ReLU(), Turned()], ids=["whole", "in pieces"])
def test_the_shortest_way_is_left_where_a_call_is_more(
    behind: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), behind).eval()
    x = examples(2, 3, 8, 8)
    fast = md.optimize(net, x, device="cpu")
    long: list[int] = []
    known = Piece._run

    def seen(*args: Any) -> Any:
        long.append(1)
        return known(*args)

    monkeypatch.setattr(Piece, "_run", seen)

    def calls(is_short: bool, *args: Any) -> Any:
        long.clear()
        result = fast(*args)
        assert (not long) is is_short
        torch.testing.assert_close(result, net(*args), rtol=1e-4, atol=1e-4)
        return result

    with torch.no_grad():
        assert not calls(True, x).requires_grad
        with torch.inference_mode():
            assert calls(False, x).is_inference()  # whose tensors PyTorch tells apart
            assert calls(True, x).is_inference()
        calls(False, examples(1, 3, 8, 8))
        calls(True, x)  # each size has a piece
        net[0].weight.data.mul_(2)
        calls(False, x)
        calls(True, x)
        net[0].bias.zero_()
        calls(False, x)
        calls(True, x)
    assert calls(False, x).requires_grad
    assert calls(True, x).requires_grad
    assert calls(False, x.clone().requires_grad_()).requires_grad
    with torch.no_grad():
        calls(True, x)
        ran: list[str] = []
        own = fast.register_forward_hook(lambda *_: ran.append("own"))
        calls(True, x)
        own.remove()
        calls(True, x)
    assert ran == ["own"]


def test_threads_sleep_while_pytorch_computes(
    net: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = examples(2, 3, 8, 8)
    monkeypatch.setattr(parts, "team_of", lambda threads: None)  # of an OpenMP that is not known
    fast = md.optimize(net, x, device="cpu")
    first, last = fast.programs[0].parts
    assert (first.before_pytorch, last.before_pytorch) == (True, False)
    rested: list[Any] = []
    monkeypatch.setattr(type(first._program), "rest", lambda self: rested.append(self))
    with torch.no_grad():
        fast(x)
        fast(x.transpose(2, 3))
    # Dynamo has a graph for each way in which tensors lie.
    assert rested == [program.parts[0]._program for program in fast.programs]
    assert len(rested) == 2


def test_changes_are_noticed_by_the_engine(net: nn.Module) -> None:
    net = copy.deepcopy(net)
    x = examples(2, 3, 8, 8)
    fast = md.optimize(net, x, device="cpu")

    def close() -> None:
        with torch.no_grad():
            torch.testing.assert_close(fast(x), net(x), rtol=1e-4, atol=1e-4)
        assert fast.programs[-1].watch.is_as_it_was()

    close()
    with torch.no_grad():
        net[0].weight.mul_(2)
        close()
        net[1].running_var.mul_(2)
        close()
    net[4].weight = nn.Parameter(examples(4, 8, 1, 1))
    close()
    net[4].bias.data = examples(4)
    close()
    net[2] = nn.Sigmoid()
    close()
    net[4].bias = None
    close()


def test_a_weight_that_is_gone_is_noticed() -> None:
    holder = {"weight": examples(3), "bias": examples(3)}
    watch = Watch([Held(holder, "weight", "weight")])
    assert watch.is_as_it_was()
    del holder["bias"]
    assert watch.is_as_it_was()
    del holder["weight"]
    assert watch.changed() == "weight"


def test_weights_of_inference_mode_are_watched() -> None:
    with torch.inference_mode():
        holder = {"weight": examples(3), "bias": examples(3)}
        other = examples(3)
    holder["scale"] = examples(3)
    watch = Watch([Held(holder, key, key) for key in holder])
    assert watch.uncounted == 2 and watch.is_as_it_was()
    with torch.inference_mode():
        holder["bias"].data = other
    assert watch.changed() == "bias"
    watch.renew()
    assert watch.is_as_it_was()
    holder["weight"] = other
    assert watch.changed() == "weight"
    watch.renew()
    holder["scale"].mul_(2)
    assert watch.changed() == "scale"


@pytest.mark.parametrize("device", ["reference", "cpu"])
def test_results_of_weights_alone_are_pytorchs(device: str) -> None:
    class Dropping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2, 3))

        def forward(self, x: torch.Tensor) -> Any:
            return x, torch.dropout(self.weight, 0.5, self.training).relu()

    fast, x = md.optimize(Dropping().eval(), device=device), torch.ones(2)
    torch.testing.assert_close(fast(x), (x, torch.ones(2, 3)))


def test_no_more_programs_are_kept_than_are_asked_for() -> None:
    """Not by what calls the one used last either."""
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()).eval()
    fast = md.optimize(net, device="reference", sizes=2)
    kept: list[weakref.ref[Any]] = []
    with torch.no_grad():
        for rows in (1, 2, 3, 4, 2):
            x = examples(rows, 3, 8, 8)
            torch.testing.assert_close(fast(x), net(x), rtol=1e-5, atol=1e-5)
            kept += [weakref.ref(program) for program in fast.programs]
    del x
    gc.collect()
    assert len(fast.pieces) == 4
    assert len({id(each()) for each in kept if each() is not None}) == 2


class Looking(nn.Module):
    """Runs as two pieces, which Dynamo keeps at the code of the class."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x).relu()
        return self.second(y if float(y.detach().sum()) < 1e9 else -y).relu()


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("is_broken", [False, True])
def test_a_module_that_is_dropped_is_freed_with_its_programs(
    is_broken: bool, training: bool
) -> None:
    net = Looking() if is_broken else nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
    fast = md.optimize(net.train(training), device="reference")
    with torch.set_grad_enabled(training):
        for _ in range(2):
            fast(examples(2, 3, 8, 8))
    assert len(fast.pieces) == (2 if is_broken else 1) <= len(fast.programs)
    parts = [part for program in fast.programs for part in program.parts]
    things = [fast, *fast.programs, *parts, net, *net.parameters()]
    kept = [weakref.ref(each) for each in things]
    del fast, net, things, parts
    gc.collect()  # which frees what Dynamo keeps
    gc.collect()
    assert [each() for each in kept] == [None] * len(kept)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("device", ["reference", "cpu"])
@pytest.mark.parametrize("layout", ["mkldnn", "nested"])
def test_tensors_of_other_layouts_are_left_to_pytorch(layout: str, device: str) -> None:
    net = nn.Linear(4, 4).eval().requires_grad_(False)
    fast, x = md.optimize(net, device=device), torch.ones(3, 4)
    fast(x)
    nested = [x, x] if layout == "nested" else []
    other = torch.nested.as_nested_tensor(nested) if nested else x.to_mkldnn()
    with pytest.warns(MiniDNNWarning, match=r"^Linear.* a (nested tensor|tensor has layout)"):
        found = fast(other)
    given, *_ = found.unbind() if nested else [found.to_dense()]
    torch.testing.assert_close(given, net(x))


@pytest.mark.parametrize("behind", [nn.ReLU(), Turned()], ids=["whole", "in pieces"])
def test_a_warm_call_is_right_whatever_came_before(behind: nn.Module) -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), behind).eval()
    x = examples(2, 3, 8, 8)
    fast = md.optimize(net, x, device="cpu")

    def calls(*args: Any, **kwargs: Any) -> Any:
        result = fast(*args, **kwargs)
        torch.testing.assert_close(result, net(*args, **kwargs), rtol=1e-4, atol=1e-4)
        return result

    with torch.no_grad():
        for _ in range(2):
            assert not calls(x).requires_grad
            calls(input=x)
            calls(x.transpose(2, 3))
            calls(examples(1, 3, 8, 8))
        net[0].weight.data.mul_(2)
        calls(x), calls(x)
        net[0].bias.zero_()
        calls(x), calls(x)
    assert calls(x.clone().requires_grad_()).requires_grad
    with torch.inference_mode():
        calls(x)


def test_a_call_begins_before_weights_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, which goes on by itself; what was begun with other weights is thrown away."""
    net: Any = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()).eval()
    x = examples(2, 3, 8, 8)
    fast = md.optimize(net, x, device="cpu")
    with torch.no_grad():
        fast(x), fast(x)
        (program,) = fast.programs
        program.starts_early = True
        order: list[str] = []
        direct: Any = program.direct
        run_at, look = direct.run_at, program.watch.is_as_it_was

        def ran(tensors: Any) -> Any:
            order.append("run")
            return run_at(tensors)

        def looked() -> bool:
            order.append("look")
            return look()

        monkeypatch.setattr(direct, "run_at", ran)
        monkeypatch.setattr(program.watch, "is_as_it_was", looked)
        fast(x)
        assert order == ["run", "look"]
        net[0].bias.add_(1)
        torch.testing.assert_close(fast(x), net(x), rtol=1e-4, atol=1e-4)
        assert order[2:4] == ["run", "look"]
