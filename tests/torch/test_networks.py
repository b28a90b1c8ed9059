"""torchvision's networks through optimize: taken whole, right, and the zoo's very regions."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import pytest
import torch

import minidnn as md
from minidnn import models as zoo
from minidnn.backends.cuda.lower import lower_plan
from minidnn.backends.cuda.target import CudaTarget
from minidnn.bench.networks import BEYOND
from minidnn.frontends.torch.capture import capture
from minidnn.frontends.torch.frontend import TorchFrontEnd
from minidnn.passes.infrastructure import Context
from minidnn.passes.pipeline import optimize
from minidnn.runtime.plan import make_plan
from tests.cuda.cards import H200
from tests.devices import unavailable
from tests.torch.networks import UNet, errors, example, torchvision

#: PyTorch's attention is other nodes than ours, for the same numbers.
ZOO = sorted(set(zoo.list_models()) - {"digits", "vit_b_16"})
CI = ("resnet18", "squeezenet1_1")


def regions(executable: Any) -> Counter[str]:
    """What is computed, in any order: torchvision runs branches in another one."""
    found: Counter[str] = Counter()
    for node in executable.graph.nodes:
        body = getattr(node.op, "body", None)
        inner = [str(each.op) for each in body.nodes] if body is not None else []
        # PyTorch flattens by a view, which has a shape of its own.
        is_flat = (
            str(node.op).startswith(("Flatten", "Reshape")) and len(node.outputs[0].shape) == 2
        )
        # A join of all, or of the join before and one more: the same slices of one buffer.
        operands = () if node.op.name == "Concat" else node.inputs
        types = [str(value.type) for value in (*operands, *node.outputs)]
        found[f"{'Flatten' if is_flat else node.op} {inner} {types}"] += 1
    return found


def compared(name: str, device: str, size: int) -> None:
    net, x = torchvision(name), example(name, 2, size)
    own = getattr(zoo, name)()
    own.load_state_dict({key: value.numpy() for key, value in net.state_dict().items()})
    expected = md.compile(own, tuple(x.shape), device=device)
    fast = md.optimize(net, x, device=device, strict=True)
    (part,) = fast.programs[0].parts
    assert regions(part.executable) == regions(expected)
    assert fast.programs[0]._direct is part  # nothing stands between the caller and the engine
    with torch.no_grad():
        result = fast(x)
        ours, pytorchs = errors(net, fast, x)
    torch.testing.assert_close(result, torch.from_numpy(expected(x.numpy())), rtol=0, atol=0)
    assert ours <= 3 * pytorchs


@pytest.mark.sampled(3)
@pytest.mark.early
@pytest.mark.parametrize("name", CI)
def test_a_network_of_the_zoo_becomes_the_zoos_regions(name: str) -> None:
    compared(name, "reference", 32)


@pytest.mark.full
@pytest.mark.parametrize("name", ZOO)
def test_every_network_of_the_zoo_becomes_the_zoos_regions(name: str) -> None:
    compared(name, "cpu", 64)


def beyond(name: str, device: str) -> None:
    net, x = torchvision(name), example(name, 2, 64)
    fast = md.optimize(net, x, device=device, strict=True)
    assert len(fast.programs[0].parts) == 1
    ours, pytorchs = errors(net, fast, x)
    assert ours <= 3 * max(pytorchs, 3e-7)


@pytest.mark.full
@pytest.mark.parametrize("name", ["shufflenet_v2_x1_0"])
def test_a_network_beyond_the_classics_is_taken_whole(name: str) -> None:
    beyond(name, "reference")


@pytest.mark.full
@pytest.mark.parametrize("name", BEYOND)
def test_networks_beyond_the_classics_are_taken_whole(name: str) -> None:
    beyond(name, "cpu")


def test_a_network_that_goes_down_and_up_is_taken_whole() -> None:
    torch.manual_seed(0)
    if unavailable("cpu") is not None:
        pytest.skip("the CPU engine is not there")
    net, x = UNet().eval(), torch.randn(2, 3, 27, 22)
    ours, pytorchs = errors(net, md.optimize(net, x, device="cpu", strict=True), x)
    assert ours <= 3 * max(pytorchs, 3e-7)


@pytest.mark.full
def test_capturing_costs_at_most_3_seconds() -> None:
    net, x = torchvision("resnet50"), example("resnet50", 1, 224)

    def seconds() -> float:
        start = time.process_time()  # of this process: the machine may be busy
        capture(net, (x,))
        return time.process_time() - start

    assert min(seconds() for _ in range(3)) <= 3


def test_with_an_unknown_layer_in_the_middle_the_rest_keeps_its_regions() -> None:
    class Strange(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.sinc(x)

    net, x = torchvision("resnet18"), example("resnet18", 1, 32)
    (whole,) = md.optimize(net, x, device="reference").programs[0].parts
    net.layer2 = torch.nn.Sequential(net.layer2, Strange())
    program = md.optimize(net, x, device="reference").programs[0]
    assert [level.taken for level in program.levels] == [True, False, True]
    halves: Counter[str] = Counter()
    for part in program.parts:
        halves += regions(part.executable)
    assert halves == regions(whole.executable)


def kernels_of(name: str, batch: int, precision: str) -> int:
    """How many tasks a GPU runs for a network; an error if there is no kernel for a node."""
    graph = TorchFrontEnd().to_graph(torchvision(name), tuple(example(name, batch, 224).shape))
    context = Context(CudaTarget(H200.device(precision), precision))
    plan = make_plan(optimize(graph, context, verify=True), context)
    return len(lower_plan(plan, H200, precision == "tf32"))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("precision", ["float16", "float32"])
def test_a_network_has_kernels_on_a_gpu(precision: str) -> None:
    assert kernels_of("shufflenet_v2_x1_0", 1, precision) < 200


@pytest.mark.full
@pytest.mark.parametrize("precision", ["float16", "bfloat16", "tf32", "float32"])
@pytest.mark.parametrize("batch", [1, 128])
@pytest.mark.parametrize("name", BEYOND)
def test_every_network_has_kernels_on_a_gpu(name: str, batch: int, precision: str) -> None:
    assert kernels_of(name, batch, precision) < 200
