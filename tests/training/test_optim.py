"""Optimizers beside PyTorch's in float64; LARS and LAMB beside their papers' formulas."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch

import minidnn as md
from minidnn import layers as L
from minidnn.errors import GraphError
from minidnn.training import losses, optim
from minidnn.training.step import Objective, step_graph

Arrays = dict[str, np.ndarray]
SHAPE, STEPS = (6, 4), 21
random = np.random.default_rng(4)
BATCHES = [(random.standard_normal(SHAPE), random.standard_normal((6, 3))) for _ in range(STEPS)]


def network(bias: bool = False) -> md.Sequential:
    return md.Sequential(L.Linear(4, 5, bias), L.BatchNorm1d(5), L.Tanh(), L.Linear(5, 3))


def trained(optimizer: optim.Optimizer, bias: bool = False, **options: Any) -> md.Store:
    """What steps leave in a store."""
    store, share = md.Store(), options.pop("share", 1)
    net, objective = network(bias), Objective(losses.MSE(), {})
    programs = [
        md.compile(
            step_graph(net, SHAPE, objective, optimizer, share=share, last=last, **options),
            device="reference",
            precision="float64",
            store=store,
        )
        for last in ([True] if share == 1 else [False, True])
    ]
    for step, (x, target) in enumerate(BATCHES):
        if (step + 1) % share:
            programs[0](x, target)
        else:
            numbers = optimizer.numbers(step // share)
            programs[-1](x, target, *map(np.float64, numbers.values()))
    return store


def by_torch(
    make: Callable[[Any], Any],
    groups: Callable[[Any], Any] = lambda net: net.parameters(),
    limit: Callable[[Any], Any] = lambda parameters: None,
    share: int = 1,
    seen: Callable[[Any], None] = lambda net: None,
) -> Arrays:
    net = torch.nn.Sequential(
        torch.nn.Linear(4, 5, bias=False),
        torch.nn.BatchNorm1d(5),
        torch.nn.Tanh(),
        torch.nn.Linear(5, 3),
    )
    net.load_state_dict({k: torch.from_numpy(v) for k, v in network().state_dict().items()})
    net = net.double().train()
    optimizer = make(groups(net))
    for step, (x, target) in enumerate(BATCHES):
        loss = torch.nn.functional.mse_loss(net(torch.from_numpy(x)), torch.from_numpy(target))
        (loss / share).backward()
        if (step + 1) % share == 0:
            limit(net.parameters())
            optimizer.step()
            optimizer.zero_grad()
            seen(net)
    return {name: array.numpy() for name, array in net.state_dict().items()}


def assert_equal(store: md.Store, expected: Arrays) -> None:
    for name, array in expected.items():
        np.testing.assert_allclose(store[name], array, rtol=1e-10, atol=1e-13, err_msg=name)


T: Any = torch.optim


@pytest.fixture
def in_float64() -> Iterator[None]:
    """PyTorch has its numbers of steps in the default precision."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (optim.SGD(0.1), lambda p: T.SGD(p, 0.1)),
        (optim.SGD(0.1, momentum=0.9), lambda p: T.SGD(p, 0.1, 0.9)),
        (
            optim.SGD(0.1, momentum=0.9, weight_decay=0.2, nesterov=True),
            lambda p: T.SGD(p, 0.1, 0.9, weight_decay=0.2, nesterov=True),
        ),
        (optim.Adam(0.1), lambda p: T.Adam(p, 0.1)),
        (
            optim.Adam(0.1, betas=(0.5, 0.9), eps=1e-3, weight_decay=0.1),
            lambda p: T.Adam(p, 0.1, (0.5, 0.9), 1e-3, 0.1),
        ),
        (optim.AdamW(0.1), lambda p: T.AdamW(p, 0.1)),
        (optim.AdamW(0.1, weight_decay=0.0), lambda p: T.AdamW(p, 0.1, weight_decay=0.0)),
        (optim.RMSprop(0.01), lambda p: T.RMSprop(p, 0.01)),
        (optim.Adam(0.1, amsgrad=True), lambda p: T.Adam(p, 0.1, amsgrad=True)),
        (
            optim.AdamW(0.1, betas=(0.5, 0.6), amsgrad=True),
            lambda p: T.AdamW(p, 0.1, (0.5, 0.6), amsgrad=True),
        ),
        (optim.Adagrad(0.1), lambda p: T.Adagrad(p, 0.1)),
        (
            optim.Adagrad(
                0.1, lr_decay=0.1, weight_decay=0.2, initial_accumulator_value=0.3, eps=1e-3
            ),
            lambda p: T.Adagrad(p, 0.1, 0.1, 0.2, 0.3, 1e-3),
        ),
        (optim.Adadelta(1.0), lambda p: T.Adadelta(p, 1.0)),
        (
            optim.Adadelta(0.5, rho=0.7, eps=1e-2, weight_decay=0.1),
            lambda p: T.Adadelta(p, 0.5, 0.7, 1e-2, 0.1),
        ),
        (optim.Rprop(0.01), lambda p: T.Rprop(p, 0.01)),
        (
            optim.Rprop(0.01, etas=(0.4, 1.5), step_sizes=(1e-3, 0.03)),
            lambda p: T.Rprop(p, 0.01, (0.4, 1.5), (1e-3, 0.03)),
        ),
        (optim.Adamax(0.1), lambda p: T.Adamax(p, 0.1)),
        (
            optim.Adamax(0.1, betas=(0.6, 0.7), eps=1e-2, weight_decay=0.2),
            lambda p: T.Adamax(p, 0.1, (0.6, 0.7), 1e-2, 0.2),
        ),
        (optim.NAdam(0.1), lambda p: T.NAdam(p, 0.1)),
        (
            optim.NAdam(0.1, betas=(0.6, 0.7), weight_decay=0.2, momentum_decay=0.1),
            lambda p: T.NAdam(p, 0.1, (0.6, 0.7), weight_decay=0.2, momentum_decay=0.1),
        ),
        (
            optim.NAdam(0.1, eps=1e-3, weight_decay=0.2, decoupled_weight_decay=True),
            lambda p: T.NAdam(p, 0.1, eps=1e-3, weight_decay=0.2, decoupled_weight_decay=True),
        ),
        (optim.RAdam(0.1), lambda p: T.RAdam(p, 0.1)),
        (
            optim.RAdam(0.1, betas=(0.6, 0.9), weight_decay=0.2),
            lambda p: T.RAdam(p, 0.1, (0.6, 0.9), weight_decay=0.2),
        ),
        (
            optim.RAdam(0.1, weight_decay=0.2, decoupled_weight_decay=True),
            lambda p: T.RAdam(p, 0.1, weight_decay=0.2, decoupled_weight_decay=True),
        ),
        (
            optim.RMSprop(0.01, alpha=0.8, momentum=0.7, centered=True, weight_decay=0.1),
            lambda p: T.RMSprop(p, 0.01, 0.8, momentum=0.7, centered=True, weight_decay=0.1),
        ),
    ],
    ids=lambda given: str(given) if isinstance(given, optim.Optimizer) else "torch",
)
@pytest.mark.usefixtures("in_float64")
def test_like_torch(ours: optim.Optimizer, theirs: Callable[[Any], Any]) -> None:
    assert_equal(trained(ours), by_torch(theirs))


def test_groups_and_decay_of_weights_alone() -> None:
    ours = optim.SGD(
        0.1, momentum=0.5, weight_decay=0.3, decay="weights", groups={"3.*": {"lr": 2.0}}
    )

    def groups(net: Any) -> list[dict[str, Any]]:
        return [
            {"params": [p], "lr": 0.2 if n[0] == "3" else 0.1, "weight_decay": 0.3 * (p.ndim > 1)}
            for n, p in net.named_parameters()
        ]

    assert_equal(trained(ours), by_torch(lambda p: T.SGD(p, 0.1, 0.5), groups))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("most", [0.05, 10.0])
def test_clipping(most: float) -> None:
    clip = torch.nn.utils
    assert_equal(
        trained(optim.SGD(0.1, clip_norm=most)),
        by_torch(lambda p: T.SGD(p, 0.1), limit=lambda p: clip.clip_grad_norm_(p, most)),
    )
    assert_equal(
        trained(optim.SGD(0.1, clip_value=most / 10)),
        by_torch(lambda p: T.SGD(p, 0.1), limit=lambda p: clip.clip_grad_value_(p, most / 10)),
    )


def test_gradients_of_several_batches_are_added() -> None:
    store = trained(optim.Adam(0.1), share=3)
    assert_equal(store, by_torch(lambda p: T.Adam(p, 0.1), share=3))
    assert not store["sum@0.weight"].any()


def test_moving_average() -> None:
    found: Arrays = {}

    def seen(net: Any) -> None:
        for name, p in net.named_parameters():
            begin = found.get(f"average@{name}", network().state_dict()[name].astype(float))
            found[f"average@{name}"] = 0.8 * begin + (1 - 0.8) * p.detach().numpy()

    by_torch(lambda p: T.SGD(p, 0.1), seen=seen)
    assert_equal(trained(optim.SGD(0.1), average=0.8), found)


def gradients_of(net: L.Layer, arrays: Arrays) -> Callable[[Sequence[np.ndarray]], Arrays]:
    """What gives the gradients of a batch by ``arrays``."""
    graph = Objective(losses.MSE(), {}).applied(net, SHAPE, "train")
    names = list(arrays)
    graph = md.gradient(graph, "loss", of=names)
    store = md.Store()
    exe = md.compile(graph, device="reference", precision="float64", store=store)

    def run(batch: Sequence[np.ndarray]) -> Arrays:
        for name, array in arrays.items():
            store[name] = array
        found = exe(*batch)
        return {name: found[f"gradient.{name}"] for name in names}

    return run


def by_formula(step: Callable[..., np.ndarray], bias: bool = False) -> Arrays:
    net = network(bias)
    names = [name for name, _ in net.trainable_parameters()]
    arrays = {name: net.state_dict()[name].astype(np.float64) for name in names}
    kept: dict[str, dict[str, Any]] = {name: {"m": 0.0, "v": 0.0} for name in names}
    run = gradients_of(net, arrays)
    for t, batch in enumerate(BATCHES):
        gradients = run(batch)
        for name in names:
            arrays[name] = step(t + 1, arrays[name], gradients[name], kept[name])
    return arrays


norm = np.linalg.norm


@pytest.mark.sampled(3)
@pytest.mark.parametrize("decay", ["all", "weights"])
def test_lars(decay: Any) -> None:
    def step(t: int, w: np.ndarray, g: np.ndarray, kept: dict[str, Any]) -> np.ndarray:
        beta = 0.2 if decay == "all" or w.ndim > 1 else 0.0
        rate: Any = 0.5
        if (decay == "all" or w.ndim > 1) and norm(w) > 0 and norm(g) > 0:
            rate *= 0.01 * norm(w) / (norm(g) + beta * norm(w))
        kept["v"] = 0.9 * kept["v"] + rate * (g + beta * w)
        return np.asarray(w - kept["v"])

    ours = optim.LARS(0.5, momentum=0.9, trust=0.01, weight_decay=0.2, decay=decay)
    assert_equal(trained(ours), by_formula(step))


def lamb(decay: str, factor: float) -> Callable[..., np.ndarray]:
    def step(t: int, x: np.ndarray, g: np.ndarray, kept: dict[str, Any]) -> np.ndarray:
        kept["m"] = 0.9 * kept["m"] + 0.1 * g
        kept["v"] = 0.99 * kept["v"] + 0.01 * g**2
        r = kept["m"] / (1 - 0.9**t) / (np.sqrt(kept["v"] / (1 - 0.99**t)) + 1e-6)
        every = decay == "all" or x.ndim > 1
        u = r + (factor if every else 0.0) * x
        ratio = norm(x) / norm(u) if every and norm(x) > 0 and norm(u) > 0 else 1.0
        return np.asarray(x - 0.05 * ratio * u)

    return step


@pytest.mark.sampled(3)
@pytest.mark.parametrize("decay", ["all", "weights"])
def test_lamb(decay: Any) -> None:
    ours = optim.LAMB(0.05, betas=(0.9, 0.99), weight_decay=0.3, decay=decay)
    assert_equal(trained(ours), by_formula(lamb(decay, 0.3)))


def test_lamb_follows_rounding_errors_of_a_bias_that_a_normalization_cancels() -> None:
    ours = optim.LAMB(0.05, betas=(0.9, 0.99), weight_decay=0.0)
    found, expected = trained(ours, bias=True), by_formula(lamb("all", 0.0), bias=True)
    cancelled = np.abs(found["0.bias"] - expected.pop("0.bias"))
    assert cancelled.max() > 1e-3, "its gradient is no more than rounding errors"
    assert_equal(found, expected)


def test_a_loss_that_is_not_finite_changes_nothing() -> None:
    optimizer = optim.Adam(0.1, clip_norm=1.0)
    graph = step_graph(
        network(), SHAPE, Objective(losses.MSE(), {}), optimizer, average=0.9, share=2
    )
    store = md.Store()
    exe = md.compile(graph, device="reference", store=store)
    before = {name: array.copy() for name, array in store.items()}
    x, target = BATCHES[0]
    loss = exe(x, target * np.inf, *map(np.float32, optimizer.numbers(0).values()))["loss"]
    assert not np.isfinite(loss)
    for name, array in store.items():
        np.testing.assert_array_equal(array, before[name], err_msg=name)


def test_each_state_of_an_element_is_one_operator() -> None:
    graph = step_graph(network(), SHAPE, Objective(losses.MSE(), {}), optim.AdamW(0.1))
    nodes = [node for node in graph.nodes if node.name.startswith("optimizer.")]
    assert len(nodes) == 3 * len(list(network().trainable_parameters()))


class Unused(L.Layer):
    def __init__(self) -> None:
        self.used, self.unused, self.apart = L.Linear(4, 3), L.Linear(4, 3), L.Linear(3, 3)

    def forward(self, x: Any) -> Any:
        self.apart(self.used(x))
        return self.used(x)


@pytest.mark.parametrize(
    ("net", "loss", "optimizer", "message"),
    [
        (L.ReLU(), losses.MSE(), optim.SGD(1.0), "ReLU has no trainable parameter; valid is"),
        (L.Linear(4, 3).freeze(), losses.MSE(), optim.SGD(1.0), "has no trainable parameter"),
        (Unused(), losses.MSE(), optim.SGD(1.0), "not depend on 'unused.weight', 'unused.bias', w"),
        (L.Linear(4, 3), lambda x, t: x - t, optim.SGD(1.0), r"loss has shape \(6, 3\); valid is"),
        (L.Linear(4, 3), lambda x, t: 3.0, optim.SGD(1.0), "loss is 3.0 .float.; valid is a symbo"),
        (
            L.Linear(4, 3),
            losses.MSE(),
            optim.SGD(1.0, groups={"wieght": {"lr": 2.0}}),
            "fits no parameter that is trained; did you mean 'weight'",
        ),
    ],
)
def test_what_cannot_be_trained(net: Any, loss: Any, optimizer: Any, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        step_graph(net, SHAPE, Objective(loss, {}), optimizer)


def test_parameters_that_the_loss_does_not_reach_are_named() -> None:
    net = Unused()
    net.unused.freeze()
    with pytest.raises(GraphError, match=r"does not depend on 'apart\.weight', 'apart\.bias'"):
        step_graph(net, SHAPE, Objective(losses.MSE(), {}), optim.SGD(1.0))
    net.apart.freeze()
    step_graph(net, SHAPE, Objective(losses.MSE(), {}), optim.SGD(1.0))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: optim.SGD("0.1"), "SGD: lr='0.1'; valid is a number of at least 0"),  # type: ignore[arg-type]
        (lambda: optim.SGD(0.1, momentum=2.0), "SGD: momentum=2.0; valid is a number from 0 to 1"),
        (lambda: optim.SGD(0.1, nesterov=True), "nesterov=True with momentum=0"),
        (lambda: optim.Adam(0.1, betas=(0.9, 1.5)), r"betas\[1\]=1.5; valid is a number from 0"),
        (lambda: optim.Adam(0.1, decay="biases"), "decay='biases'; valid are 'all' and 'weights'"),  # type: ignore[arg-type]
        (lambda: optim.SGD(0.1, clip_norm=-1.0), "clip_norm=-1.0; valid is"),
        (
            lambda: optim.SGD(0.1, groups={"a": 3.0}),  # type: ignore[dict-item]
            r"SGD: groups=\{'a': 3.0\}; valid is a mapping from patterns to mappings with lr",
        ),
        (
            lambda: optim.SGD(0.1, groups={"a": {"x": 1.0}}),
            "has 'x'; valid are lr, weight_d",
        ),
    ],
)
def test_bad_arguments(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        make()
