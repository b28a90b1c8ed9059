"""Fixtures for the graph API without a GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from minidnn.cudnn import library
from minidnn.cudnn.graph import arrays, device, execution, plan, planner
from minidnn.cudnn.graph.device import Target
from tests.cudnn_graph.fake import FakeEngine, FakeLibrary, FakeMemory


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., FakeLibrary]:
    """Puts a fake library with the given engines in cuDNN's place; the cache folder is new."""

    def install(*engines: FakeEngine) -> FakeLibrary:
        made = FakeLibrary(list(engines))
        cuda = SimpleNamespace(
            runtime=SimpleNamespace(getDevice=lambda: 0, setDevice=lambda _: None)
        )
        monkeypatch.setenv("MINIDNN_CACHE", str(tmp_path))
        monkeypatch.setattr(library, "load", lambda: made)
        monkeypatch.setattr(library, "loaded", lambda: made)
        monkeypatch.setattr(device, "current", lambda: Target("fake", 1, 0))
        monkeypatch.setattr(execution, "current_handle", lambda: 1)
        for module in (execution, planner):
            monkeypatch.setattr(module, "cupy", lambda: SimpleNamespace(cuda=cuda))
        monkeypatch.setattr(arrays, "allocate", lambda size: FakeMemory(0x900000, size))
        monkeypatch.setattr(
            plan.shared_workspace, "acquire", lambda size: FakeMemory(0x800000, size)
        )
        planner.forget()
        return made

    return install


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[int, float | None]], list[Any]]:
    """Replaces measuring: times by engine; the result lists what was measured."""

    def install(times: dict[int, float | None]) -> list[Any]:
        seen: list[Any] = []

        def measure(plans: Any) -> list[float | None]:
            seen.append([p.config for p in plans])
            return [times.get(p.config.engine) for p in plans]

        monkeypatch.setattr(planner, "measure", measure)
        return seen

    return install
