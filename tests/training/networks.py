"""Networks of the zoo beside PyTorch's, trained from the same numbers, at smooth points.

Where the operand of a rectifier rounds to the other side of zero, the gradient jumps by as much in
float32 as in exact arithmetic.  A network on random weights has about one such element in a
million, each step, and twenty steps blow the jumps up, so that a comparison shows who had fewer.
So biases are moved: a channel lies about three deviations above zero or below it, half of the
channels each.  A few elements in a thousand lie on the other side than their channel, and hardly
any so near to zero that rounding decides.  Small updates and few images keep it so; momenta, which
are sums of gradients, are compared as well, as parameters change little.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from minidnn import models
from minidnn.training.launches import Progress
from tests.cases.record import one_thread

torch = pytest.importorskip("torch")
from tests.oracles.torchvision_models import models as torchvision_models  # noqa: E402

Results = dict[str, np.ndarray]

NETWORKS = models.CLASSIC
#: Those that are trained in float32 as well, on the CPU and on a GPU.
IN_FLOAT32 = (
    *("alexnet", "vgg11_bn", "resnet18", "resnet50", "squeezenet1_1", "densenet121"),
    "inception_v3",
)
#: Each has other weights and batches; the median of what they give is judged.
SEEDS = 5
#: Errors are at least that of rounding the largest number of an array a few times.
FLOOR = 4 * float(np.finfo(np.float32).eps)
#: Rows and columns, and images: as few as leave each normalization eight values for a channel.
SIZES = dict.fromkeys(NETWORKS, 32) | {"inception_v3": 75, "alexnet": 64}
BATCHES = {n: 2 if n.startswith(("alexnet", "squeezenet", "vgg")) else 8 for n in NETWORKS}
CLASSES, STEPS = 5, 20
RATE, MOMENTUM, DECAY = 1e-4, 0.9, 1e-3
DEVIATIONS = 3.0
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


def move_biases(net: Any, images: np.ndarray, seed: int) -> None:
    """Moves the biases of PyTorch's network, so that these images are smooth points of it.

    Layers of equally many channels have the same ones above zero: they may be added up.
    """
    nn = torch.nn
    random = np.random.default_rng(seed)
    layers = [m for m in net.modules() if isinstance(m, (nn.Conv2d, nn.Linear, nn.BatchNorm2d))]
    if any(isinstance(layer, nn.BatchNorm2d) for layer in layers):
        layers = [layer for layer in layers if not isinstance(layer, nn.Conv2d)]
    last = layers[-1]
    sides: dict[int, Any] = {}

    def move(layer: Any, inputs: Any, output: Any) -> Any:
        channels = output.shape[1]
        above = random.permutation(np.where(np.arange(channels) % 2, 1.0, -1.0))
        side = sides.setdefault(channels, torch.from_numpy(above))
        if layer is last:
            side = torch.ones(channels)
        rest = [axis for axis in range(output.ndim) if axis != 1]
        # Of two images, a single channel of a linear layer may hardly have any deviation.
        is_hidden = output.ndim == 2 and layer is not last
        deviation = output.std() if is_hidden else output.std(rest)
        shift = side * DEVIATIONS * deviation - output.mean(rest)
        layer.bias += shift
        return output + shift.reshape(1, -1, *[1] * (output.ndim - 2))

    net.double().train()
    begin = {key: tensor.clone() for key, tensor in net.named_buffers()}
    hooks = [layer.register_forward_hook(move) for layer in layers]
    with torch.no_grad():
        net(torch.from_numpy(images).double())
    for hook in hooks:
        hook.remove()
    for key, tensor in net.named_buffers():
        tensor.copy_(begin[key])
    net.float()


class Run:
    """Twenty steps over four batches, by both from the same numbers."""

    def __init__(self, name: str, seed: int) -> None:
        self.shape = (BATCHES[name], 3, SIZES[name], SIZES[name])
        random = np.random.default_rng(seed)
        self.images = random.standard_normal((4, *self.shape)).astype(np.float32)
        self.targets = random.integers(0, CLASSES, (4, BATCHES[name]))
        self.net, self.theirs = both(name, seed)
        move_biases(self.theirs, self.images[0], seed)
        begin = {key: tensor.numpy() for key, tensor in self.theirs.state_dict().items()}
        self.net.load_state_dict(begin)
        self.theirs.to("meta")  # VGGs are large: the numbers lie in our network alone

    def by_torch(self, dtype: Any, device: str = "cpu") -> Results:
        """The results are the tensors of a network of its own."""
        net = deepcopy(self.theirs).to(dtype).to_empty(device=device).train()
        begin = {key: torch.from_numpy(array) for key, array in self.net.state_dict().items()}
        net.load_state_dict(begin)
        optimizer = torch.optim.SGD(net.parameters(), RATE, MOMENTUM, weight_decay=DECAY)
        losses = []
        for step in range(STEPS):
            x, target = self.images[step % 4], self.targets[step % 4]
            output = net(torch.from_numpy(x).to(device, dtype))
            loss = torch.nn.functional.cross_entropy(output, torch.from_numpy(target).to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        optimizer.zero_grad()
        found = {name: tensor.cpu().numpy() for name, tensor in net.state_dict().items()}
        for name, parameter in net.named_parameters():
            buffer = optimizer.state[parameter]["momentum_buffer"]
            found[f"momentum@{name}"] = buffer.cpu().numpy()
        arrays = {name: array for name, array in found.items() if array.dtype.kind == "f"}
        return {"losses": np.array(losses), **arrays}

    def by_minidnn(self, trainer: md.Trainer) -> Results:
        """By a trainer of such a network, which begins anew."""
        trainer.progress = Progress()
        begin = self.net.state_dict()
        for name, array in trainer.store.items():
            trainer.store[name] = begin.get(name, np.zeros_like(array))
        batches = [(self.images[step % 4], self.targets[step % 4]) for step in range(STEPS)]
        losses = [float(trainer.step(*batch)) for batch in batches]
        return {"losses": np.array(losses), **trainer.store}


def trainer_of(run: Run, **options: Any) -> md.Trainer:
    optimizer = md.optim.SGD(RATE, momentum=MOMENTUM, weight_decay=DECAY)
    return md.Trainer(run.net, run.shape, md.losses.CrossEntropy(), optimizer, **options)


@contextmanager
def tf32(allowed: bool) -> Iterator[None]:
    """PyTorch with or without tf32."""
    places = (torch.backends.cuda.matmul, torch.backends.cudnn)
    before = [place.allow_tf32 for place in places]
    for place in places:
        place.allow_tf32 = allowed
    try:
        yield
    finally:
        for place, was in zip(places, before, strict=True):
            place.allow_tf32 = was


def errors(found: Results, exact: Results) -> dict[str, float]:
    """Of losses, of parameters and statistics, and of momenta, which are sums of gradients: the
    largest, as a part of the largest number of its array."""
    worst = {"losses": 0.0, "parameters": 0.0, "momenta": 0.0}
    for name, array in exact.items():
        kind = "momenta" if name.startswith("momentum@") else "parameters"
        kind = "losses" if name == "losses" else kind
        scale = max(float(np.abs(array).max()), 1e-3)
        away = np.abs(np.asarray(found[name], np.float64) - array).max()
        worst[kind] = max(worst[kind], float(away) / scale)
    return worst


def check_in_float32(name: str, device: str, **options: Any) -> None:
    """Errors on a device are at most three times those of PyTorch's float32 there, against its
    float64, in the median over seeds."""
    ours, theirs = [], []
    trainer: md.Trainer | None = None
    exact: Results = {}
    for seed in range(SEEDS):
        exact.clear()
        run = Run(name, seed)
        with one_thread(), tf32(False):
            exact = run.by_torch(torch.float64, device)
            theirs.append(errors(run.by_torch(torch.float32, device), exact))
        trainer = trainer or trainer_of(run, device=device, precision="float32", **options)
        ours.append(errors(run.by_minidnn(trainer), exact))
    print(f"{name} on {device}, errors by seed: {ours}; PyTorch's: {theirs}")
    for kind in ours[0]:
        found, single = (float(np.median([one[kind] for one in of])) for of in (ours, theirs))
        assert found <= 3 * max(single, FLOOR), f"{kind}: {ours}, PyTorch's {theirs}"
