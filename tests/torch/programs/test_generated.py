"""Programs that Hypothesis composes, through minidnn in both ways: the same as eager PyTorch.

A failure prints the shortest program that still differs.  While "generated" is in the list of known
faults, the first one ends the search: ``python -m tests.torch.programs.search`` shortens it.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

from tests.torch.programs.known import KNOWN
from tests.torch.programs.search import DiffersError, search
from tests.torch.programs.ways import COMPILE, EAGER, OPTIMIZE

WAYS = (OPTIMIZE, COMPILE)
PARTS = 8


def cases(count: int) -> list[Any]:
    """Ways, with the part of all programs that one test looks at."""
    made = []
    for part in range(count):
        way = WAYS[part % len(WAYS)]
        marks = []
        if (kind := KNOWN[way].get("generated")) is not None:
            marks.append(pytest.mark.xfail(strict=True, reason=kind, raises=DiffersError))
        made.append(pytest.param(way, part, id=f"{way}-part-{part}", marks=marks))
    return made


@pytest.mark.parametrize(("way", "part"), cases(2))
def test_some_generated_programs(way: str, part: int) -> None:
    search(way, 24, shrinks="generated" not in KNOWN[way])


@pytest.mark.full
@pytest.mark.parametrize(("way", "part"), cases(PARTS))
def test_two_thousand_generated_programs(way: str, part: int) -> None:
    """Other ones each time, unless MINIDNN_SEED names where to begin."""
    begin = os.environ.get("MINIDNN_SEED")
    seed = None if begin is None else int(begin) + part
    search(way, 2000 // PARTS, "generated" not in KNOWN[way], seed)


def test_a_program_that_differs_is_found_and_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search itself finds a fault that is put into the way, and its text is short."""
    from tests.torch.programs import ways

    class Forgets:
        """A module whose writes to ``n`` are lost."""

        def __init__(self, module: Any) -> None:
            self.__dict__["module"] = module

        def __call__(self, *args: Any) -> Any:
            before = self.module.n.clone()
            found = self.module(*args)
            self.module.n = before
            return found

        def __getattr__(self, name: str) -> Any:
            return getattr(self.__dict__["module"], name)

    monkeypatch.setattr(
        ways, "compiled", lambda way, module, *_: module if way == EAGER else Forgets(module)
    )
    monkeypatch.setattr(ways, "explanation", lambda *_: "")
    with pytest.raises(DiffersError, match=r"self\.n") as caught:
        search(OPTIMIZE, 60, shrinks=True, seed=4)
    text = str(caught.value)
    body = text[text.index("def forward") : text.index("def program")]
    assert len(body.strip().splitlines()) <= 5, text
