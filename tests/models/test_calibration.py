"""Calibration of batch normalizations on data."""

from __future__ import annotations

import numpy as np
import pytest

from minidnn import layers as L
from minidnn import models
from minidnn.errors import GraphError
from minidnn.graph.evaluate import evaluate
from minidnn.layers.build import to_graph
from minidnn.layers.calibration import FLOOR, calibrate


def images(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def spreads(net: L.Layer, x: np.ndarray) -> dict[str, float]:
    """Standard deviation of what each node gives."""
    found: dict[str, float] = {}

    def observe(node, results) -> None:
        found[node.name] = float(results[0].std())

    evaluate(to_graph(net, x.shape), [x], observe=observe)
    return found


@pytest.mark.parametrize("name", ["densenet121", "resnet152"])
def test_values_neither_vanish_nor_explode(name: str) -> None:
    """As those of a deep residual network do without calibration."""
    net, seen, unseen = models.get_model(name), images((4, 3, 64, 64), 0), images((2, 3, 64, 64), 1)
    if name == "resnet152":
        assert max(spreads(net, unseen).values()) > 1e6
    found = spreads(calibrate(net, seen), unseen)
    assert len(found) > 400
    outside = {node: std for node, std in found.items() if not 0.1 < std < 100}
    assert outside == {}


def test_every_layer_gives_its_bias_and_weight_on_the_data() -> None:
    x = images((4, 3, 48, 48))
    net = models.resnet18()
    weights = np.random.default_rng(1)
    state = net.state_dict()
    for key, array in state.items():
        if "bn" in key and key.endswith(("weight", "bias")):
            state[key] = weights.uniform(0.5, 1.5, array.shape)
    net.load_state_dict(state)
    calibrate(net, x)
    parameters = net.state_dict()
    seen = []

    def observe(node, results) -> None:
        if node.op.name == "BatchNorm":
            seen.append(node.name)
            over = (0, 2, 3)
            mean, std = results[0].mean(over), results[0].std(over)
            np.testing.assert_allclose(mean, parameters[f"{node.name}.bias"], atol=1e-3)
            ratio = std / parameters[f"{node.name}.weight"]
            # Channels that hardly vary have a raised variance: see FLOOR.
            assert ratio.max() < 1.01 and (ratio > 0.99).mean() > 0.99

    evaluate(to_graph(net, x.shape), [x], observe=observe)
    assert len(seen) == 20


def test_statistics_are_pytorchs() -> None:
    """Against a batch normalization that PyTorch runs in training mode with momentum 1."""
    torch = pytest.importorskip("torch")
    x = images((4, 5, 6, 7)) * np.float32(3) + np.float32(1)
    theirs = torch.nn.BatchNorm2d(5, momentum=1.0).train()
    theirs(torch.from_numpy(x))
    ours = calibrate(L.BatchNorm2d(5), x).state_dict()
    count = 4 * 6 * 7
    np.testing.assert_allclose(ours["running_mean"], theirs.running_mean.numpy(), rtol=1e-5)
    np.testing.assert_allclose(
        ours["running_var"], theirs.running_var.numpy() * (count - 1) / count, rtol=1e-5
    )


def test_it_is_deterministic_and_changes_statistics_alone() -> None:
    x = images((2, 3, 64, 64))
    first = calibrate(models.densenet121(), x).state_dict()
    again = calibrate(models.densenet121(), x).state_dict()
    before = models.densenet121().state_dict()
    for key, array in first.items():
        np.testing.assert_array_equal(array, again[key])
        assert array.dtype == before[key].dtype and array.shape == before[key].shape
        if key.endswith(("running_mean", "running_var")):
            assert (array != before[key]).any(), key
        else:
            np.testing.assert_array_equal(array, before[key])


def test_channels_that_do_not_vary_are_not_blown_up() -> None:
    x = images((2, 3, 8, 8))
    x[:, 1] = 5
    net = calibrate(L.BatchNorm2d(3), x)
    var = net.state_dict()["running_var"]
    assert var[1] == pytest.approx(FLOOR * x.var(axis=(0, 2, 3)).mean(), rel=1e-5)
    constant = calibrate(L.BatchNorm2d(3), np.full((2, 3, 8, 8), 4, np.float32)).state_dict()
    np.testing.assert_array_equal(constant["running_var"], np.ones(3))
    np.testing.assert_array_equal(constant["running_mean"], np.full(3, 4))


def test_a_layer_called_twice_keeps_its_first_statistics() -> None:
    class Twice(L.Layer):
        def __init__(self) -> None:
            self.bn = L.BatchNorm2d(3, affine=False)

        def forward(self, x):
            return self.bn(self.bn(x) * 3.0)

    x = images((2, 3, 8, 8))
    net = calibrate(Twice(), x)
    np.testing.assert_allclose(net.state_dict()["bn.running_var"], x.var(axis=(0, 2, 3)), rtol=1e-5)


def test_several_inputs_and_the_functional_form() -> None:
    a, b = L.Input((3, 8, 8), name="a"), L.Input((3, 8, 8), name="b")
    net = L.Model([a, b], L.BatchNorm2d(3).named("norm")(a * b + 2.0))
    x, y = images((2, 3, 8, 8), 1), images((2, 3, 8, 8), 2)
    calibrate(net, x, y)
    mean = (x * y + 2).mean(axis=(0, 2, 3))
    np.testing.assert_allclose(net.state_dict()["norm.running_mean"], mean, rtol=1e-5)


def test_a_network_without_normalizations_is_not_run() -> None:
    net = models.vgg11()
    assert calibrate(net, images((1, 3, 32, 32))) is net
    assert all(p._array is None or p._array._array is None for _, p in net.named_parameters())


def test_bad_data_names_the_layer() -> None:
    net = models.resnet18()
    with pytest.raises(GraphError, match=r"node 'layer4.0.bn1' .* \(1, 512, 1, 1\) has one value"):
        calibrate(net, images((1, 3, 32, 32)))
    x = images((2, 3, 32, 32))
    x[0, 0, 0, 0] = np.nan
    with pytest.raises(GraphError, match=r"node 'bn1' .* not finite"):
        calibrate(net, x)
    with pytest.raises(GraphError, match="has 4 channels"):
        calibrate(net, images((2, 4, 32, 32)))
    with pytest.raises(GraphError, match="calibrate: input 0 is a list; valid is a NumPy array"):
        calibrate(net, [[1.0]])  # type: ignore[arg-type]
