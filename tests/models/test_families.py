"""The later families of the zoo beside torchvision: random weights, predictions, a training step,
and the whole networks in the full run.

Both sides compute in float64, so that a difference of 1e-7 is a mistake and not rounding.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from minidnn import models
from minidnn.graph.evaluate import evaluate
from minidnn.layers.build import to_graph
from tests.cases.record import one_thread
from tests.sampling import only

from .networks import NETWORKS, SMALL, check_spread, images, sized, stir

torch = pytest.importorskip("torch")
from tests.oracles.torchvision_models import models as torchvision_models  # noqa: E402

from .families import CLASSES, FAMILIES  # noqa: E402

BATCH = 4
MOMENTUM = 0.9


def same_weights(net: L.Layer, theirs: Any, size: int) -> np.ndarray:
    """Gives both the same numbers, which all count, and statistics that fit; returns images."""
    stir(net)
    x = images(BATCH, size, 1)
    md.calibrate(net, images(BATCH, size, 0))
    state = theirs.state_dict()
    state |= {key: torch.from_numpy(array) for key, array in net.state_dict().items()}
    theirs.load_state_dict(state)
    theirs.double()
    return x


def largest_error(found: Any, expected: Any) -> float:
    wanted = expected.detach().numpy()
    return float(np.abs(np.asarray(found) - wanted).max() / max(np.abs(wanted).max(), 1e-3))


def check_predictions(net: L.Layer, theirs: Any, x: np.ndarray) -> None:
    with torch.inference_mode():
        expected = theirs.eval()(torch.from_numpy(x).double())
    spread = (expected[0] - expected[1]).abs().max() / expected.abs().max()
    assert spread > 1e-4  # numbers that do not depend on the image would always agree
    (found,) = evaluate(to_graph(net, x.shape), [x], dtype="float64")
    assert largest_error(found, expected) < 1e-10


def check_step(net: L.Layer, theirs: Any, x: np.ndarray) -> None:
    """Loss, gradients and statistics of a step, without what is random."""
    for _, layer in net.named_layers():
        if isinstance(layer, (L.Dropout, L.StochasticDepth)):
            layer.p = 0.0
    for module in theirs.modules():
        if type(module).__name__ in ("Dropout", "StochasticDepth"):
            module.p = 0.0
    targets = np.arange(BATCH) % CLASSES
    loss = torch.nn.functional.cross_entropy(
        theirs.train()(torch.from_numpy(x).double()), torch.from_numpy(targets)
    )
    loss.backward()
    optimizer = md.optim.SGD(1e-3, momentum=MOMENTUM)
    options: dict[str, Any] = {"device": "reference", "precision": "float64"}
    trainer = md.Trainer(net, x.shape, md.losses.CrossEntropy(), optimizer, **options)
    found = {"loss": largest_error(float(trainer.step(x, targets)), loss)}
    for name, parameter in theirs.named_parameters():
        found[name] = largest_error(trainer.store[f"momentum@{name}"], parameter.grad)
    for name, buffer in theirs.named_buffers():
        found[name] = largest_error(trainer.store[name], buffer)
    assert {name: error for name, error in found.items() if not error < 1e-7} == {}


#: Of which the others are made, too.
IN_CI = ("efficientnet", "convnext", "vit", "shufflenet_v2")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("family", only(IN_CI, FAMILIES))
def test_a_small_member_is_drawn_predicts_and_trains_as_torchvisions(family: str) -> None:
    make, size = FAMILIES[family]
    torch.manual_seed(0)
    net, theirs = make()
    check_spread(net.state_dict(), theirs.state_dict())
    with one_thread():
        x = same_weights(net, theirs, size)
        check_predictions(net, theirs, x)
        check_step(net, theirs, x)


@pytest.mark.full
@pytest.mark.parametrize("name", NETWORKS[21:])
def test_a_step_is_torchvisions(name: str) -> None:
    size = SMALL[name]
    net = models.get_model(name, num_classes=CLASSES, **sized(name, size))
    make = getattr(torchvision_models, name)
    theirs = make(weights=None, num_classes=CLASSES, **sized(name, size))
    with one_thread():
        check_step(net, theirs, same_weights(net, theirs, size))
