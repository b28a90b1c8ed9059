"""The bench finds faults: ways that lose writes, write twice, or drop gradients are told apart."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

from minidnn.errors import MiniDNNWarning
from tests.torch.programs import ways
from tests.torch.programs.harness import PROGRAMS, Program, Run, faults, run
from tests.torch.programs.known import KNOWN
from tests.torch.programs.parts import Around
from tests.torch.programs.themes import __all__ as THEMES
from tests.torch.programs.ways import EAGER, OPTIMIZE

LINE = "Net on device 'reference': 3 of 4 operations taken, in 1 part"


class Counter(Around):
    def setup(self) -> None:
        self.register_buffer("n", torch.zeros(()))

    def middle(self, y: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.n.add_(1)
        return y


def body(run: Run) -> None:
    net = Counter()
    fast = run.compile(net)
    for x in run.batches(3, 3, 4):
        fast(x).sum().backward()
        run.step(net)
    run.raises(lambda: fast(run.randn(3, 5)))


PROGRAM = Program("counter", "harness", body, share=0.5)


def right(net: Any, x: Any) -> Any:
    return net(x)


def loses_a_write(net: Any, x: Any) -> Any:
    before = net.n.clone()
    y = net(x)
    net.n.copy_(before)
    return y


def writes_twice(net: Any, x: Any) -> Any:
    net.n.add_(1)
    return net(x)


def writes_something_else(net: Any, x: Any) -> Any:
    net.n.add_(0.25)
    return net(x)


def drops_gradients(net: Any, x: Any) -> Any:
    with torch.no_grad():
        net.head.weight.requires_grad_(False)
        return torch.enable_grad()(lambda: net(x))()


def halves_gradients(net: Any, x: Any) -> Any:
    y = net(x)
    return y / 2 + (y / 2).detach()


def raises(net: Any, x: Any) -> Any:
    raise NotImplementedError("no")


def raises_nothing(net: Any, x: Any) -> Any:
    return net(x[:, :4])


def warns(net: Any, x: Any) -> Any:
    warnings.warn(f"{len(x)} rows run in PyTorch", MiniDNNWarning, stacklevel=1)
    return net(x)


CASES: list[tuple[Callable[..., Any], str, str]] = [
    (right, LINE, ""),
    (right, "Net: 1 of 4 operations taken", "share"),
    (right, "", "share"),
    (right, f"{LINE}\n\nleft to PyTorch: 2\nleft to PyTorch: 3\nleft to PyTorch: 4", "share"),
    (loses_a_write, LINE, "lost write"),
    (writes_twice, LINE, "double write"),
    (writes_something_else, LINE, "wrong state"),
    (drops_gradients, LINE, "gradient missing"),
    (halves_gradients, LINE, "wrong gradient"),
    (raises, LINE, "error"),
    (raises_nothing, LINE, "no error"),
    (warns, LINE, "warned twice"),
]


@pytest.mark.parametrize(("way", "text", "kind"), CASES)
def test_faults_are_found(
    monkeypatch: pytest.MonkeyPatch, way: Callable[..., Any], text: str, kind: str
) -> None:
    def compiled(named: str, module: Any, *_: Any) -> Any:
        return module if named == EAGER else lambda x: way(module, x)

    monkeypatch.setattr(ways, "compiled", compiled)
    monkeypatch.setattr(ways, "explanation", lambda *_: text)
    found = faults(PROGRAM, run(PROGRAM, OPTIMIZE, "reference"), run(PROGRAM, EAGER, "reference"))
    assert (found[0].kind if found else "") == kind, found


def test_there_are_programs_of_all_themes() -> None:
    assert {program.theme for program in PROGRAMS.values()} == set(THEMES)
    assert len(PROGRAMS) >= 150
    for known in KNOWN.values():
        assert not known.keys() - PROGRAMS.keys() - {"generated"}
