"""Checkpoints hold weights and anything else: what is not asked for is not read."""

from __future__ import annotations

import argparse
import collections
import datetime
import enum
import fractions
import functools
import io
import pathlib
import random
import types
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

import minidnn as md
from minidnn import layers as L
from minidnn.errors import GraphError, WeightsError
from minidnn.weights import Unread, load_weights


class Colour(enum.Enum):
    RED = 1


class Config(dict[str, Any]):
    """A dict with attributes, as configurations are."""

    def __init__(self, **entries: Any) -> None:
        super().__init__(entries)
        self.comment = "mine"


class Row(collections.namedtuple("Row", "a b")):
    pass


def odd_objects() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    itself: list[Any] = []
    itself.append((itself, {"x": itself}))
    network = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    optimizer = torch.optim.Adam(network.parameters())
    network(torch.ones(3, 2)).sum().backward()
    optimizer.step()
    marked = torch.ones(2)
    marked.comment = "mine"  # type: ignore[attr-defined]
    return {
        "namespace": argparse.Namespace(lr=0.1, layers=[1, 2], where=pathlib.Path("/tmp")),
        "counter": collections.Counter("hello"),
        "default dict": collections.defaultdict(list, a=[1]),
        "scalars": [np.float32(1), np.float64(np.nan), np.int64(3), np.bool_(True), 1 + 2j],
        "arrays": [np.arange(6).reshape(2, 3), np.array(["a", None], object), np.dtype("f4")],
        "sets": [{1, 2}, frozenset("ab"), collections.deque([1]), set()],
        "torch": [torch.device("cuda:0"), torch.float16, torch.strided, torch.Size([2, 3])],
        "keys": {1.5: 1, (1, (2, "x")): 2, None: 3, b"x": 4, True: 5, 2**70: 6, Colour.RED: 7},
        "numbers": [2**300, -(2**4000), 2**63, float("inf"), -1],
        "bytes": [b"abc", bytearray(b"abc"), b"\xff" * 300, "", "\ud800", "\U0001f600"],
        "time": [datetime.datetime(2024, 1, 2), datetime.timedelta(3), fractions.Fraction(1, 3)],
        "others": [Colour.RED, Config(a=1), Row(1, 2), functools.partial(print, 1), slice(1, 2)],
        "functions": [len, print, torch.nn.ReLU, types.SimpleNamespace(a=1), range(3)],
        "random": [random.getstate(), np.random.RandomState(1).get_state(), rng],
        "generator": torch.Generator().get_state(),
        "itself": itself,
        "network": network,
        "optimizer": [optimizer.state_dict(), optimizer],
        "tensors": [*foreign().values(), marked, torch.nn.Parameter(torch.ones(3))],
    }


def foreign() -> dict[str, torch.Tensor]:
    """Tensors that no array here can be; their dtypes or kinds."""
    ones = torch.ones(2, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch calls some of them deprecated or new
        return {
            "float8_e4m3fn": ones.to(torch.float8_e4m3fn),
            "float8_e5m2": ones.to(torch.float8_e5m2),
            "uint16": ones.to(torch.uint16),
            "uint64": ones.to(torch.uint64),
            "complexfloat": ones.to(torch.complex64),
            "complexdouble": ones.to(torch.complex128).conj(),
            "conjugated or negated": torch.view_as_complex(torch.ones(2, 3, 2)).conj().imag,
            "_rebuild_sparse_tensor": ones.to_sparse(),
            "_rebuild_qtensor": torch.quantize_per_tensor(ones, 0.1, 0, torch.qint8),
            "_rebuild_meta_tensor": torch.ones(2, 3, device="meta"),
        }


FORMATS: dict[str, dict[str, Any]] = {
    f"{name} {protocol}": {"pickle_protocol": protocol, **options}
    for protocol in (2, 3, 4, 5)
    for name, options in (("zip", {}), ("legacy", {"_use_new_zipfile_serialization": False}))
}


@pytest.fixture(params=FORMATS)
def save(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    def write(content: Any) -> Path:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.save(content, tmp_path / "file.pth", **FORMATS[request.param])
        return tmp_path / "file.pth"

    return write


def same(found: Any, expected: dict[str, torch.Tensor]) -> None:
    assert list(found) == list(expected)
    for name, tensor in expected.items():
        np.testing.assert_array_equal(found[name], tensor.detach().numpy())


def test_entries_that_are_not_asked_for_may_hold_anything(save: Any) -> None:
    state = {"w": torch.arange(6.0).reshape(2, 3).T, "b": torch.arange(3)}
    objects = odd_objects()
    for value in objects.values():
        path = save({"before": value, "state_dict": state, "after": [value]})
        same(load_weights(path, key="state_dict"), state)
        with pytest.raises(WeightsError, match=r"its entry 'before' holds .* not a (state|tensor)"):
            load_weights(path, key="before")
    path = save({**objects, "model": {"ema": collections.defaultdict(None, state)}})
    same(load_weights(path, key=["model", "ema"]), state)


def test_arrays_in_the_pickle_itself_may_be_large(tmp_path: Path) -> None:
    """NumPy's lie there, and not in a record of their own."""
    state = {"w": torch.arange(3.0)}
    large = [np.zeros(2 << 20), b"x" * (20 << 20), "\u20ac" * (6 << 20)]
    for protocol in (2, 4):
        content = {"before": large, "state_dict": state, "after": large}
        torch.save(content, tmp_path / "x.pth", pickle_protocol=protocol)
        same(load_weights(tmp_path / "x.pth", key="state_dict"), state)


def test_the_objects_above_are_what_pytorch_reads(tmp_path: Path) -> None:
    """So that the files are whole: PyTorch, which executes them, gets everything back."""
    for value in odd_objects().values():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.save(value, tmp_path / "x")
            assert type(torch.load(tmp_path / "x", weights_only=False)) is type(value)


def test_tensors_that_no_array_can_be_are_refused_where_they_are_needed(save: Any) -> None:
    for kind, tensor in foreign().items():
        state = {"a": torch.ones(2), "odd": tensor, "z": torch.zeros(3)}
        for copy in (False, True):
            found = load_weights(save(state), copy=copy)
            assert list(found) == ["a", "odd", "z"]
            assert found["a"].tolist() == [1, 1] and found["z"].tolist() == [0, 0, 0]
            odd = found["odd"]
            assert isinstance(odd, Unread) and kind in odd.dtype
            if not kind.startswith("_"):
                assert odd.shape == (2, 3) and odd.ndim == 2
            text = rf"file\.pth': .*'odd'.*{kind}.*; valid are dense tensors of F64, F32"
            for read in (np.asarray, np.array, lambda x: np.asarray(x, np.float32)):
                with pytest.raises(WeightsError, match=text):
                    read(odd)


def test_networks_take_what_they_need_of_such_files(save: Any) -> None:
    net = L.Linear(3, 2)
    state = {"weight": torch.ones(2, 3), "bias": torch.ones(2), "scale": foreign()["float8_e5m2"]}
    left = net.load_state_dict(load_weights(save(state)), strict=False)
    assert left == ([], ["scale"])
    assert net.state_dict()["bias"].tolist() == [1, 1]
    state["weight"] = foreign()["float8_e4m3fn"]
    with pytest.raises(
        WeightsError, match=r"not an array: weight \(weight file .*float8_e4m3fn; va"
    ):
        net.load_state_dict(load_weights(save(state)), strict=False)
    extra = {"weight": torch.ones(2, 3), "q._extra_state": {"any": argparse.Namespace()}}
    assert isinstance(load_weights(save(extra))["q._extra_state"], Unread)


def test_safetensors_of_other_dtypes(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    tensors = {"a": torch.arange(4.0), "z": torch.arange(3)}
    odd = {"F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "U16": torch.uint16,
           "U64": torch.uint64, "C64": torch.complex64}  # fmt: skip
    state = {**tensors, **{name: torch.ones(2, 3).to(dtype) for name, dtype in odd.items()}}
    safetensors.torch.save_file(state, path)
    found: Any = load_weights(path)
    assert sorted(found) == sorted(state)
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(found[name], tensor.numpy())
    for name in odd:
        assert (found[name].dtype, found[name].shape) == (name, (2, 3))
        with pytest.raises(
            WeightsError, match=rf"tensor '{name}' of shape \[?\(?2, 3.* {name}; va"
        ):
            np.asarray(found[name])
    with pytest.raises(GraphError, match="holds weights, but no graph"):
        md.load_graph(path)


def test_a_network_that_was_saved_whole(tmp_path: Path) -> None:
    """As the old tutorial does it: there is no dict at all, and nothing is executed."""
    stream = io.BytesIO()
    torch.save({"model": torch.nn.Linear(2, 2), "epoch": 3}, stream)
    (tmp_path / "x.pth").write_bytes(stream.getvalue())
    text = "its entry 'model' holds an object of 'torch.nn.modules.linear.Linear', of which nothing"
    with pytest.raises(WeightsError, match=text):
        load_weights(tmp_path / "x.pth", key="model")
