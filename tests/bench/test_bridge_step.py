"""What a row of the comparison of training through a PyTorch module says."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.bridge_step import arguments, by_trainer, measured, ratio


def test_ratios_of_rounds() -> None:
    found = ratio("of_trainer", np.array([1.0, 1.1, 1.2, 1.3, 9.0]))
    assert found == {"of_trainer": 1.2, "of_trainer_spread": 0.2}


@pytest.mark.full
def test_a_network_on_the_cpu() -> None:
    options = ["squeezenet1_1", "--device", "cpu", "--batch", "1", "--size", "32", "--threads", "1"]
    given = arguments([*options, "--modes", "eager", "--before", "1", "--rounds", "3"])
    row = measured("squeezenet1_1", given)
    assert row["best"] == "eager" and min(row["optimize"], row["trainer"], row["eager"]) > 0
    assert row["left"] == 0
    found = by_trainer("squeezenet1_1", given)()
    assert float(found["loss"]) > 0
