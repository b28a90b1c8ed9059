"""From another framework's ONNX file over training and int8 to a folder of predictions."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn

import minidnn as md
from minidnn.pictures import read_picture
from tests.chains.conftest import CLASSES, REFERENCE, SAYS, SIZE, Run

WANTED = md.Preparation(SIZE, SIZE, channels=1, classes=tuple(CLASSES))


def written(path: Path) -> Path:
    """The file of a network that was not trained."""
    torch.manual_seed(0)
    net = nn.Sequential(
        *(nn.Conv2d(1, 12, 5, stride=2), nn.BatchNorm2d(12), nn.ReLU()),
        *(nn.Conv2d(12, 12, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        nn.Linear(12, len(CLASSES)),
    )
    torch.onnx.export(
        net.eval(),
        (torch.zeros(2, 1, SIZE, SIZE),),
        path,
        dynamo=False,
        do_constant_folding=False,
        training=torch.onnx.TrainingMode.PRESERVE,
        input_names=["picture"],
        dynamic_axes={"picture": {0: "n"}},
    )
    return path


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.usefixtures("in_a_loop")
def test_an_onnx_file_is_trained_quantized_and_predicts(
    pictures: Path, run: Run, tmp_path: Path
) -> None:
    exact, small = tmp_path / "trained.onnx", tmp_path / "int8.onnx"
    trainer = md.Trainer(
        written(tmp_path / "given.onnx"),
        (10, 1, SIZE, SIZE),
        md.losses.CrossEntropy(),
        md.optim.Adam(0.02),
        device="reference",
    )
    data = md.data.Folder(pictures, SIZE, channels=1)
    trainer.fit(md.data.Loader(data, 10, shuffle=True), 12)
    net = trainer.network
    net.load_state_dict(trainer.state_dict())
    md.save_onnx(net, exact, (md.Dim("batch", 1, 16), 1, SIZE, SIZE), preparation=WANTED)

    out, err = run("quantize", exact, small, "--data", pictures, *REFERENCE)
    assert "with batch 1 to 16, " in out and SAYS in err
    given = ("--input", pictures, "--format", "jsonl", "--top", 1, "--batch", 8, *REFERENCE)
    _, err = run("batch", small, *given, "--output", tmp_path / "out")
    assert SAYS in err
    (part,) = (tmp_path / "out").glob("part-*.jsonl")
    rows = [json.loads(line) for line in part.read_text().splitlines()]
    found = {Path(row["file"]): row["labels"][0] for row in rows}
    assert found == {file: file.parent.name for file in pictures.glob("*/*.png")}

    # ONNX Runtime says the same of the six pictures that are left of batches of eight.
    last = sorted(found)[-6:]
    session = onnxruntime.InferenceSession(small)
    x = np.concatenate([read_picture(file, WANTED) for file in last])
    (scores,) = session.run(None, {session.get_inputs()[0].name: x})
    assert [tuple(CLASSES)[i] for i in scores.argmax(1)] == [found[file] for file in last]
