"""The zoo beside torchvision: which networks are compared, at which size, with which weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from minidnn import layers as L
from minidnn import models
from minidnn.layers.calibration import calibrate

NETWORKS = [name for name in models.list_models() if name != "digits"]
#: One of each later family, of the size that is used most.
LATER = (
    *("mobilenet_v2", "mobilenet_v3_large", "efficientnet_b0", "regnet_y_400mf"),
    *("shufflenet_v2_x1_0", "mnasnet1_0", "convnext_tiny", "resnext50_32x4d", "vit_b_16"),
)
#: Rows and columns that every layer still fits on, and that keep the test fast.  EfficientNets are
#: deep, and chaotic where their last stages have four pixels.
SMALL = (
    dict.fromkeys(NETWORKS, 64)
    | {"alexnet": 64, "inception_v3": 75, "vit_b_16": 32}
    | dict.fromkeys([name for name in NETWORKS if name.startswith("vgg")], 32)
    | dict.fromkeys([name for name in NETWORKS if name.startswith("efficientnet")], 75)
)


def sized(name: str, size: int) -> dict[str, int]:
    """The options of a network that takes pictures of a size; most take any."""
    return {"image_size": size} if name == "vit_b_16" else {}


def peer_of(name: str, size: int) -> Any:
    """torchvision's of twelve classes, for pictures of a size."""
    from tests.oracles.torchvision_models import unfilled

    return unfilled(name, num_classes=12, **sized(name, size))


def images(batch: int, size: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((batch, 3, size, size), np.float32)


def calibrated(name: str, size: int) -> L.Layer:
    """A network of the zoo of twelve classes, whose statistics are those of noise of a size."""
    net = models.get_model(name, num_classes=12, **sized(name, size))
    if name not in models.CLASSIC:
        stir(net)
    return calibrate(net, images(4, size, 0))


def stir(net: L.Layer) -> None:
    """Draws anew what a network begins with as all the same: scales, biases, tokens.

    Only then do they count: a ConvNeXt's blocks begin as next to nothing, a transformer's head as
    0.
    """
    random = np.random.default_rng(0)
    state = net.state_dict()
    for key, array in state.items():
        if key.endswith(("running_mean", "running_var", "num_batches_tracked")):
            continue
        if (array == array.flat[0]).all():
            is_scale = array.flat[0] != 0
            drawn = random.uniform(0.25, 0.75, array.shape)
            state[key] = drawn if is_scale else random.normal(0, 0.1, array.shape)
    net.load_state_dict(state)


def theirs(net: Any, state: Any, x: np.ndarray, dtype: str = "float64") -> np.ndarray:
    """What torchvision's network computes in ``dtype`` with a state dict of NumPy arrays."""
    import torch

    tensors = net.state_dict()  # MNASNet asks for the version that PyTorch keeps beside it
    tensors |= {
        k: torch.from_numpy(v if v.dtype.kind == "i" else v.astype(dtype, copy=False))
        for k, v in state.items()
    }
    net.load_state_dict(tensors, strict=True, assign=True)
    with torch.inference_mode():
        return net(torch.from_numpy(x.astype(dtype))).numpy()


def check_spread(mine: dict[str, np.ndarray], expected: Any) -> None:
    """Holds standard deviation and range of each larger weight to torchvision's own draw."""
    for key, tensor in expected.items():
        theirs, ours = tensor.numpy(), mine[key]
        if theirs.std() == 0:
            np.testing.assert_array_equal(ours, theirs, err_msg=key)
        elif theirs.size >= 500:
            # Estimates of a standard deviation from n numbers spread by about 0.7 / sqrt(n).
            assert ours.std() == pytest.approx(theirs.std(), rel=5 / theirs.size**0.5), key
            assert abs(ours).max() == pytest.approx(abs(theirs).max(), rel=0.5), key
