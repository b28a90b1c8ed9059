"""PyTorch modules compiled for named sizes."""

from __future__ import annotations

import pickle
import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import minidnn as md
from minidnn.acceleration.dynamic_batch import DynamicBatchProgram
from minidnn.acceleration.dynamo import backend, pieces
from minidnn.dynamic.executable import DynamicExecutable
from minidnn.errors import GraphError


class Looking(nn.Module):
    """A module whose code looks at the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * (2.0 if x.shape[0] == 5 else 1.0)


def test_a_module_gives_what_pytorch_gives_for_every_batch() -> None:
    torch.manual_seed(0)
    net = Looking().eval()
    exe = md.compile(net, (md.Dim("n", 1, 16), 6), device="reference")
    assert isinstance(exe, DynamicExecutable) and exe.why_not_parts is None
    with torch.inference_mode():
        for rows in (3, 5):
            x = torch.randn(rows, 6)
            y = exe(x)
            assert isinstance(y, torch.Tensor)
            np.testing.assert_allclose(y.numpy(), net(x).numpy(), rtol=1e-5, atol=1e-6)
    assert exe.counts.in_parts == 1


class Branched(nn.Module):
    """Two arguments with the batch, one without, and results by name."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, x: torch.Tensor, y: torch.Tensor, scale: float = 1.0) -> dict[str, Any]:
        z = self.conv(x) * scale
        return {"sum": z.mean((2, 3)) + y, "flat": z.flatten(1)}


class Plain(Branched):
    """The same without a number, which ``torch.compile`` gives as a tensor."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, Any]:  # type: ignore[override]
        return super().forward(x, y)


BATCH = md.Dim("batch", 1, 12)


def arguments(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(rows, 3, 6, 6), torch.randn(rows, 4)


def check(fast: Any, net: nn.Module, *args: Any, **kwargs: Any) -> None:
    found, expected = fast(*args, **kwargs), net(*args, **kwargs)
    assert list(found) == list(expected)
    for name, value in expected.items():
        assert found[name].shape == value.shape
        np.testing.assert_allclose(found[name].numpy(), value.numpy(), rtol=1e-5, atol=1e-6)


def test_optimize_has_one_executable_for_all_batches() -> None:
    torch.manual_seed(0)
    net = Branched().eval()
    fast = md.optimize(net, arguments(4), dynamic=BATCH, device="reference", sizes=3)
    (program,) = fast.programs
    assert isinstance(program, DynamicBatchProgram) and program.dynamic.counts.compiled == 2
    with torch.no_grad():
        for rows in (4, 7, 7, 12, 5, 3, 9, 9):
            check(fast, net, *arguments(rows))
            program.dynamic.wait()
        counts = program.dynamic.counts
        assert counts.kept <= 3 and counts.in_parts >= 4 and fast.programs == [program]
        check(fast, net, *arguments(1))  # for one row PyTorch has a graph of its own
        assert len(fast.programs) == 2
        check(fast, net, arguments(5)[0].to(memory_format=torch.channels_last), arguments(5)[1])
        net.conv.weight.mul_(2)  # which is seen, as for programs of one size
        check(fast, net, *arguments(5))
        check(fast, net, *arguments(6), scale=2.0)  # another value is another network
        assert len(fast.pieces) == 4
        with pytest.raises(GraphError, match=r"first axes of the arguments are \[13\]; valid is"):
            fast(*arguments(13))
        with pytest.raises(GraphError, match=r"first axes of the arguments are \[3, 4\]; valid is"):
            fast(arguments(3)[0], arguments(4)[1])
    assert "for any batch of" in fast.explain() and "computed in parts" in fast.explain()
    copied = pickle.loads(pickle.dumps(fast))
    with torch.no_grad():
        check(copied, net, *arguments(2))
    assert isinstance(copied.programs[0], DynamicBatchProgram)


class Mixing(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.mean(0)


class Squeezing(nn.Module):
    """Whose result has another rank for one row."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x).squeeze()


@pytest.mark.parametrize(
    ("net", "why"), [(Looking(), None), (Mixing(), "mixes rows"), (Squeezing(), None)]
)
def test_what_is_not_the_same_for_all_batches_has_programs_of_its_own(
    net: nn.Module, why: str | None
) -> None:
    fast = md.optimize(net.eval(), dynamic=BATCH, device="reference")
    with torch.no_grad():
        for rows in (5, 3, 4, 1, 5, 7):
            x = torch.randn(rows, 6)
            found, expected = fast(x), net(x)
            assert found.shape == expected.shape
            np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=1e-5, atol=1e-6)
    if why is not None:
        assert not any(isinstance(each, DynamicBatchProgram) for each in fast.programs)
        assert re.search(rf"note: not for any batch: .*{why}", fast.explain())


@pytest.mark.parametrize("net", [Plain(), Mixing()])
def test_torch_compile_has_one_executable_for_all_batches(net: nn.Module) -> None:
    torch.compiler.reset()
    net = net.eval()
    fast = torch.compile(net, backend=backend, dynamic=True, options={"device": "reference"})
    is_whole = isinstance(net, Branched)
    with torch.inference_mode():
        for rows in (5, 7, 7, 9, 2):
            x, y = arguments(rows)
            if is_whole:
                check(fast, net, x, y)
            else:
                np.testing.assert_allclose(fast(y).numpy(), net(y).numpy(), rtol=1e-5, atol=1e-6)
    piece = pieces()[-1]
    if is_whole:
        (program,) = piece.programs
        assert isinstance(program, DynamicBatchProgram) and program.dynamic.counts.in_parts >= 2
    else:
        assert len(piece.programs) == 4 and "mixes rows" in piece.explain()
    torch.compiler.reset()


def test_batches_on_the_cpus_engine() -> None:
    """Their own programs run on tensors where they lie; others are copied."""
    torch.manual_seed(0)
    net = Plain().eval()
    fast = md.optimize(net, arguments(3), dynamic=BATCH, device="cpu", threads=1)
    with torch.no_grad():
        for rows in (3, 3, 5, 3):
            check(fast, net, *arguments(rows))
        x, y = arguments(3)
        check(fast, net, x.to(memory_format=torch.channels_last), y.t().contiguous().t())
    program = fast.programs[0]
    assert isinstance(program, DynamicBatchProgram)
    program.dynamic.wait()
    assert "batch=3                              4 " in program.dynamic.explain()


@pytest.mark.gpu
@pytest.mark.parametrize("how", ["optimize", "compile"])
def test_any_batch_on_a_gpu(how: str) -> None:
    torch.compiler.reset()
    net = Plain().eval().cuda()
    if how == "optimize":
        fast: Any = md.optimize(net, dynamic=BATCH)
    else:
        fast = torch.compile(net, backend=backend, dynamic=True)
    with torch.inference_mode():
        for rows in (5, 7, 7, 12, 2, 3):
            x, y = (each.cuda() for each in arguments(rows))
            found, expected = fast(x, y), net(x, y)
            for name, value in expected.items():
                close = {"rtol": 1e-3, "atol": 1e-4}
                np.testing.assert_allclose(found[name].cpu(), value.cpu(), **close)  # type: ignore
    programs = fast.programs if how == "optimize" else pieces()[-1].programs
    (program,) = programs
    assert isinstance(program, DynamicBatchProgram) and program.dynamic.counts.in_parts >= 2


def test_a_batch_that_is_no_dim_is_refused() -> None:
    with pytest.raises(GraphError, match=r"dynamic=\(1, 8\); valid is a minidnn.Dim"):
        md.optimize(Mixing(), dynamic=(1, 8))  # type: ignore[arg-type]
