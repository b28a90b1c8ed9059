"""Memory that values share in PyTorch: writes to it are seen wherever they are in PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._dynamo import graph_break

import minidnn as md
from minidnn.acceleration import dynamo

Body = Callable[[nn.Module, torch.Tensor], Any]


def close(got: Any, expected: Any) -> None:
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


class Network(nn.Module):
    def __init__(self, body: Body) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.weight = nn.Parameter(torch.randn(2, 2, 1, 1, generator=generator))
        self.register_buffer("kept", torch.zeros(2, 2, 3, 3))
        self.body = body

    def forward(self, x: torch.Tensor) -> Any:
        return self.body(self, x)


def conv(net: Any, x: torch.Tensor) -> torch.Tensor:
    return F.conv2d(x, net.weight)


def _views_of_an_argument(net: Any, x: torch.Tensor) -> Any:
    return conv(net, x), x[:, 0], x.view(2, -1)


def _views_of_one_another(net: Any, x: torch.Tensor) -> Any:
    y = conv(net, x)
    return y.flatten(1), y.transpose(1, 2), x


def _a_dropped_out_one(net: Any, x: torch.Tensor) -> Any:
    y = conv(net, x)
    return y, F.dropout(y, 0.5, False), x


def _a_written_argument(net: Any, x: torch.Tensor) -> Any:
    x.add_(1)
    return x, conv(net, x), x.flatten()


def _a_written_buffer(net: Any, x: torch.Tensor) -> Any:
    net.kept.add_(conv(net, x))
    return net.kept, net.kept[0], x


def _views_of_a_written_buffer(net: Any, x: torch.Tensor) -> Any:
    view = net.kept.view_as(net.kept)
    net.kept[...] = conv(net, x)
    return net.kept.detach(), view, x


def _pieces_that_lie_apart(net: Any, x: torch.Tensor) -> Any:
    return (*conv(net, x).chunk(2, 1), x)


RESULTS = [
    *(_views_of_an_argument, _views_of_one_another, _a_dropped_out_one),
    *(_a_written_argument, _a_written_buffer, _views_of_a_written_buffer),
    _pieces_that_lie_apart,
]


def images() -> torch.Tensor:
    return torch.randn(2, 2, 3, 3, generator=torch.Generator().manual_seed(4))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("body", RESULTS)
def test_results_share_the_memory_that_they_share_in_pytorch(body: Body) -> None:
    found = []
    for make in (lambda net: net, lambda net: md.optimize(net, device="reference")):
        net = Network(body).eval()
        call, x = make(net), images()
        with torch.no_grad():
            for _ in range(2):
                results = call(x)
                for factor, result in enumerate(results, 2):
                    result.mul_(factor)
        found.append((results, x, net.kept))
    close(found[1], found[0])


def test_results_that_lie_apart_are_taken_whole() -> None:
    net = Network(_pieces_that_lie_apart).eval()
    fast = md.optimize(net, images(), device="reference", strict=True)
    assert len(fast.programs[0].levels) == 1


def test_views_of_results_are_nothing_that_is_left() -> None:
    net = Network(_views_of_one_another).eval()
    fast = md.optimize(net, images(), device="reference", strict=True)
    assert "left to PyTorch" not in fast.explain()


def _argument_behind(net: Any, x: torch.Tensor) -> Any:
    a, b = x[:, :1], conv(net, x)
    graph_break()
    a.add_(1)
    return x + b


def _base_behind(net: Any, x: torch.Tensor) -> Any:
    y = conv(net, x)
    z = y.flatten(1)
    graph_break()
    y.relu_()
    return z


def _view_behind(net: Any, x: torch.Tensor) -> Any:
    y = conv(net, x)
    a, b = y.chunk(2, 1)
    graph_break()
    a.relu_()
    return y + b


@pytest.mark.sampled(3)
@pytest.mark.filterwarnings("ignore:.*a piece runs in PyTorch:minidnn.errors.MiniDNNWarning")
@pytest.mark.parametrize("body", [_argument_behind, _base_behind, _view_behind])
def test_writes_behind_a_graph_break(body: Body) -> None:
    torch._dynamo.reset()
    net, x, given = Network(body).eval(), images(), images()
    fast = torch.compile(net, backend=dynamo.backend, options={"device": "reference"})
    with torch.no_grad():
        close(fast(given), net(x))
    close(given, x)


#: Views, or operands themselves, of which the operations' schemas say nothing.
UNSAID: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "einsum": lambda y: torch.einsum("nchw->nhwc", y),
    "type_as": lambda y: y.type_as(torch.ones(1)),
    "broadcast_tensors": lambda y: torch.broadcast_tensors(y, y)[0],
    "meshgrid": lambda y: torch.meshgrid(y.view(-1), y.view(-1)[:1], indexing="ij")[0],
    "cartesian_prod": lambda y: torch.cartesian_prod(y.view(-1)),
    "atleast_3d": torch.atleast_3d,
}


# PyTorch does not follow a write to a view of a view of some of them, which is left to it.
@pytest.mark.sampled(3)
@pytest.mark.filterwarnings("ignore:.*a piece runs in PyTorch:minidnn.errors.MiniDNNWarning")
@pytest.mark.parametrize("name", UNSAID)
@pytest.mark.parametrize("is_argument", [False, True])
def test_writes_to_views_of_which_schemas_say_nothing(name: str, is_argument: bool) -> None:
    def body(net: Any, x: torch.Tensor) -> Any:
        y = x if is_argument else conv(net, x)
        UNSAID[name](y).mul_(2)
        return conv(net, x) + y

    net, x, given = Network(body).eval(), images(), images()
    with torch.no_grad():
        close(md.optimize(net, device="reference")(given), net(x))
    close(given, x)


def _permuted(net: Any, x: torch.Tensor) -> Any:
    return torch.einsum("nchw->ncwh", conv(net, x)) * 2


def _written_before(net: Any, x: torch.Tensor) -> Any:
    return torch.einsum("nchw->ncwh", F.relu(conv(net, x), inplace=True)) * 2


def _beside_a_counter(net: Any, x: torch.Tensor) -> Any:
    net.kept.add_(1)
    return torch.einsum("nchw->ncwh", conv(net, x)) * 2


@pytest.mark.parametrize("body", [_permuted, _written_before, _beside_a_counter])
@pytest.mark.parametrize("trained", [False, True])
def test_views_to_which_nothing_is_written_are_compiled(body: Body, trained: bool) -> None:
    net, x = Network(body), images()
    fast = md.optimize(net, device="reference")
    with torch.set_grad_enabled(trained):
        close(fast(x), Network(body)(x))
    assert "as_strided" not in fast.explain()
    assert [len(program.levels) for program in fast.programs] == [1]


#: Writes to a view by functions that have an argument for it.
WITH_INPLACE: dict[str, Callable[[torch.Tensor], Any]] = {
    "relu": lambda y: F.relu(y, inplace=True),
    "threshold": lambda y: F.threshold(y, 0.5, 0.1, True),
    "dropout of channels": lambda y: F.dropout2d(y, 1.0, True, True),
    "alpha dropout of channels": lambda y: F.feature_alpha_dropout(y, 1.0, True, True),
    "a module": nn.Dropout3d(1.0, inplace=True),
    "out": lambda y: F.normalize(y.detach(), 2.0, 1, 1e-12, y),
    "several": lambda y: torch._foreach_mul_([y], 0.5),
    "idle dropout": lambda y: F.dropout(y, 0.5, False)[:1].mul_(2),
}


@pytest.mark.sampled(3)
@pytest.mark.filterwarnings("ignore:.*a piece runs in PyTorch:minidnn.errors.MiniDNNWarning")
@pytest.mark.parametrize("name", WITH_INPLACE)
@pytest.mark.parametrize("is_view", [False, True])
def test_writes_to_a_view_or_its_base_by_functions(name: str, is_view: bool) -> None:
    def body(net: Any, x: torch.Tensor) -> Any:
        y = conv(net, x)
        z = torch.einsum("nchw->ncwh", y)
        WITH_INPLACE[name](z if is_view else y)
        return y + 1, z * 2

    net, x = Network(body).eval(), images()
    with torch.no_grad():
        for found, expected in zip(md.optimize(net, device="reference")(x), net(x), strict=True):
            close(found, expected)


#: What gives its operand itself, where nothing has to be done.
ITSELF: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "float": lambda y: y.float(),
    "to a dtype": lambda y: y.to(torch.float32),
    "to a tensor's": lambda y: y.to(torch.ones(1)),
    "type": lambda y: y.type(torch.float32),
    "cpu": lambda y: y.cpu(),
    "dropout": lambda y: F.dropout(y, 0.5, False),
    "none dropped out": lambda y: torch.dropout(y, 0.0, True),
    "dropout of channels": lambda y: F.dropout2d(y, 0.5, False),
    "contiguous": lambda y: y.contiguous(),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", ITSELF)
@pytest.mark.parametrize("is_argument", [False, True])
def test_writes_to_what_an_operation_gives_of_its_operand(name: str, is_argument: bool) -> None:
    """It is taken, and a write to either is seen in the other."""

    def body(net: Any, x: torch.Tensor) -> Any:
        y = x if is_argument else conv(net, x)
        z = ITSELF[name](y)
        z.mul_(2)
        one = y + 1
        y.relu_()
        return one, z + conv(net, x)

    net, x, given = Network(body).eval(), images(), images()
    fast = md.optimize(net, given, device="reference", strict=True)
    with torch.no_grad():
        close(fast(given), net(x))
    close(given, x)


def test_an_argument_to_write_to_may_be_strided_otherwise() -> None:
    def body(net: Any, x: torch.Tensor) -> Any:
        x.reshape(-1).add_(1)  # a view of one that is contiguous, a copy of another
        return conv(net, x)

    net, other = Network(body).eval(), Network(body).eval()
    fast = md.optimize(net, images(), device="reference")
    x, given = images().transpose(2, 3), images().transpose(2, 3)
    with torch.no_grad():
        close(fast(given), other(x))
    close(given, x)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("is_channels_last", [False, True])
@pytest.mark.parametrize("device", ["reference", "cpu"])
def test_views_that_only_the_strides_of_the_capture_allow(
    device: str, is_channels_last: bool
) -> None:
    def body(net: Any, x: torch.Tensor) -> Any:
        turned = torch.sin(conv(net, x).relu().permute(0, 2, 3, 1))
        return torch.sin(turned.relu() + 1).permute(0, 3, 1, 2).view(2, -1)

    def channels_last(net: Any, x: torch.Tensor) -> Any:
        return torch.sin(conv(net, x).relu()).permute(0, 2, 3, 1).view(2, -1)

    net, x = Network(channels_last if is_channels_last else body).eval(), images()
    if is_channels_last:
        x = x.to(memory_format=torch.channels_last)
    with torch.no_grad():
        close(md.optimize(net, x, device=device)(x), net(x))
