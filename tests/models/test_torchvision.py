"""The zoo's networks against torchvision's: names, shapes and dtypes of parameters, and numbers.

Weights move through state dicts in both directions.  Both sides compute in float64, ours by the
NumPy reference, so that a difference of 1e-10 is a mistake and not rounding.  The networks are
also compiled, all passes included, and run in float32 for the reference device: the error against
float64 may be three times PyTorch's own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from minidnn import models
from minidnn.graph.checker import check
from minidnn.graph.evaluate import evaluate
from minidnn.layers.build import to_graph
from minidnn.layers.calibration import calibrate
from tests.sampling import IS_FULL, every, only

torch = pytest.importorskip("torch")
from tests.oracles.torchvision_models import models as torchvision_models  # noqa: E402
from tests.oracles.torchvision_models import unfilled  # noqa: E402

from .networks import LATER, NETWORKS, SMALL, calibrated, images, peer_of, theirs  # noqa: E402


def ours(net, x: np.ndarray) -> np.ndarray:
    """What our network computes in float64, as it was defined: no pass has run."""
    graph = to_graph(net, x.shape)
    check(graph)
    (y,) = evaluate(graph, [x], dtype="float64")
    return y


def compare(name: str, size: int, batch: int = 2) -> None:
    net = calibrated(name, size)
    x = images(batch, size, 1)
    expected = theirs(peer_of(name, size), net.state_dict(), x)
    scale = np.abs(expected).max()
    assert expected.shape == (batch, 12)
    # Numbers that do not depend on the image would agree whatever the layers do.
    assert batch == 1 or np.abs(expected[0] - expected[1]).max() > 1e-4 * scale > 0
    np.testing.assert_allclose(ours(net, x), expected, rtol=0, atol=1e-10 * scale)

    compiled = md.compile(net, x.shape, device="reference")(x)
    single = theirs(peer_of(name, size), net.state_dict(), x, "float32")
    error, peers_error = (np.abs(y - expected).max() for y in (compiled, single))
    # Where both are as good as exact, a few roundings of the largest output are no ratio.
    floor = 3 * np.finfo(np.float32).eps * scale
    assert compiled.dtype == np.float32 and error <= max(3 * peers_error, floor)


def test_there_are_44_of_them_21_classics() -> None:
    assert (len(NETWORKS), len(models.CLASSIC)) == (44, 21)
    assert NETWORKS[:21] == list(models.CLASSIC)
    assert set(NETWORKS) <= set(torchvision_models.list_models())


def settings(layers: Iterable[tuple[str, Any]]) -> dict[str, list[Any]]:
    """What training makes use of, in the order of the layers, of ours or PyTorch's."""
    found: dict[str, list[Any]] = {"norms": [], "Dropout": [], "StochasticDepth": []}
    for path, layer in layers:
        kind = type(layer).__name__
        if kind == "BatchNorm2d":
            eps = getattr(layer, "op", layer).eps  # ours has it in its operator
            found["norms"].append((path, eps, layer.momentum))
        elif kind in found and layer.p > 0:
            found[kind].append(layer.p)
    return found


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", every(2, NETWORKS))
def test_state_dict_and_settings_are_torchvisions(name: str) -> None:
    """Names of parameters, in order, shapes and dtypes, and what training makes use of."""
    theirs = unfilled(name)
    expected = [
        (key, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
        for key, tensor in theirs.state_dict().items()
    ]
    net = models.get_model(name)
    assert settings(net.named_layers()) == settings(theirs.named_modules())
    assert [(k, p.type.shape, p.type.dtype) for k, p in net.named_parameters()] == expected


TORCHS_LINEAR: Any = torch.nn.Linear


class Narrow(L.Linear):
    """Between fewer features where there are most: drawing and converting a hundred million
    weights takes a hundred times longer than the rest of a network."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(narrow(inputs), narrow(outputs))


class TorchsNarrow(TORCHS_LINEAR):
    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(narrow(in_features), narrow(out_features))


def narrow(features: int) -> int:
    return 96 if features == 4096 else features


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "name",
    only(("alexnet", "vgg11_bn", "resnet50", "squeezenet1_1", "densenet121"), NETWORKS),
)
def test_numbers_are_torchvisions(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """How wide linear layers are is seen in the state dict."""
    if not IS_FULL:
        monkeypatch.setattr(L, "Linear", Narrow)
        monkeypatch.setattr(torch.nn, "Linear", TorchsNarrow)
    compare(name, SMALL[name])


@pytest.mark.full
@pytest.mark.parametrize("name", NETWORKS[21:])
def test_numbers_are_torchvisions_at_odd_sizes(name: str) -> None:
    compare(name, 48 if name == "vit_b_16" else 101)


@pytest.mark.full
@pytest.mark.parametrize(
    "name",
    [
        *("alexnet", "vgg11_bn", "resnet50", "squeezenet1_0", "densenet121", "inception_v3"),
        *LATER,
    ],
)
def test_numbers_are_torchvisions_at_full_size(name: str) -> None:
    compare(name, models.get_model(name).input_shape[1], batch=1)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ["resnet18", "densenet121", "mnasnet0_5", "regnet_x_400mf"])
def test_takes_torchvisions_state_dict(name: str) -> None:
    torch.manual_seed(0)
    state = getattr(torchvision_models, name)(weights=None).state_dict()
    net = models.get_model(name, seed=1)
    net.load_state_dict(state)
    mine = net.state_dict()
    assert list(mine) == list(state)
    for key, tensor in state.items():
        assert mine[key].dtype == tensor.numpy().dtype, key
        np.testing.assert_array_equal(mine[key], tensor.numpy(), err_msg=key)


def test_inception_ignores_the_auxiliary_classifier() -> None:
    torch.manual_seed(0)
    state = torchvision_models.inception_v3(weights=None, init_weights=False).state_dict()
    assert any(key.startswith("AuxLogits.") for key in state)
    net = models.inception_v3()
    net.load_state_dict(state)
    kept = {key: tensor for key, tensor in state.items() if not key.startswith("AuxLogits.")}
    assert list(net.state_dict()) == list(kept)
    np.testing.assert_array_equal(net.state_dict()["fc.weight"], kept["fc.weight"].numpy())


def test_inception_transforms_its_input_as_torchvision_does() -> None:
    x = images(2, 75, 1)
    net = calibrate(models.inception_v3(num_classes=12, transform_input=True), images(4, 75, 0))
    expected = theirs(
        unfilled("inception_v3", num_classes=12, transform_input=True), net.state_dict(), x
    )
    scale = np.abs(expected).max()
    # The numbers of the transform are float32 here and float64 there.
    np.testing.assert_allclose(ours(net, x), expected, rtol=0, atol=3e-6 * scale)
    plain = models.inception_v3(num_classes=12)
    plain.load_state_dict(net.state_dict())
    assert np.abs(ours(plain, x) - expected).max() > 1e-2 * scale


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", NETWORKS)
def test_input_shape_is_torchvisions_crop(name: str) -> None:
    weights = torchvision_models.get_model_weights(name).DEFAULT
    crop = weights.transforms.keywords["crop_size"]
    assert models.get_model(name).input_shape == (3, crop, crop)
