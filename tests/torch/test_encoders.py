"""Encoders of transformers, which look at their mask and may take padding away."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import minidnn as md
from tests.torch.test_graph_breaks import examples, same

#: Which is said of code of which no part is taken.
pytestmark = pytest.mark.filterwarnings("ignore:.*nothing of it is taken")


class Encoding(nn.Module):
    """Encodes sequences, of which a mask says what is padding."""

    def __init__(self, kind: type[nn.TransformerEncoder]) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.before = nn.Linear(8, 8)
        self.encoder = kind(layer, 1)
        self.after = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor, padding: torch.Tensor | None = None) -> Any:
        return self.after(self.encoder(self.before(x), src_key_padding_mask=padding))


class OwnEncoder(nn.TransformerEncoder):
    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        return super().forward(*args, **kwargs) * 2


@torch.no_grad()
@pytest.mark.xfail(strict=True, reason="Dynamo traces its code as if there were no nested tensors")
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("kind", [nn.TransformerEncoder, OwnEncoder])
def test_an_encoder_that_takes_padding_away(kind: type[nn.TransformerEncoder]) -> None:
    """Which has zeros in its place only when it is called, and not for every mask."""
    torch.manual_seed(0)
    net, x = Encoding(kind).eval(), examples(2, 4, 8)
    masks = [torch.tensor(m) > 0 for m in ([[0, 0, 0, 1], [0] * 4], [[0, 0, 1, 1], [0, 0, 0, 1]])]
    fast = md.optimize(net, (x, masks[0]), device="reference")
    for mask in (*masks, masks[1].flip(1)):
        same(fast(x, mask), net(x, mask))
    plain = md.optimize(net, x, device="reference")
    same(plain(x), net(x))


@torch.no_grad()
def test_an_encoder_that_keeps_padding_is_captured() -> None:
    net, x = Encoding(nn.TransformerEncoder).eval(), examples(2, 4, 8)
    mask = torch.tensor([[0, 0, 0, 1], [0] * 4]) > 0
    net.encoder.use_nested_tensor = False
    fast = md.optimize(net, (x, mask), device="reference")
    assert len(fast.pieces) == 1
    same(fast(x, mask), net(x, mask))
