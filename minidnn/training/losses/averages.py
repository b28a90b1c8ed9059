"""Means over elements, by weights of samples if there are any."""

from __future__ import annotations

from math import prod
from typing import Any

from minidnn.errors import GraphError


def aligned(caller: object, sample_weight: Any, shape: tuple[int, ...]) -> Any:
    """Weights with axes of size 1 behind theirs, so that they broadcast with a shape.

    Args:
        caller: the loss, for errors.
        sample_weight: a number for each sample, (N,), or also for each of the first further axes.
        shape: of what they are multiplied with.
    """
    own = tuple(sample_weight.shape)
    if not own or own != shape[: len(own)]:
        raise GraphError(
            f"{type(caller).__name__}: sample_weight has shape {own}; valid is ({shape[0]},), a "
            f"number for each sample, or more of the first axes of {shape}"
        )
    return sample_weight.reshape(*own, *(1 for _ in shape[len(own) :]))


def mean(caller: object, each: Any, sample_weight: Any = None) -> Any:
    """The mean of all elements; with weights the sum of products divided by that of weights."""
    if sample_weight is None:
        return each.mean()
    weight = aligned(caller, sample_weight, tuple(each.shape))
    return (each * weight).sum() / (weight.sum() * float(prod(each.shape) // prod(weight.shape)))
