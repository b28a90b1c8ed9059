"""Twenty steps of the zoo's networks in float64, on the reference, beside PyTorch's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from minidnn import models

torch = pytest.importorskip("torch")
from tests.oracles.torchvision_models import models as torchvision_models  # noqa: E402

NETWORKS = [name for name in models.list_models() if name != "digits"]
#: Rows and columns: with two values for each channel, a normalization blows rounding errors up.
SIZES = {"inception_v3": 139, "squeezenet1_0": 32, "squeezenet1_1": 32} | dict.fromkeys(
    [name for name in NETWORKS if name.startswith("vgg")], 32
)
STEPS, BATCH, CLASSES, RATE = 20, 2, 5, 1e-3
#: By what a bottleneck's last normalization is multiplied at first.  By 1, resnet50 is chaotic:
#: parameters that differ by a part of 1e-12 give losses that differ by 0.5 after twenty steps of
#: PyTorch in float64, even if the rate is a tenth.  By this, they differ by 1e-11.
BRANCH = np.float32(0.2)


def both(name: str, seed: int = 0) -> tuple[L.Layer, Any]:
    """A network of ours and PyTorch's, with the same weights and without dropout."""
    net = models.get_model(name, num_classes=CLASSES)
    net.initialize(seed)
    state = net.state_dict()
    branches = {k: v * BRANCH for k, v in state.items() if k.endswith("bn3.weight")}
    net.load_state_dict(state | branches)
    for _, layer in net.named_layers():
        if isinstance(layer, L.Dropout):
            layer.p = 0.0
    options = {"aux_logits": False, "init_weights": False} if name == "inception_v3" else {}
    theirs = getattr(torchvision_models, name)(weights=None, num_classes=CLASSES, **options)
    theirs.load_state_dict({k: torch.from_numpy(v) for k, v in net.state_dict().items()})
    for module in theirs.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if hasattr(module, "drop_rate"):
            module.drop_rate = 0.0
    return net, theirs


def compare(name: str, steps: int) -> None:
    size = SIZES.get(name, 64)
    random = np.random.default_rng(0)
    batches = random.standard_normal((4, BATCH, 3, size, size))
    targets = random.integers(0, CLASSES, (4, BATCH))
    net, theirs = both(name)
    theirs = theirs.double().train()
    trainer = md.Trainer(
        net,
        (BATCH, 3, size, size),
        md.losses.CrossEntropy(),
        md.optim.SGD(RATE, momentum=0.9, weight_decay=1e-3),
        device="reference",
        precision="float64",
    )
    optimizer = torch.optim.SGD(theirs.parameters(), RATE, 0.9, weight_decay=1e-3)
    for step in range(steps):
        x, target = batches[step % 4], targets[step % 4]
        found = float(trainer.step(x, target))
        loss = torch.nn.functional.cross_entropy(
            theirs(torch.from_numpy(x)), torch.from_numpy(target)
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert found == pytest.approx(loss.item(), rel=1e-7), f"step {step}"
    for key, tensor in theirs.state_dict().items():
        array = tensor.numpy()
        scale = max(float(np.abs(array).max()), 1e-3)
        np.testing.assert_allclose(trainer.store[key], array, 0, 1e-6 * scale, err_msg=key)


def test_a_network() -> None:
    compare("squeezenet1_1", 4)


@pytest.mark.full
@pytest.mark.parametrize("name", NETWORKS)
def test_every_network(name: str) -> None:
    compare(name, STEPS)
