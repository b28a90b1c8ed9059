"""Words of PyTorch's tensors are found, and tell each change; where they are not, getters do."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from minidnn.acceleration import layout as words
from minidnn.backends.cpu.backend import CpuBackend

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/mem").exists(), reason="a system without /proc"
)


@pytest.fixture(autouse=True)
def runner() -> None:
    if (reason := CpuBackend().unavailable()) is not None:
        pytest.skip(reason)


def weight(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.ones(shape), requires_grad=False)


def _swap(tensor: Any) -> None:
    torch.utils.swap_tensors(tensor, weight(3, 4))


def _set_data(tensor: Any) -> None:
    tensor.data = torch.ones(3, 4)


CHANGES: dict[str, Callable[[Any], Any]] = {
    "a write": lambda tensor: tensor.add_(1),
    "a write to a view": lambda tensor: tensor.detach()[1:].zero_(),
    "other data": _set_data,
    "other memory": lambda tensor: tensor.set_(torch.ones(3, 4)),
    "memory of another size": lambda tensor: tensor.untyped_storage().resize_(1 << 20),
    "another place in its memory": lambda tensor: tensor.set_(
        tensor.untyped_storage(), 1, (2, 4), (4, 1)
    ),
    "another tensor's body": _swap,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("place", [0, 20])
def test_each_change_is_told(change: Callable[[Any], Any], place: int) -> None:
    tensors = [weight(3, 4) for _ in range(21)]
    seen = words.TensorWords(tensors)
    assert seen.others == [] and seen.unchanged()
    assert seen.unchanged()
    change(tensors[place])
    assert not seen.unchanged()
    seen = words.TensorWords(tensors)
    assert seen.others == [] and seen.unchanged()


@pytest.mark.parametrize("asked_in", [torch.inference_mode, partial(torch.device, "meta")])
def test_words_are_found_wherever_they_are_first_asked_for(asked_in: Callable[[], Any]) -> None:
    words.layout.cache_clear()
    try:
        with asked_in():
            assert words.layout() is not None
    finally:
        words.layout.cache_clear()


def test_tensors_of_many_kinds() -> None:
    whole = torch.ones(8, 8)
    plain = [whole, whole[2:], whole.t()[1:, ::2], torch.ones(()), torch.ones(0), weight(2).half()]
    seen = words.TensorWords(plain)
    assert seen.others == [] and seen.unchanged()
    whole.zero_()
    assert not seen.unchanged()
    with torch.sparse.check_sparse_tensor_invariants():
        sparse = torch.sparse_coo_tensor([[0], [1]], [1.0], (2, 2))
    with torch.inference_mode():
        uncounted = torch.ones(2)
    seen = words.TensorWords([sparse, whole, uncounted])
    left = zip(seen.others, (sparse, uncounted), strict=True)
    assert [each is it for each, it in left] == [True] * 2
    assert seen.unchanged()


@pytest.mark.parametrize("why", ["two places", "no memory", "no lock"])
def test_what_is_not_certain_is_asked_for(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    words.layout.cache_clear()
    if why == "two places":
        known = words._candidates

        def twice(*sample: Any) -> Any:
            for found in known(*sample):
                yield from (found, (*found[:-1], 56))

        monkeypatch.setattr(words, "_candidates", twice)
    elif why == "no memory":

        def missing(self: Any) -> None:
            raise FileNotFoundError("/proc/self/mem")

        monkeypatch.setattr(words._Memory, "__enter__", missing)
    else:
        monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)
    try:
        tensors = [weight(2)]
        seen = words.TensorWords(tensors)
        assert seen.unchanged() and seen.others == tensors
    finally:
        words.layout.cache_clear()


def test_addresses_where_nothing_is_are_errors() -> None:
    with words._Memory() as memory:
        for address in (0, 8, 1 << 46, (1 << 64) - 8, 1 << 64):
            with pytest.raises(OSError):
                memory.words(address, 1)
