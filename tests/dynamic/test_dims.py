"""Named sizes: what is legal, and which arrays are refused."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from minidnn.errors import GraphError

Dim = md.Dim


def refused(text: str, call: Any, *given: Any, **named: Any) -> None:
    with pytest.raises(GraphError, match=f"^{re.escape(text)}"):
        call(*given, **named)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (("", 1, 4), "Dim: name=''; valid is a text that is not empty"),
        ((3, 1, 4), "Dim: name=3; valid is a text that is not empty"),
        (("n", 0, 4), "Dim 'n': least=0; valid is an int of at least 1"),
        (("n", 1, 2.5), "Dim 'n': most=2.5; valid is an int of at least 1"),
        (("n", True, 4), "Dim 'n': least=True; valid is an int of at least 1"),
        (("n", 1, 4, 0), "Dim 'n': multiple=0; valid is an int of at least 1"),
        (("n", 5, 4), "Dim 'n': least=5, most=4; valid is a range"),
        (("n", 2, 8, 4), "Dim 'n': least=2, most=8, multiple=4; valid are ends that are multiples"),
    ],
)
def test_what_is_no_named_size(given: tuple[Any, ...], text: str) -> None:
    refused(text, Dim, *given)


def test_numpy_ints_are_sizes() -> None:
    given: Any = np.int64(1), np.uint8(4)
    assert Dim("n", *given) == Dim("n", 1, 4)


class Sum(md.Layer):
    def forward(self, left: Any, right: Any) -> Any:
        return left + right


def both() -> Any:
    """A sum, with a batch and rows of named size."""
    batch, rows = Dim("batch", 2, 8), Dim("rows", 32, 96, multiple=32)
    return md.compile(Sum(), [(batch, 2, rows), (batch, 2, rows)], device="reference")


def test_arrays_of_sizes_that_are_not_valid() -> None:
    exe = both()

    def call(left: tuple[int, ...], right: tuple[int, ...] | None = None) -> None:
        exe(np.zeros(left, np.float32), np.zeros(right or left, np.float32))

    refused(
        "input 'input0' has shape (9, 2, 32), whose axis 0, 'batch', is 9; valid are 2 to 8",
        *(call, (9, 2, 32)),
    )
    refused(
        "input 'input0' has shape (2, 2, 48), whose axis 2, 'rows', is 48; valid are 32 to 96 that "
        "are multiples of 32",
        *(call, (2, 2, 48)),
    )
    refused(
        "'batch' is 2 along axis 0 of input 'input0' and 3 along axis 0 of input 'input1'; valid "
        "is one size for one name",
        *(call, (2, 2, 32), (3, 2, 32)),
    )
    refused(
        "input 'input0' has shape (2, 32) of rank 2; valid is rank 3, (batch, 2, rows)",
        *(call, (2, 32)),
    )
    refused(
        "input 'input1' has shape (2, 3, 32), whose axis 1 is 3; valid is 2, as in (batch, 2, "
        "rows)",
        *(call, (2, 2, 32), (2, 3, 32)),
    )
    refused("input 'input0' has shape (9, 2, 32), whose axis 0, 'batch', is 9", call, (9, 2, 32))
    refused("1 inputs given; valid are 2: ['input0', 'input1']", exe, np.zeros((2, 2, 32)))
    call((8, 2, 96))


def test_sizes_by_name_that_are_not_valid() -> None:
    exe = both()
    refused("at: sizes of ['batch']; valid are those of exactly ['batch', 'rows']", exe.at, batch=2)
    refused("at: batch=1; valid are 2 to 8", exe.at, batch=1, rows=32)
    refused("warm: rows=33; valid are 32 to 96 that are", exe.warm, [{"batch": 2, "rows": 33}])
    refused("warm: 4; valid is a dict with the sizes of ['batch', 'rows']", exe.warm, [4])
    refused("warm: sizes={'batch': 2} is a dict; valid is a list", exe.warm, {"batch": 2})
    many = [{"batch": n, "rows": rows} for n in (3, 4, 5) for rows in (32, 64, 96)]
    refused("warm: 9 sizes, of which keep=8 allows 7; valid are fewer sizes", exe.warm, many)


def test_arguments_that_are_not_valid() -> None:
    net, shape = L.ReLU(), (Dim("n", 1, 4), 3)

    def compiled(network: Any = net, given: Any = shape, **options: Any) -> None:
        md.compile(network, given, device="reference", **options)

    refused("keep=0; valid is an int of at least 1", compiled, keep=0)
    for bytes in (-1, 0):
        valid = "valid is an int of at least 1, or None"
        refused(f"keep_bytes={bytes}; {valid}", compiled, keep_bytes=bytes)
    refused("background='no'; valid are True and False", compiled, background="no")
    twice = (Dim("n", 1, 4), Dim("n", 1, 5))
    refused("Dim 'n' is given as 1 to 4, and as 1 to 5; valid is one range", compiled, net, twice)
    graph = md.layers.build.to_graph(net, (2, 3))
    refused("shape=(Dim(name='n', least=1, most=4, multiple=1), 3) names", compiled, graph)
    with pytest.raises(md.UnsupportedError, match=r"^option 'keep' of device 'reference'"):
        compiled(net, (2, 3), keep=3)


def test_a_saved_graph_has_its_own_sizes(tmp_path: Any) -> None:
    path = tmp_path / "net.safetensors"
    md.save_graph(L.ReLU(), path, (2, 3))
    refused("graph 'ReLU' in", md.compile, path, (Dim("n", 1, 4), 3), device="reference")
