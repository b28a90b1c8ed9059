"""What becomes of plans that are measured, and of memory that is missing for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from minidnn.cudnn.graph import Graph, arrays, planner
from minidnn.cudnn.graph.enums import DescriptorType as D
from minidnn.errors import OutOfMemoryError
from tests.cudnn_graph.fake import FakeEngine, FakeLibrary, FakeMemory

Install = Callable[..., FakeLibrary]


def graph() -> Graph:
    g = Graph()
    g.convolution(g.tensor((2, 8, 6, 6), "float32"), g.tensor((4, 8, 3, 3), "float32"))
    return g


def open_plans(library: FakeLibrary) -> int:
    kind = D.CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR
    return sum(record.kind == kind for record in library.alive.values())


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*.json")]


@pytest.mark.parametrize("room, lacking", [(0, "tensors"), (1 << 20, "workspace")])
def test_memory_that_is_missing_is_named_and_the_plans_are_closed(
    fake: Install, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, room: int, lacking: str
) -> None:
    library = fake(FakeEngine(workspace=1 << 21), FakeEngine())

    def allocate(size: int) -> FakeMemory:
        if size > room:
            raise MemoryError(f"out of memory allocating {size} bytes")  # as CuPy's error is one
        return FakeMemory(0x900000, size)

    monkeypatch.setattr(arrays, "allocate", allocate)
    if lacking == "workspace":
        monkeypatch.setattr(arrays, "random_like", lambda spec, seed: allocate(spec.nbytes))
    with pytest.raises(OutOfMemoryError) as caught:
        graph().build()
    text = str(caught.value)
    assert "measure t2 = Convolution" in text and "2097152 bytes of workspace" in text
    assert "out of memory allocating" in text and "choose='heuristic'" in text
    assert "smaller workspace_limit" in text
    assert open_plans(library) == 0 and files(tmp_path) == []


@pytest.mark.parametrize("times", [[None, None], KeyError("race")])
def test_plans_are_closed_when_none_could_be_measured(
    fake: Install, monkeypatch: pytest.MonkeyPatch, times: Any
) -> None:
    library = fake(FakeEngine(), FakeEngine())
    kept = []

    def measure(plans: Any) -> list[float | None]:
        kept.append(plans)
        if isinstance(times, Exception):
            raise times
        return list(times)

    monkeypatch.setattr(planner, "measure", measure)
    with pytest.raises((RuntimeError, KeyError), match=r"none could be executed|race"):
        graph().build()
    assert len(kept[0]) == 2 and open_plans(library) == 0
