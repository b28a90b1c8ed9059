"""Batches that something else makes, with a place to resume at."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from minidnn.data import Batches, DataError

PAIRS = [(np.full((2, 1), i, np.float64), np.array([i, i], np.int32)) for i in range(4)]


def numbers(batches: Any) -> list[int]:
    return [int(target[0]) for _, target in batches]


def test_a_list() -> None:
    batches = Batches(PAIRS)
    assert len(batches) == 4
    assert numbers(batches) == numbers(batches) == [0, 1, 2, 3]
    x, target = next(iter(batches))
    assert x.dtype == np.float32 and target.dtype == np.int64


def shuffled(epoch: int) -> Any:
    torch = pytest.importorskip("torch")
    data = torch.utils.data.TensorDataset(torch.rand(20, 1, 2, 2), torch.arange(20))
    order = torch.Generator().manual_seed(epoch)
    return torch.utils.data.DataLoader(data, 4, shuffle=True, generator=order)


def test_pytorchs_loader_resumes_at_every_place() -> None:
    batches = Batches(shuffled)
    assert len(batches) == 5
    states, targets = [batches.state()], []
    for _ in range(2):
        for _, target in batches:
            targets.append(target)
            states.append(batches.state())
    for place, state in enumerate(states):
        other = Batches(shuffled)
        other.restore(json.loads(json.dumps(state)))
        rest = [target for _ in range(2 - state["epoch"]) for _, target in other]
        assert len(rest) == len(targets) - place
        for found, expected in zip(rest, targets[place:], strict=True):
            np.testing.assert_array_equal(found, expected)


def test_whatever_is_given_can_be_converted() -> None:
    """grain's loaders give dicts, of pictures with channels last."""
    items = [{"image": np.zeros((2, 5, 4, 3), np.uint8), "label": np.zeros(2)}]
    batches = Batches(items, lambda item: (item["image"].transpose(0, 3, 1, 2), item["label"]))
    ((x, _),) = batches
    assert x.shape == (2, 3, 5, 4)


def test_an_iterator_is_read_once() -> None:
    batches = Batches(iter(PAIRS))
    assert numbers(batches) == [0, 1, 2, 3]
    with pytest.raises(DataError, match=r"0 batches in epoch 1.*iterator can be read only once"):
        list(batches)
    with pytest.raises(TypeError, match="has no len"):
        len(batches)


def test_a_state_beyond_the_end() -> None:
    batches = Batches(PAIRS)
    batches.restore({"epoch": 0, "position": 4})
    assert numbers(batches) == [] and batches.state() == {"epoch": 1, "position": 0}
    batches.restore({"epoch": 0, "position": 6})
    with pytest.raises(DataError, match="the source has 4 batches in epoch 0, and more were"):
        list(batches)


def failing() -> Iterator[Any]:
    yield PAIRS[0]
    raise OSError("the disk is gone")


def test_errors_of_the_source_are_its_own() -> None:
    batches = Batches(lambda epoch: failing())
    with pytest.raises(OSError, match="the disk is gone"):
        list(batches)
    assert batches.state() == {"epoch": 0, "position": 1}


@pytest.mark.parametrize(
    ("item", "text"),
    [
        ({"x": 1}, "batch 0 of epoch 0 is a dict; valid is a pair (x, target): give convert="),
        ((1, 2, 3), "batch 0 of epoch 0 is a tuple"),
        ((np.zeros((3, 1)), np.zeros(2)), "batch 0 of epoch 0 has 3 samples and 2 targets"),
        ((np.full((2, 1), np.nan), np.zeros(2)), "has NaN or infinities; finite=False lets"),
    ],
)
def test_what_is_no_batch(item: Any, text: str) -> None:
    with pytest.raises(DataError, match=re.escape(text)):
        list(Batches([item]))


def test_what_is_no_source() -> None:
    with pytest.raises(DataError, match="source is a int; valid are an iterable of batches"):
        Batches(3)  # type: ignore[arg-type]
    assert np.isnan(next(iter(Batches([(np.full(1, np.nan), np.zeros(1))], finite=False)))[0])
