"""Mutated files: always a WeightsError or what the format's own library reads; never much memory.

A storage of torch.save's zip format carries a checksum, so there every accepted file must give the
original tensors.  The other formats have none: what is accepted is compared with the library.
"""

from __future__ import annotations

import random
import struct
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch

from minidnn.errors import WeightsError
from minidnn.weights import Unread, load_weights, save_weights
from tests.damage.mutations import mutated

Arrays = dict[str, np.ndarray[Any, Any]]
FORMATS = ["safetensors", "zip", "legacy"]
PEAK = 8 << 20  # the files have a few kB
SECONDS = 5.0
# Where minidnn refuses on purpose what the library takes.
STRICTER = ("BOOL data", "appears twice", UNREAD := "unread")


@pytest.fixture
def whole(tmp_path: Path, tensors: Arrays, request: pytest.FixtureRequest) -> tuple[bytes, Arrays]:
    """The bytes of a good file and its tensors."""
    path = tmp_path / "good"
    given = {name: tensors[name] for name in ("layer.f4", "layer.i8", "layer.?", "empty", "scalar")}
    if request.param == "safetensors":
        save_weights(given, path)
    else:
        state = {name: torch.from_numpy(array) for name, array in given.items()}
        state["view"] = state["layer.f4"][1:, ::2]
        given["view"] = given["layer.f4"][1:, ::2]
        torch.save(state, path, _use_new_zipfile_serialization=request.param == "zip")
    return path.read_bytes(), given


def mutants(data: bytes, count: int, seed: int) -> Iterator[bytes]:
    rng = random.Random(seed)
    for _ in range(count):
        yield mutated(rng, data)


def run(path: Path, data: bytes) -> tuple[Arrays | None, str]:
    """What a file holds, or the text of a WeightsError; anything else fails the test."""
    path.write_bytes(data)
    tracemalloc.reset_peak()
    began = time.process_time()
    found, text = None, ""
    try:
        found = load_weights(path)
    except WeightsError as error:
        text = str(error)
        assert str(path) in text
        assert len(text) < 1500
    else:
        if any(isinstance(array, Unread) for array in found.values()):
            found, text = None, UNREAD
        for array in (found or {}).values():
            array.tobytes()  # every element can be reached
    assert tracemalloc.get_traced_memory()[1] < PEAK
    assert time.process_time() - began < SECONDS
    return found, text


def equal(found: Arrays, expected: Arrays) -> bool:
    return found.keys() == expected.keys() and all(
        found[name].dtype == array.dtype
        and found[name].shape == array.shape
        and found[name].tobytes() == array.tobytes()
        for name, array in expected.items()
    )


def check_safetensors(data: bytes, found: Arrays | None, text: str) -> None:
    try:
        theirs = safetensors.numpy.load(data)
    except (safetensors.SafetensorError, KeyError, ValueError, TypeError) as error:
        assert found is None, f"the library refuses what was accepted: {error}"
        return
    if found is not None:
        assert equal(found, theirs)
    else:
        assert any(reason in text for reason in STRICTER), text


def check_legacy(path: Path, found: Arrays | None) -> None:
    if found is None:
        return
    try:
        theirs = torch.load(path, weights_only=True)
    except Exception:  # its refusals have many types; it looks at more, like device names
        return
    arrays = {name: tensor.float() if tensor.dtype == torch.bfloat16 else tensor
              for name, tensor in theirs.items()}  # fmt: skip
    assert equal(found, {name: tensor.numpy() for name, tensor in arrays.items()})


def fuzz(path: Path, form: str, whole: tuple[bytes, Arrays], count: int, seed: int) -> int:
    """Runs mutants; returns how many were accepted."""
    data, original = whole
    accepted = 0
    tracemalloc.start()
    try:
        for mutant in mutants(data, count, seed):
            found, text = run(path, mutant)
            accepted += found is not None
            if form == "safetensors":
                check_safetensors(mutant, found, text)
            elif form == "legacy":
                check_legacy(path, found)
            elif found is not None:
                assert equal(found, original)
    finally:
        tracemalloc.stop()
    return accepted


@pytest.mark.parametrize(("whole", "form"), [(form, form) for form in FORMATS], indirect=["whole"])
def test_mutated_files(tmp_path: Path, whole: tuple[bytes, Arrays], form: str) -> None:
    assert equal(run_good(tmp_path, whole[0]), whole[1])
    accepted = fuzz(tmp_path / "mutant", form, whole, 170, seed=1)
    assert 0 < accepted < 150  # the mutations are neither harmless nor always fatal


def run_good(tmp_path: Path, data: bytes) -> Arrays:
    (tmp_path / "copy").write_bytes(data)
    return load_weights(tmp_path / "copy")


@pytest.mark.parametrize("seed", range(3))
def test_random_bytes_behind_each_beginning(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    begins = [b"", b"PK\3\4", b"PK\5\6", b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.", b"\x80\x02",
              struct.pack("<Q", 50) + b"{"]  # fmt: skip
    for begin in begins:
        for _ in range(20):
            path = tmp_path / "random"
            path.write_bytes(begin + rng.randbytes(rng.randrange(300)))
            with pytest.raises(WeightsError):
                load_weights(path)
