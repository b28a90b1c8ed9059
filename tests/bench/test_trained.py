"""``minidnn bench --train``: steps beside PyTorch's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from minidnn import layers as L
from minidnn.bench.networks import case_of
from minidnn.cli import main

pytest.importorskip("torch")


def test_steps_are_taken_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the same weights, on the same data: the first losses are equal."""
    import torch

    from minidnn.bench import steps

    def network(library: Any) -> Any:
        layers = [library.Conv2d(3, 4, 3), library.ReLU(), library.Flatten()]
        return library.Sequential(*layers, library.Linear(4 * 6 * 6, 1000))

    monkeypatch.setattr(steps.models, "get_model", lambda name: network(L))
    monkeypatch.setattr(steps.torchs, "small", lambda: network(torch.nn), raising=False)
    names = ["minidnn", "torch", "torch-channels-last"]
    made = steps.steps("small", (2, 3, 8, 8), "float32", "reference", 1, names, 0.01)
    about = made.about["engines"]
    assert list(about) == names
    assert all(record["deviation"] < 1e-5 for record in about.values()), about
    (seconds,) = made.outputs(made.run())
    assert len(seconds) == 3 and min(seconds) > 0
    # A step that cannot be made is told, and stops no other.
    monkeypatch.setattr(steps, "own", lambda case: 1 / 0)
    made = steps.steps("small", (2, 3, 8, 8), "float32", "reference", 1, names[:2], 0.01)
    assert "ZeroDivisionError" in made.about["engines"]["minidnn"]["error"]
    assert len(made.run()) == 1


def test_what_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, text in (
        (["net.onnx"], "NET 'net.onnx': --train takes networks of the zoo"),
        (
            ["resnet18", "--against", "openvino"],
            "--against 'openvino': valid with --train are torch",
        ),
        (["resnet18", "--isa", "avx2"], "--isa avx2: it does not limit --train"),
        (["resnet18", "--tune"], "--tune: valid is it without --train"),
    ):
        assert main(["bench", *arguments, "--train"]) != 0
        assert text in capsys.readouterr().err


def test_training_is_filed_by_itself() -> None:
    case = case_of("resnet18", 2, None, 1, None, False)
    assert replace(case, training=True).name.startswith("resnet18, training, batch 2, 224x224")
