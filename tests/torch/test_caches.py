"""What functions keep their results is found without asking Python's collector again and again."""

from __future__ import annotations

import functools
import gc
from typing import Any

import pytest

from minidnn.frontends.torch.caches import Caches


def test_the_collector_is_asked_when_there_are_new_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    ask = gc.get_referrers

    def counted(*objects: Any) -> list[Any]:
        asked.append(len(objects))
        return ask(*objects)

    monkeypatch.setattr(gc, "get_referrers", counted)
    before = Caches()
    asked.clear()
    assert before.changed() == []
    assert Caches().changed() == []
    assert not asked

    @functools.lru_cache
    def kept(number: int) -> list[int]:
        return [number]

    assert before.changed() == [kept]
    assert len(asked) == 1
    later = Caches()
    kept(1)
    assert later.changed() == [kept]
    assert Caches().changed() == []
    assert len(asked) == 1
