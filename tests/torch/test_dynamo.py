"""torch.compile(model, backend="minidnn"): graph breaks, sizes, modes, what is left."""

from __future__ import annotations

import copy
import gc
import logging
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

from minidnn.acceleration import dynamo
from minidnn.acceleration.dynamic_batch import DynamicBatchProgram
from minidnn.acceleration.engine import Engine
from minidnn.acceleration.program import SizedProgram
from minidnn.acceleration.trained import TrainedProgram
from minidnn.errors import DeviceError, GraphError, MiniDNNWarning, UnsupportedError


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """PyTorch forgets what it compiled, so that each test has its own pieces."""
    torch._dynamo.reset()
    dynamo._pieces.clear()
    yield
    torch._dynamo.reset()


def examples(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(2))


class Network(nn.Module):
    def __init__(self, broken: bool = False) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.relu = nn.ReLU(True)
        self.head = nn.Linear(8, 4)
        self.broken = broken

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.relu(self.norm(self.conv(x)))
        if self.broken:
            torch._dynamo.graph_break()
        return self.head(y.mean((2, 3)))


def make(broken: bool = False, seed: int = 0) -> Network:
    torch.manual_seed(seed)
    return Network(broken).eval()


def compiled(module: nn.Module, **options: Any) -> Any:
    options.setdefault("device", "reference")
    return torch.compile(module, backend=dynamo.backend, options=options)


def close(got: Any, expected: Any) -> None:
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_it_gives_what_pytorch_gives(mode: Any) -> None:
    net, x = make(), examples(2, 3, 8, 8)
    with mode():
        close(compiled(net, strict=True)(x), net(x))
    (piece,) = dynamo.pieces()
    (program,) = piece.programs
    assert [node.op.name for node in program.parts[0].part.graph.nodes] == [
        "Conv2d",
        "BatchNorm",
        "ReLU",
        "AdaptiveAvgPool2d",
        "Flatten",
        "Linear",
    ]
    assert sorted(piece._weights.values()) == sorted(set(net.state_dict()) - {NOT_USED})
    assert dynamo.explain().startswith(
        "torch.compile for float32[2, 3, 8, 8] on device 'reference': 5 of 5 operations taken, in "
    )


NOT_USED = "norm.num_batches_tracked"


def test_graph_breaks_make_pieces() -> None:
    net, x = make(broken=True), examples(2, 3, 8, 8)
    with torch.no_grad():
        close(compiled(net)(x), net(x))
    first, second = dynamo.pieces()
    assert [len(list(piece.programs)) for piece in (first, second)] == [1, 1]


def test_several_sizes_compile_twice(caplog: pytest.LogCaptureFixture) -> None:
    """For one row, of which PyTorch makes a piece of its own, and for any other number."""
    net = make()
    fast = compiled(net)
    with caplog.at_level(logging.INFO, "minidnn.acceleration"), torch.no_grad():
        for batch in (1, 2, 3, 4, 2, 3, 4, 1):
            x = examples(batch, 3, 8, 8)
            close(fast(x), net(x))
    said = [r.getMessage() for r in caplog.records if r.name.startswith("minidnn.")]
    assert len(said) == 2
    assert all("compiled in" in text for text in said)
    kinds = [type(program) for piece in dynamo.pieces() for program in piece.programs]
    assert kinds == [SizedProgram, DynamicBatchProgram]


class Norms(nn.Module):
    """Numbers that modules hold: those of norms, and one of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.BatchNorm2d(8, eps=0.5),
            nn.LeakyReLU(0.3),
            nn.GroupNorm(2, 8, eps=0.1),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.LayerNorm(32, eps=0.2),
            nn.Linear(32, 4),
        )
        self.scale = 1.5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norms(x) * self.scale


def test_numbers_that_modules_hold_are_constants_where_sizes_are_dynamic() -> None:
    torch.manual_seed(0)
    net = Norms().eval()
    fast = torch.compile(
        net, backend=dynamo.backend, dynamic=True, options={"device": "reference", "strict": True}
    )
    with torch.inference_mode():
        for shape in ((2, 3, 8, 8), (3, 3, 8, 8), (5, 3, 10, 10), (2, 3, 8, 8)):
            x = examples(*shape)
            close(fast(x), net(x))
        (piece,) = dynamo.pieces()
        assert [len(program.parts) for program in piece.programs] == [1, 1]  # for any batch
        net.norms[1].eps = 2.25  # of which PyTorch makes another piece
        close(fast(x), net(x))
        net.scale = 0.75  # which it hands to that piece
        close(fast(x), net(x))
        assert [len(list(piece.programs)) for piece in dynamo.pieces()] == [2, 2]


def test_a_number_that_changes_again_and_again_is_no_constant() -> None:
    torch.manual_seed(0)
    net = Norms().eval()
    net.norms = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU())
    fast = torch.compile(
        net, backend=dynamo.backend, dynamic=True, options={"device": "reference", "sizes": 3}
    )
    x = examples(2, 3, 8, 8)
    with torch.inference_mode():
        for step in range(9):
            net.scale = 0.1 * step + 0.05
            close(fast(x), net(x))
    (piece,) = dynamo.pieces()
    assert sorted(len(program.left) for program in piece.programs) == [0, 0, 0, 2]


def test_changed_weights_are_noticed() -> None:
    net, x = make(), examples(2, 3, 8, 8)
    fast = compiled(net)
    with torch.no_grad():
        fast(x)
        net.conv.weight.mul_(2)
        close(fast(x), net(x))
        net.norm.running_var.mul_(3)
        close(fast(x), net(x))
        net.head.weight = nn.Parameter(examples(4, 8))
        close(fast(x), net(x))


def test_statistics_that_training_writes_are_noticed() -> None:
    net, x = make(), examples(2, 3, 8, 8)
    fast = compiled(net)
    with torch.no_grad():
        close(fast(x), net(x))
        net.train()(x * 3)
        close(fast.eval()(x), net.eval()(x))


def test_modules_that_share_a_piece_have_weights_of_their_own(
    caplog: pytest.LogCaptureFixture,
) -> None:
    nets, x = [make(seed=seed) for seed in range(2)], examples(2, 3, 8, 8)
    pairs = [(net, compiled(net, sizes=2)) for net in nets]
    with torch.no_grad(), caplog.at_level(logging.INFO, "minidnn.acceleration"):
        for net, fast in pairs * 3:
            close(fast(x), net(x))
        assert [record.getMessage().split(" in ")[0] for record in caplog.records] == [
            "torch.compile: compiled",
            "torch.compile: compiled",
        ]
        nets[0].conv.weight.mul_(2)
        nets[1].head.weight = nn.Parameter(examples(4, 8))
        for net, fast in pairs:
            close(fast(x), net(x))
        assert caplog.records[-1].getMessage() == (
            "torch.compile: 3 sizes of arguments and modules so far, of which sizes=2 are kept: "
            "one that was dropped is compiled again when it comes again; sizes= as many as there "
            "will be keeps them all (this is said once)"
        )
    (piece,) = dynamo.pieces()
    assert len(list(piece.programs)) == 2


def test_modules_that_share_a_piece_are_called_in_threads() -> None:
    x = examples(2, 3, 8, 8)
    nets = [make(seed=seed) for seed in range(4)]
    fasts = [compiled(net) for net in nets]
    with torch.no_grad():
        expected = [net(x) for net in nets]
        for fast in fasts:  # while PyTorch captures, none of its compiled modules can be called
            fast(x)
    start = threading.Barrier(len(nets))

    def work(place: int) -> float:
        with torch.no_grad():
            start.wait()
            return max(float((fasts[place](x) - expected[place]).abs().max()) for _ in range(30))

    with ThreadPoolExecutor(len(nets)) as pool:
        deviations = list(pool.map(work, range(len(nets))))
    assert max(deviations) < 1e-5
    assert len(dynamo.pieces()) == 1


def test_what_is_not_known_stays_in_its_place() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.fft.fft(x.relu() + 1).abs() * 2

    x = examples(2, 3)
    fast = torch.compile(function, backend=dynamo.backend, options={"device": "reference"})
    with torch.no_grad():
        close(fast(x), function(x))
    assert "aten.fft_fft.default: it is not known" in dynamo.explain()


def test_a_piece_of_which_nothing_is_taken_is_pytorchs_with_a_warning() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.fft.fft(x)

    x = examples(2, 3)
    fast = torch.compile(function, backend=dynamo.backend, options={"device": "reference"})
    with torch.no_grad():
        with pytest.warns(MiniDNNWarning, match="a piece runs in PyTorch: nothing of it is taken"):
            close(fast(x), function(x))
        close(fast(x), function(x))  # and says so once
    torch._dynamo.reset()
    strict = {"device": "reference", "strict": True}
    with torch.no_grad(), pytest.raises(UnsupportedError, match=r"^strict=True, and not all of"):
        torch.compile(function, backend=dynamo.backend, options=strict)(x)


@pytest.mark.parametrize("weight", [False, True])
def test_tensors_that_hold_others_are_left_to_pytorch(weight: bool) -> None:
    torch._dynamo.reset()
    net, x = nn.Sequential(nn.Linear(3, 2), nn.ReLU()).eval(), examples(2, 3)
    given = x if weight else TwoTensor(x, x)
    if weight:
        held = net[0].weight.detach()
        net[0].weight = nn.Parameter(TwoTensor(held, held), requires_grad=False)
    fast = torch.compile(net, backend=dynamo.backend, options={"device": "reference"})
    with torch.no_grad():
        with pytest.warns(MiniDNNWarning, match="a piece runs in PyTorch: a TwoTensor is given"):
            found = fast(given)
        assert type(found) is TwoTensor
        close(found.a, net(given).a)


def test_autocast_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = make(), examples(2, 3, 8, 8)
    fast = compiled(net, strict=True)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        got = fast(x)
        assert got.dtype == torch.bfloat16
        torch.testing.assert_close(got, net(x), rtol=2e-2, atol=2e-2)
    torch._dynamo.reset()
    monkeypatch.setattr(Engine, "why_not_mixed", lambda self, half: "it has no halves")
    text = "a piece runs in PyTorch: autocast is on, which PyTorch honours, as it has no halves"
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        with pytest.warns(MiniDNNWarning, match=text):
            got = compiled(net)(x)
        assert got.dtype == torch.bfloat16
        close(got, net(x))


def test_autocast_within_the_network_is_left_to_pytorch() -> None:
    class Casting(Network):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.relu(self.conv(x))
            with torch.autocast("cpu", torch.bfloat16):
                z = self.head(y.mean((2, 3)))
            return z.float() * 2

    torch.manual_seed(0)
    net, x = Casting().eval(), examples(2, 3, 8, 8)
    with torch.no_grad():
        close(compiled(net)(x), net(x))


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # Dynamo looks at it
@pytest.mark.parametrize("broken", [False, True])
def test_training(broken: bool) -> None:
    net = make(broken=broken).train()
    own = copy.deepcopy(net)
    fast, x = compiled(net), examples(4, 3, 8, 8)
    optimizers = [torch.optim.SGD(each.parameters(), 0.1, 0.9) for each in (net, own)]
    for step in range(3):
        for module, optimizer in zip((fast, own), optimizers, strict=True):
            optimizer.zero_grad()
            module(x + step).square().mean().backward()
            optimizer.step()
        with torch.no_grad():
            close(fast.eval()(x), own.eval()(x))
        fast.train(), own.train()
    for found, expected in zip(net.state_dict().values(), own.state_dict().values(), strict=True):
        close(found, expected)
    trained = [p for piece in dynamo.pieces() for p in piece.programs if type(p) is TrainedProgram]
    assert len(trained) == (2 if broken else 1)
    assert "backwards" in dynamo.explain()


def test_gradients_in_evaluation_mode() -> None:
    net, own = make(), make()
    net.conv.requires_grad_(False), own.conv.requires_grad_(False)
    given = [examples(4, 3, 8, 8).requires_grad_() for _ in range(2)]
    for module, x in zip((compiled(net), own), given, strict=True):
        module(x).square().sum().backward()
    close(given[0].grad, given[1].grad)
    close(net.head.weight.grad, own.head.weight.grad)
    assert net.conv.weight.grad is None


def test_a_piece_that_writes_to_what_it_is_given() -> None:
    class Writing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.linear(x)
            x.mul_(2)
            return y * x

    torch.manual_seed(0)
    net = Writing()
    own, given = copy.deepcopy(net), [examples(3, 4) for _ in range(2)]
    before = given[0].clone()
    compiled(net)(given[0]).sum().backward()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        own(given[1]).sum().backward()
    close(*given)
    # What eager needs and has lost, minidnn still has.
    (own.linear(before) * (before * 2)).sum().backward()
    close([p.grad for p in net.parameters()], [p.grad for p in own.parameters()])


def test_training_under_autocast() -> None:
    net, x = make().train(), examples(4, 3, 8, 8)
    own = copy.deepcopy(net)
    fast = compiled(net, strict=True)
    for module in (fast, own):
        with torch.autocast("cpu", torch.bfloat16):
            loss = module(x).float().square().sum()
        loss.backward()
    for one, other in zip(net.parameters(), own.parameters(), strict=True):
        assert one.grad.dtype is torch.float32
        assert (one.grad - other.grad).norm() <= 0.03 * own.head.weight.grad.norm()
    close(fast(x), own(x))  # and without autocast in float32


def test_options_that_are_not_legal() -> None:
    x = examples(2, 3)
    with pytest.raises(Exception, match="mode='max-autotune' with backend 'minidnn'") as caught:
        torch.compile(nn.ReLU(), backend=dynamo.backend, mode="max-autotune")(x)
    assert isinstance(caught.value.inner_exception, GraphError)  # type: ignore[attr-defined]
    with pytest.raises(Exception, match="sizes=0; valid is an int of at least 1"):
        compiled(nn.ReLU(), sizes=0)(x)
    with pytest.raises(Exception, match="strict='yes'; valid are True and False"):
        compiled(nn.ReLU(), strict="yes")(x)
    with torch.no_grad(), pytest.raises(DeviceError, match="device='tpu'; valid are"):
        compiled(nn.ReLU(), device="tpu")(x)
    with torch.no_grad(), pytest.raises(UnsupportedError, match="option 'speed' of device"):
        compiled(nn.ReLU(), speed=1)(x)
    with torch.no_grad(), pytest.raises(UnsupportedError, match="precision='int8' on device"):
        compiled(nn.ReLU(), precision="int8")(x)
    with torch.no_grad(), pytest.raises(GraphError, match="strategy='none'; valid are"):
        compiled(nn.ReLU(), strategy="none")(x)


def test_pieces_are_forgotten_with_their_model() -> None:
    with torch.no_grad():
        compiled(make())(examples(1, 3, 8, 8))
    assert len(dynamo.pieces()) == 1
    torch._dynamo.reset()
    gc.collect()
    assert dynamo.pieces() == []


def test_it_is_found_by_its_entry_point(tmp_path: Path, root: Path) -> None:
    """What an installation says of its entry points, and a process that has only that."""
    info = tmp_path / "minidnn-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: minidnn\nVersion: 0\n")
    lines = (root / "setup.cfg").read_text(encoding="utf-8").splitlines()
    at = lines.index("torch_dynamo_backends =")
    (info / "entry_points.txt").write_text(f"[torch_dynamo_backends]\n{lines[at + 1].strip()}\n")
    code = (
        "import torch\n"
        "assert 'minidnn' in torch._dynamo.list_backends()\n"
        "net = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.ReLU()).eval()\n"
        "options = {'device': 'reference', 'strict': True}\n"
        "x = torch.ones(1, 1, 4, 4)\n"
        "with torch.no_grad():\n"
        "    y = torch.compile(net, backend='minidnn', options=options)(x)\n"
        "    torch.testing.assert_close(y, net(x))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": f"{tmp_path}:{root}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_nothing_is_said_when_all_is_well() -> None:
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("error")
        # PyTorch says so itself.
        warnings.filterwarnings("ignore", "Guards may run slower on Python 3.13.0")
        compiled(make())(examples(1, 3, 8, 8))
