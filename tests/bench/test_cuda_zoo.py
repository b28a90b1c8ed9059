"""What ``cuda_zoo`` is asked to measure, and in which order."""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path

import pytest

from benchmarks.cuda_zoo import NETWORKS, arguments, cells
from minidnn.bench.networks import BEYOND


def asked(monkeypatch: pytest.MonkeyPatch, *given: str) -> Namespace:
    monkeypatch.setattr(sys, "argv", ["cuda_zoo", "results.jsonl", *given])
    return arguments()


def test_stages_come_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    stages = ("--stages", "beyond:tf32:32", "float16:1", "beyond:float32:128")
    found = cells(asked(monkeypatch, "--networks", "resnet18", "alexnet", *stages))
    assert found == [
        *((name, "tf32", 32) for name in BEYOND),
        *(("resnet18", "float16", 1), ("alexnet", "float16", 1)),
        *((name, "float32", 128) for name in BEYOND),
    ]


@pytest.mark.parametrize(
    "stage",
    ["float16", "16:float16", "tf32:0", "tf32:-1", "beyound:tf32:1", "beyond:beyond:tf32:1", ""],
)
def test_stages_that_are_none_are_told(
    stage: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        asked(monkeypatch, "--stages", stage)
    text = f"{stage!r}; valid is PRECISION:BATCH, or beyond:PRECISION:BATCH for the networks"
    assert text in capsys.readouterr().err


def test_without_stages_all_that_was_asked_for_is_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wanted = ("--precisions", "float16", "--batches", "32", "7")
    found = cells(asked(monkeypatch, "--beyond", *wanted))
    zoo = len(NETWORKS)
    assert {each[1:] for each in found[:zoo]} == {("float16", 32)}
    assert [name for name, _, _ in found[zoo : zoo + 10]] == list(BEYOND)
    assert {each[1:] for each in found[-zoo:]} == {("float16", 7)}
    assert asked(monkeypatch).results == Path("results.jsonl")
