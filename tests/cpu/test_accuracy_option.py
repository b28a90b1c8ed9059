"""What ``accuracy`` asks for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from minidnn.backends.cpu.isa import Isa, best_isa, why_no_bfloat16
from minidnn.errors import GraphError

SHAPE = (1, 64, 28, 28)


def convolution() -> tuple[L.Layer, np.ndarray, np.ndarray]:
    """A convolution, its input, and its result in float64."""
    network = L.Conv2d(64, 64, 3, padding=1)
    rng = np.random.default_rng(0)
    kernel = rng.standard_normal((64, 64, 3, 3), np.float32) / 24
    weights = {
        "weight": kernel,
        "bias": np.zeros(64, np.float32),
    }
    network.load_state_dict(weights)
    x = rng.standard_normal(SHAPE, np.float32)
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    wanted = np.einsum("nchwij,ocij->nohw", windows, kernel, optimize=True)
    return network, x, wanted


def errors(accuracy: str) -> float:
    """The largest error of a convolution, over the largest value."""
    network, x, wanted = convolution()
    result = md.compile(network, SHAPE, device="cpu", threads=1, accuracy=accuracy)(x)
    return float(np.abs(result - wanted).max() / np.abs(wanted).max())


@pytest.mark.together(2)
def test_accuracy_is_worth_its_name(own_cache: None) -> None:
    high, direct, normal = errors("high"), errors("direct"), errors("normal")
    assert high < 5e-7 < normal < 3e-6
    assert high <= direct < 8e-7


@pytest.mark.together
def test_training_takes_direct_sums_unless_asked_for_others(own_cache: None) -> None:
    network, x, wanted = convolution()

    def loss(**options: Any) -> float:
        """The mean of a convolution's squared errors."""
        options |= {"device": "cpu", "threads": 1}
        trainer = md.Trainer(network, SHAPE, md.losses.MSE(), md.optim.SGD(0.1), **options)
        return float(trainer.step(x, wanted))

    assert loss() == loss(accuracy="direct") < loss(accuracy="normal") / 4


@pytest.mark.parametrize("rows", [1, 2, 40])
@pytest.mark.together
def test_high_accuracy_of_long_sums(rows: int, isa: Isa, own_cache: None) -> None:
    """The error of a sum of thousands of terms is that of one of a few dozens."""
    terms = 9216
    network, x = L.Linear(terms, 48), np.zeros((rows, terms), np.float32)
    rng = np.random.default_rng(0)
    x[:] = np.maximum(rng.standard_normal(x.shape, np.float32), 0)
    state = {
        key: rng.standard_normal(v.shape, np.float32) for key, v in network.state_dict().items()
    }
    network.load_state_dict(state)
    exe = md.compile(network, x.shape, device="cpu", isa=isa.name, accuracy="high")
    wanted = x @ state["weight"].T.astype(np.float64) + state["bias"]
    error = exe(x) - wanted
    assert np.sqrt(np.square(error).mean() / np.square(wanted).mean()) < 1.0e-7
    # Past the largest number a sum is infinite, as without compensation.
    x[0, :200], state["weight"][:] = 3e38, 1.0
    network.load_state_dict(state)
    exe = md.compile(network, x.shape, device="cpu", isa=isa.name, accuracy="high")
    result = exe(x)
    assert np.isposinf(result[0]).all() and np.isfinite(result[1:]).all()


def test_other_values_are_refused(own_cache: None) -> None:
    with pytest.raises(GraphError, match="accuracy='low'; valid are 'normal', 'direct', 'high'"):
        md.compile(L.Conv2d(3, 3, 1), (1, 3, 4, 4), device="cpu", accuracy="low")


@pytest.mark.skipif(
    why_no_bfloat16(best_isa()) is not None, reason="this processor has no bfloat16"
)
def test_no_accuracy_is_promised_that_bfloat16_has_not() -> None:
    network, _, _ = convolution()
    reason = "accuracy='high' with precision='bfloat16': .*; valid are 'normal' and 'direct', or "
    with pytest.raises(GraphError, match=reason + "precision='float32'"):
        md.compile(network, SHAPE, device="cpu", precision="bfloat16", accuracy="high")
