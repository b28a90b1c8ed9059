"""Attention gives what PyTorch's own gives: masks, heads that share keys, rows that see nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import minidnn as md
from minidnn.errors import UnsupportedError
from minidnn.frontends.torch.aten.call import key_of
from tests.devices import unavailable

attention = F.scaled_dot_product_attention
INFINITY = float("inf")


class Attends(nn.Module):
    """A function of query, key and value, with masks of 5 rows and 7 columns."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        random = torch.Generator().manual_seed(0)
        some = torch.rand(5, 7, generator=random) > 0.4
        some[:, 3] = True
        self.register_buffer("some", some)
        self.register_buffer("none", some.index_fill(0, torch.tensor([1, 3]), False))
        self.register_buffer(
            "bias", torch.randn(5, 7, generator=random).masked_fill(~some, -INFINITY)
        )

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(self, *inputs)


Function = Callable[..., Any]
CALLS: dict[str, Function] = {
    "plain": lambda m, q, k, v: attention(q, k, v),
    "scale": lambda m, q, k, v: attention(q, k, v, scale=0.3),
    "scale of nothing": lambda m, q, k, v: attention(q, k, v, scale=0.0),
    "causal": lambda m, q, k, v: attention(q, k, v, is_causal=True),
    "more queries than keys": lambda m, q, k, v: attention(k, q, q, is_causal=True),
    "bool": lambda m, q, k, v: attention(q, k, v, attn_mask=m.some),
    "rows that see nothing": lambda m, q, k, v: attention(q, k, v, attn_mask=m.none),
    "added": lambda m, q, k, v: attention(q, k, v, attn_mask=m.bias, scale=0.7),
    "added of whole rows": lambda m, q, k, v: attention(
        q, k, v, attn_mask=m.bias.masked_fill(~m.none, -INFINITY)
    ),
    "given": lambda m, q, k, v, mask: attention(q, k, v, attn_mask=mask),
    "values of another width": lambda m, q, k, v: attention(q, k, v[..., :4], attn_mask=m.none),
}
SHAPES: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "matrices": ((5, 6), (7, 6)),
    "a batch": ((3, 5, 6), (3, 7, 6)),
    "heads": ((2, 3, 5, 6), (2, 3, 7, 6)),
    "five axes": ((2, 1, 3, 5, 6), (2, 1, 3, 7, 6)),
}


def drawn(*shapes: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
    random = torch.Generator().manual_seed(1)
    return tuple(torch.randn(shape, generator=random) for shape in shapes)


def agrees(module: nn.Module, inputs: tuple[torch.Tensor, ...], device: str = "reference") -> None:
    if unavailable(device) is not None:
        pytest.skip(f"{device} cannot be used here")
    module.eval()
    with torch.inference_mode():
        wanted = module(*inputs)
        fast = md.optimize(module, inputs, device=device, strict=True)
        found = fast(*inputs)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ["plain", "causal", "rows that see nothing", "given"])
def test_it_takes_any_number_of_axes(name: str, shape: str) -> None:
    q, kv = SHAPES[shape]
    inputs = drawn(q, kv, kv)
    module = Attends(CALLS[name])
    agrees(module, (*inputs, module.none) if name == "given" else inputs)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("device", ["reference", pytest.param("cpu", marks=pytest.mark.together)])
@pytest.mark.parametrize("name", CALLS)
def test_it_gives_what_pytorch_gives(name: str, device: str) -> None:
    q, kv = SHAPES["heads"]
    inputs = drawn(q, kv, kv)
    module = Attends(CALLS[name])
    agrees(module, (*inputs, module.none) if name == "given" else inputs, device)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("device", ["reference", "cpu"])
@pytest.mark.parametrize("rank", [3, 4])
def test_heads_share_keys(rank: int, device: str) -> None:
    def function(m: Attends, q: Any, k: Any, v: Any, mask: Any) -> Any:
        return attention(q, k, v, attn_mask=mask, enable_gqa=True)

    shapes = ((2, 6, 5, 4), (2, 3, 7, 4), (2, 3, 7, 4))[:3]
    q, k, v = (each[0] if rank == 3 else each for each in drawn(*shapes))
    module = Attends(function)
    agrees(module, (q, k, v, module.none), device)
    # As many rows as if each head had keys of its own.
    agrees(
        Attends(lambda m, q, k, v: attention(q, k, v, is_causal=True, enable_gqa=True)), (q, k, v)
    )


@pytest.mark.sampled(3)
@pytest.mark.parametrize("device", ["reference", "cpu"])
@pytest.mark.parametrize("what", [INFINITY, -INFINITY, float("nan")])
def test_what_is_not_finite_comes_out_as_of_pytorch(what: float, device: str) -> None:
    """Of keys and values that are masked, too."""
    q, k, v = drawn((2, 3, 5, 6), (2, 3, 7, 6), (2, 3, 7, 6))
    for name, place in (("rows that see nothing", 2), ("added", 3)):
        values = v.clone()
        values[0, 0, place, 1] = what
        agrees(Attends(CALLS[name]), (q, k, values), device)
    keys = k.clone()
    keys[0, 0, 2, 1] = float("nan")
    agrees(Attends(CALLS["rows that see nothing"]), (q, keys, v), device)
    agrees(Attends(CALLS["plain"]), (q, keys, v), device)


MODULES: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "attention": (lambda: nn.MultiheadAttention(16, 4, batch_first=True), 3),
    "attention that counts from the batch": (lambda: nn.MultiheadAttention(16, 4, kdim=16), 3),
    "encoder": (lambda: nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), 1),
    "encoder, norm first": (
        lambda: nn.TransformerEncoderLayer(16, 4, 32, activation="gelu", norm_first=True),
        1,
    ),
    "decoder": (lambda: nn.TransformerDecoderLayer(16, 4, 32, batch_first=True), 2),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", MODULES)
def test_modules_of_pytorch_are_taken_whole(name: str) -> None:
    torch.manual_seed(0)
    make, count = MODULES[name]
    agrees(make(), drawn(*[(2, 7, 16)] * count))


def test_a_mask_that_gets_other_rows_is_looked_at_again() -> None:
    """Whether a row sees nothing is read of the mask when compiling."""
    module = Attends(CALLS["bool"]).eval()
    inputs = drawn((5, 6), (7, 6), (7, 6))
    with torch.inference_mode():
        fast = md.optimize(module, inputs, device="reference", strict=True)
        fast(*inputs)
    with torch.no_grad():
        module.some[2] = False
    with torch.inference_mode():
        torch.testing.assert_close(fast(*inputs), module(*inputs))
        assert not fast(*inputs)[2].any()


def test_scores_are_products_that_the_scale_does_not_pass_over() -> None:
    """Without a mask the smaller of both operands is scaled, and nothing is done for rows that
    cannot be empty."""
    inputs = drawn((2, 3, 5, 6), (2, 3, 7, 6), (2, 3, 7, 6))
    fast = md.optimize(Attends(CALLS["plain"]).eval(), inputs, device="reference", strict=True)
    (part,) = fast.programs[0].parts
    kinds = [node.op.name for node in part.part.graph.nodes]
    assert kinds == ["Transpose", "Scale", "MatMul", "Softmax", "MatMul"]
    fast = md.optimize(Attends(CALLS["bool"]).eval(), inputs, device="reference", strict=True)
    (part,) = fast.programs[0].parts
    kinds = [node.op.name for node in part.part.graph.nodes]
    assert kinds == ["Transpose", "MatMul", "Mask", "Softmax", "MatMul"]
    assert key_of(fast.programs[0].captured.operations[0]) == "scaled_dot_product_attention.default"


def test_dropout_is_left_with_the_reason() -> None:
    inputs = drawn((5, 6), (7, 6), (7, 6))
    module = Attends(lambda m, q, k, v: attention(q, k, v, dropout_p=0.5)).eval()
    with pytest.raises(
        UnsupportedError, match=r"dropout_p=0\.5: it is in training mode, and draws"
    ):
        md.optimize(module, inputs, device="reference", strict=True)
