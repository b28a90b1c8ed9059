"""Gradients of filters of few input channels by our kernel on a GPU, beside float64."""

from __future__ import annotations

import numpy as np
import pytest

import minidnn as md
from minidnn.executable import Executable

from .precisions import PRODUCTS
from .single import only
from .stems import KERNEL, Stem, drawn_stem, reference

pytestmark = pytest.mark.gpu

STEMS = {
    "resnet": Stem((5, 3, 224, 224), 64, (7, 7), (2, 2), (3, 3)),
    "vgg": Stem((3, 3, 224, 224), 64, (3, 3), (1, 1), (1, 1)),
    "mobilenet": Stem((5, 3, 224, 224), 32, (3, 3), (2, 2), (1, 1)),
    "odd sizes": Stem((7, 3, 75, 83), 72, (7, 5), (2, 1), (2, 2)),
    "small images": Stem((64, 1, 28, 28), 20, (5, 5)),
    "eight channels": Stem((4, 8, 60, 60), 128, (7, 7), (1, 1), (3, 3)),
    "odd filters": Stem((4, 3, 60, 60), 33, (3, 3), (1, 1), (1, 1)),
    "one image": Stem((1, 2, 19, 17), 16, (3, 2), (2, 3)),
    "one pixel": Stem((1, 4, 3, 3), 8, (3, 3)),
}
STEMS |= {f"drawn {seed}": drawn_stem(np.random.default_rng(seed)) for seed in range(100, 124)}


def compiled(stem: Stem, dtype: str, monkeypatch: pytest.MonkeyPatch) -> Executable:
    only(monkeypatch, lambda algorithm: algorithm.core == KERNEL.name)
    exe = md.compile(stem.graph, device="cuda", precision=dtype)
    assert KERNEL.name in exe.explain(measure=True)
    return exe


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", STEMS)
def test_numbers_and_bits(name: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stem = STEMS[name]
    given = stem.drawn(0, dtype)
    exe = compiled(stem, dtype, monkeypatch)
    result = np.asarray(exe(*given), np.float64)
    exact, size = reference(stem, given), reference(stem, [*map(np.abs, given)])
    near = PRODUCTS[dtype] * np.abs(exact) + 2.0**-18 * size
    assert (np.abs(result - exact) <= near).all()
    for _ in range(3):
        np.testing.assert_array_equal(np.asarray(exe(*given), np.float64), result)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_nan_and_infinities_stay_where_they_belong(
    dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stem = Stem((3, 3, 30, 37), 40, (3, 5), (2, 2), (1, 2))
    x, gradient = stem.drawn(0, dtype)
    x[1, 0, 29, 36], x[2, 1, 0, 0], gradient[0, 7, 3, 4] = np.nan, np.inf, -np.inf
    exe = compiled(stem, dtype, monkeypatch)
    result, exact = np.asarray(exe(x, gradient), np.float64), reference(stem, [x, gradient])
    np.testing.assert_array_equal(np.isnan(result), np.isnan(exact))
    np.testing.assert_array_equal(result[np.isinf(exact)], exact[np.isinf(exact)])
