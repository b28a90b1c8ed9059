"""Encoders of PyTorch's that compute otherwise than what is captured of them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import nn

from minidnn.errors import UnsupportedError
from minidnn.frontends.torch.replica import holding
from minidnn.frontends.torch.scripted import is_scripted


class _Padded(Exception):
    """An encoder's first layer is told of padding, which nested tensors would have taken away."""


@contextmanager
def no_nested(root: nn.Module) -> Iterator[None]:
    """Within, it is an error to call an encoder of ``root`` that would use nested tensors.

    When it is called, ``nn.TransformerEncoder`` takes padding away by their means, and has zeros in
    its place at the end; when it is captured it does not, and has there what the layers give.
    Which it does depends on the mask's values too, so a program cannot say it.
    """
    with ExitStack() as stack:
        for module in list(root.modules()):
            if isinstance(module, nn.TransformerEncoder) and not is_scripted(module):
                stack.enter_context(holding(module, forward=_refusing(module)))
        yield


def _refusing(encoder: nn.TransformerEncoder) -> Callable[..., Any]:
    forward: Callable[..., Any] = encoder.forward

    @functools.wraps(forward)
    def call(*args: Any, **kwargs: Any) -> Any:
        first: Any = encoder.layers[0]
        try:
            with holding(first, forward=_telling(encoder, first.forward)):
                return forward(*args, **kwargs)
        except _Padded:
            pass  # which came up in the layer; the encoder is what cannot be captured
        raise UnsupportedError(
            "with a padding mask it uses nested tensors, and gives zeros where there is "
            "padding, only when it is called (valid is use_nested_tensor = False)"
        )

    return call


def _telling(encoder: nn.TransformerEncoder, forward: Callable[..., Any]) -> Callable[..., Any]:
    # What the layer is given says it: who derives from the encoder may name arguments otherwise.
    @functools.wraps(forward)
    def call(*args: Any, **kwargs: Any) -> Any:
        is_padded = kwargs.get("src_key_padding_mask") is not None
        if is_padded and kwargs.get("src_mask") is None and encoder.use_nested_tensor:
            raise _Padded
        return forward(*args, **kwargs)

    return call
