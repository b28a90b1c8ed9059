"""Vision transformer: Dosovitskiy et al., "An Image is Worth 16x16 Words: Transformers for Image
Recognition at Scale", 2020 (arXiv 2010.11929)."""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np

from minidnn import layers as L
from minidnn.errors import GraphError
from minidnn.layers.parameter import within

from ._common import Weights, draw, normal, prepare, zeros


class EncoderBlock(L.Layer):
    """Attention of the tokens to each other, and two linear layers, each added to its input.

    Takes and gives (N, tokens, features).
    """

    def __init__(self, features: int, heads: int, hidden: int) -> None:
        self.ln_1 = L.LayerNorm(features, eps=1e-6)
        self.self_attention = L.MultiheadAttention(features, heads, batch_first=True)
        self.dropout = L.Dropout(0.0)
        self.ln_2 = L.LayerNorm(features, eps=1e-6)
        self.mlp = L.Sequential(
            L.Linear(features, hidden),
            L.GELU(),
            L.Dropout(0.0),
            L.Linear(hidden, features),
            L.Dropout(0.0),
        )
        draw(self.mlp, L.Linear, within(sqrt(6 / (features + hidden))), normal(1e-6))

    def forward(self, x: Any) -> Any:
        y = self.ln_1(x)
        x = x + self.dropout(self.self_attention(y, y, y, need_weights=False)[0])
        return x + self.mlp(self.ln_2(x))


class Encoder(L.Layer):
    """Adds to each token what says where it is, and calls the blocks one after another.

    Takes and gives (N, tokens, features).
    """

    def __init__(self, tokens: int, depth: int, features: int, heads: int, hidden: int) -> None:
        self.pos_embedding = L.Parameter((1, tokens, features), normal(0.02))
        self.dropout = L.Dropout(0.0)
        blocks = (EncoderBlock(features, heads, hidden) for _ in range(depth))
        self.layers = L.Sequential({f"encoder_layer_{i}": block for i, block in enumerate(blocks)})
        self.ln = L.LayerNorm(features, eps=1e-6)

    def forward(self, x: Any) -> Any:
        return self.ln(self.layers(self.dropout(x + self.pos_embedding)))


class VisionTransformer(L.Layer):
    """Takes (N, 3, image_size, image_size), of which each square of ``patch`` pixels becomes a
    token, and gives (N, num_classes), which one more token's features tell."""

    def __init__(
        self,
        image_size: int,
        patch: int,
        depth: int,
        heads: int,
        features: int,
        hidden: int,
        num_classes: int = 1000,
    ) -> None:
        if type(image_size) is not int or image_size < patch or image_size % patch:
            raise GraphError(
                f"VisionTransformer: image_size={image_size!r:.80}; valid is a multiple of the "
                f"{patch} rows and columns of a patch"
            )
        self.input_shape = (3, image_size, image_size)
        self.class_token = L.Parameter((1, 1, features), zeros)
        self.conv_proj = L.Conv2d(3, features, patch, stride=patch)
        # torchvision cuts these off at -2 and 2, which is 55 standard deviations away.
        draw(self, L.Conv2d, normal(sqrt(1 / (3 * patch**2))), zeros)
        self.concat = L.Concat()
        tokens = (image_size // patch) ** 2 + 1
        self.encoder = Encoder(tokens, depth, features, heads, hidden)
        self.heads = L.Sequential({"head": L.Linear(features, num_classes)})
        draw(self.heads, L.Linear, zeros, zeros)

    def forward(self, x: Any) -> Any:
        if x.shape[1:] != self.input_shape:
            size = self.input_shape[1]
            raise GraphError(
                f"VisionTransformer: input has shape {x.shape}; valid are images of "
                f"{self.input_shape}, as image_size={size}"
            )
        patches = self.conv_proj(x)
        batch, features = patches.shape[:2]
        tokens = patches.reshape(batch, features, -1).permute(0, 2, 1)
        first = np.broadcast_to(self.class_token, (batch, 1, features))
        return self.heads(self.encoder(self.concat(first, tokens))[:, 0])


def vit_b_16(
    *, weights: Weights = None, num_classes: int = 1000, seed: int = 0, image_size: int = 224
) -> VisionTransformer:
    """Vision transformer, base, with patches of 16 x 16; the arguments are those of
    :func:`minidnn.models.get_model`, and:

    Args:
        image_size: rows and columns of the pictures, a multiple of 16.  Published weights are for
            224.

    Raises:
        GraphError: ``image_size`` is not valid.
    """
    network = VisionTransformer(image_size, 16, 12, 12, 768, 3072, num_classes)
    return prepare(network, "vit_b_16", weights, seed)


if __name__ == "__main__":
    from ._script import main

    main("vit_b_16")
