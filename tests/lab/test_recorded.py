"""Studies in files: what is written is read, and what is damaged is refused with a reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from minidnn.cli import main
from minidnn.lab.studies import StudyError, load_study, recorded_studies, save_study


@pytest.fixture(scope="module")
def recorded() -> dict[str, Any]:
    return load_study(recorded_studies()["conv"])


def test_the_demo_needs_no_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lab", "demo"]) == 0
    text = capsys.readouterr().out
    assert "on NVIDIA H100" in text and "IMPLICIT_PRECOMP_GEMM" in text and "of library" in text


def test_what_is_saved_is_replayed(
    tmp_path: Path, recorded: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    save_study(tmp_path / "study.json", recorded)
    assert main(["lab", "replay", str(tmp_path / "study.json"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == recorded
    with pytest.raises(StudyError, match="cannot be written"):
        save_study(tmp_path / "no" / "study.json", recorded)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "other"}, "is no study"),
        ({"version": 2}, "a study of version 2; this minidnn reads 1"),
        ({"cells": None}, "is damaged: 'cells' is missing"),
        ({"libraries": []}, "is damaged: 'libraries' does not have an entry for each of 12"),
        ({"cells": [{"step": "tiled"}]}, "is damaged: cell 0 has no 'shape'"),
    ],
)
def test_damage(
    changes: dict[str, Any], message: str, tmp_path: Path, recorded: dict[str, Any]
) -> None:
    path = tmp_path / "study.json"
    path.write_text(json.dumps(recorded | changes), encoding="utf-8")
    with pytest.raises(StudyError, match=message):
        load_study(path)


def test_half_a_file(tmp_path: Path) -> None:
    path = tmp_path / "study.json"
    path.write_text('{"format": "minidnn lab', encoding="utf-8")
    with pytest.raises(StudyError, match="is damaged, or no study"):
        load_study(path)
    with pytest.raises(StudyError, match=r"none\.json cannot be read"):
        load_study(tmp_path / "none.json")
