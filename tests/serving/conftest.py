"""Servers that run in a thread of the tests, with networks that NumPy computes in a line."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from minidnn.serving.model import Opened, Source
from minidnn.serving.server import Server
from minidnn.serving.settings import Settings

FEATURES = 6


@dataclass
class Weights:
    """Those of a linear layer, which a test may change before it loads the model again."""

    weight: np.ndarray
    bias: np.ndarray

    def __call__(self, x: Any) -> np.ndarray:
        """What the network computes, in float64."""
        return np.asarray(x, np.float64) @ self.weight.T.astype(np.float64) + self.bias


def weights(seed: int = 0) -> Weights:
    random = np.random.default_rng(seed)
    return Weights(
        random.standard_normal((4, FEATURES)).astype(np.float32),
        random.standard_normal(4).astype(np.float32),
    )


def linear(given: Weights, name: str = "linear", version: int = 1) -> Source:
    """A model whose weights are read when it is loaded."""

    def opened() -> Opened:
        net = L.Linear(FEATURES, len(given.weight))
        net.load_state_dict({"weight": given.weight.copy(), "bias": given.bias.copy()})
        return Opened(lambda rows: md.compile(net, (rows or 1, FEATURES), device="reference"), True)

    return Source(name, version, "minidnn", opened)


@dataclass
class Running:
    """A server and its addresses."""

    server: Server
    rest: str = ""
    grpc: str = ""
    ready: threading.Event = field(default_factory=threading.Event)
    error: BaseException | None = None

    def told(self, text: str) -> None:
        if text.startswith("REST"):
            self.rest = text.rpartition("/")[2]
        elif text.startswith("gRPC"):
            self.grpc = text.rpartition(" ")[2]
        else:
            self.ready.set()


@contextmanager
def running(*sources: Source, wait: bool = True, **settings: Any) -> Iterator[Running]:
    """Serves, until the block ends, which waits for the server's end."""
    given = Settings(**{"port": 0, "grpc_port": 0, "max_delay": 0.001, **settings})
    found: list[Running] = []
    server = Server(sources, given, lambda told: found[0].told(told))
    found.append(Running(server))

    def run() -> None:
        try:
            server.run()
        except BaseException as error:
            found[0].error = error
            found[0].ready.set()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        if wait:
            assert found[0].ready.wait(30)
        yield found[0]
    finally:
        server.stop()
        thread.join(30)
        assert not thread.is_alive()
    if wait and found[0].error is not None:
        raise found[0].error


@pytest.fixture(scope="module")
def known() -> Weights:
    return weights()


@pytest.fixture(scope="module")
def server(known: Weights) -> Iterator[Running]:
    """A server of one model in two versions, the second with other weights."""
    with running(linear(known), linear(weights(1), version=2)) as found:
        yield found


@pytest.fixture
def serve() -> Callable[..., Any]:
    return running
