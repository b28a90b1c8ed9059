"""The benchmark of the trained chain: its step beside PyTorch's in float64, and what it prints."""

from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks.chain_step import STATISTICS, graph_of, main, of_torch
from minidnn.graph.evaluate import evaluate

pytest.importorskip("torch")


@pytest.mark.parametrize("statistics", STATISTICS)
def test_the_step_is_that_of_pytorch(statistics: str) -> None:
    import torch

    shape = (3, 6, 7, 5)
    random = np.random.default_rng(0)
    x, dy = (random.standard_normal(shape) for _ in range(2))
    ours = evaluate(graph_of(3, shape, statistics), [x, dy], "float64")
    torch.set_default_dtype(torch.float64)
    try:
        given = [torch.from_numpy(array) for array in (x, dy)]
        theirs = of_torch(3, statistics, "eager", *given)()
    finally:
        torch.set_default_dtype(torch.float32)
    assert len(ours) == len(theirs) == 2 + 2 * 3
    for found, expected in zip(ours, theirs, strict=True):
        # Their weights are rounded to float32 as ours are.
        np.testing.assert_allclose(found, expected.detach().numpy(), rtol=1e-6, atol=1e-9)


def test_it_prints_a_table_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    shape = ["--device", "cpu", "--threads", "1", "--shape", "2,4,6,6", "--blocks", "2"]
    main([*shape, "--statistics", "frozen", "--rounds", "2", "--compiled", "--json"])
    *table, line = capsys.readouterr().out.splitlines()
    sides = json.loads(line)["sides"]
    assert set(sides) == {"eager", "eager channels_last", "minidnn", "minidnn layers"}
    assert all(row["ms"] > 0 and row["deviation"] < 1e-5 for row in sides.values())
    assert any(text.split()[:1] == ["minidnn"] for text in table)
