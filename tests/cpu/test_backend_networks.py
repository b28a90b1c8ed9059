"""The zoo on the CPU engine, small: numbers, bits, guard pages.

Weights are random with statistics calibrated on data.  The error against float64 (PyTorch's, an
independent implementation) may be three times PyTorch's own in float32.  Kernels of all networks
are compiled together.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any

import numpy as np
import pytest

import minidnn as md
from minidnn import models
from minidnn.backends.cpu.isa import AVX2, AVX512, ISAS, Isa, usable_isas
from minidnn.layers.build import to_graph
from tests.sampling import only

torch = pytest.importorskip("torch")
from tests.models.networks import (  # noqa: E402
    LATER,
    NETWORKS,
    SMALL,
    calibrated,
    images,
    peer_of,
    theirs,
)

pytestmark = pytest.mark.early

#: Networks whose contractions are the same however stacks are collapsed; in CI one that adds and
#: one that joins, the rest in the full run.
STRATEGIES_AGREE = ("resnet18", "squeezenet1_1", "densenet121", "vgg11_bn")
AGREE_IN_CI = STRATEGIES_AGREE[:2]
ON_AVX2 = ("resnet18", "squeezenet1_1", "inception_v3")
ON_AVX2_IN_CI = ON_AVX2[1:2]
#: One network of each kind runs in CI, all of them in the full run.
OF_EACH_KIND = ("resnet18", "squeezenet1_1", "densenet121")
IN_CI = [
    pytest.param(name, marks=[] if name in OF_EACH_KIND else [pytest.mark.full])
    for name in NETWORKS
]
BATCH = 2
#: Runs over which errors are taken.
RUNS = 4
#: What most tests run on; where there is none they skip.
BEST = next(iter(usable_isas()), AVX512)


def size_of(name: str) -> int:
    return SMALL[name]


@lru_cache(1)
def network(name: str, size: int) -> Any:
    return calibrated(name, size)


@cache
def warmed(isa_name: str) -> None:
    from .warming import warm

    isa = ISAS[isa_name]
    names = OF_EACH_KIND if isa is BEST else ON_AVX2_IN_CI
    graphs = []
    for name in names:
        shape = (BATCH, 3, size_of(name), size_of(name))
        # What the weights are does not matter to kernels, nor are they ever made.
        graph = to_graph(models.get_model(name, num_classes=12), shape)
        strategies = ["model"]
        if isa is BEST and name in AGREE_IN_CI:
            strategies += ["one", "layers"]
        graphs += [(graph, strategy) for strategy in strategies]
    warm(graphs, isa)


def compiled(name: str, size: int, batch: int, isa: Isa, **options: Any) -> Any:
    shape = (batch, 3, size, size)
    return md.compile(network(name, size), shape, device="cpu", isa=isa.name, **options)


def require(isa: Isa) -> None:
    if isa not in usable_isas():
        pytest.skip(f"this processor does not execute {isa.name}")
    warmed(isa.name)


def hold_to_torch(
    name: str, size: int, batch: int, isa: Isa, limit: float = 3, **options: Any
) -> np.ndarray:
    """Holds the error of several runs to ``limit`` times PyTorch's; returns what the first gave.

    The error of a network is the root of the mean square over all outputs of all these images.  The
    largest of the twelve numbers of a single image, to which networks were held before, is a
    matter of luck: PyTorch's own differs from one image to another by a factor of up to 1.7 for
    resnet18 at 224x224 and 3.0 for vgg19_bn at 32x32 (eight images), so that its ratio to another
    engine's tells as much about the image as about the engines.  The largest over four images is
    little better: two ways to add up the sums of vgg16_bn at 224x224 had ratios of 2.45 and 2.08 by
    the root of the mean square, but 2.38 and 3.15 by the largest (Sapphire Rapids).  The bound of 3
    is the same.  The largest was first held to 3 as well, and was above that in 3 of 87 cases there
    (at most 3.61, alexnet with AVX2): so it is held to 5, which a single output that is wrong fails
    sooner than the other bound, where it counts with a seventh of its size among 48 numbers.
    """
    x = images(RUNS * batch, size, 1)
    exe = compiled(name, size, batch, isa, **options)
    parts = np.split(x, RUNS)
    result = np.concatenate([exe(part) for part in parts])
    state, torchs = network(name, size).state_dict(), peer_of(name, size)
    exact = theirs(torchs, state, x)
    single = np.concatenate([theirs(torchs, state, part, "float32") for part in parts])
    assert result.dtype == np.float32 and result.shape == (RUNS * batch, 12)
    ours, pytorchs = np.abs(result - exact), np.abs(single - exact)
    scale = np.abs(exact).max()
    # Where PyTorch happens to be as good as exact, a few roundings of the largest output.
    rounding = np.finfo(np.float32).eps * scale
    for norm, factor, floor in ((_rms, limit, 2 * rounding), (np.max, 5 / 3 * limit, 3 * rounding)):
        error, peers_error = norm(ours), norm(pytorchs)
        assert error <= max(factor * peers_error, floor), (
            f"{norm.__name__}: {error / scale:.2e}, PyTorch's {peers_error / scale:.2e}"
        )
    return result[:batch]


def _rms(errors: np.ndarray) -> float:
    return float(np.sqrt(np.square(errors).mean()))


@pytest.mark.full
@pytest.mark.parametrize("name", models.CLASSIC)
def test_high_accuracy_is_as_exact_as_pytorch(name: str) -> None:
    require(BEST)
    hold_to_torch(name, size_of(name), BATCH, BEST, limit=1, accuracy="high")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", IN_CI)
def test_numbers_between_guard_pages(name: str) -> None:
    """In the debug mode, and with the same bits outside of it."""
    require(BEST)
    size = size_of(name)
    result = hold_to_torch(name, size, BATCH, BEST, guarded=True, threads=2)
    plain = compiled(name, size, BATCH, BEST, threads=2)(images(BATCH, size, 1))
    np.testing.assert_array_equal(plain, result)


@pytest.mark.full
@pytest.mark.parametrize("isa", [AVX512, AVX2], ids=lambda isa: isa.name)
@pytest.mark.parametrize("name", [*models.CLASSIC, *LATER])
def test_same_bits_on_every_thread_count(name: str, isa: Isa) -> None:
    """Several runs each: whichever thread happens to take a task, too."""
    if isa not in usable_isas():
        pytest.skip(f"this processor does not execute {isa.name}")
    size = size_of(name)
    x = images(BATCH, size, 3)
    results = []
    for threads in (1, 2, 3, 4):
        exe = compiled(name, size, BATCH, isa, threads=threads)
        results += [exe(x).tobytes() for _ in range(3)]
    assert len(set(results)) == 1


@pytest.mark.parametrize("name", only(ON_AVX2_IN_CI, ON_AVX2))
def test_numbers_on_avx2(name: str) -> None:
    require(AVX2)
    hold_to_torch(name, size_of(name), BATCH, AVX2, guarded=True, threads=2)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in AGREE_IN_CI else [pytest.mark.full])
        for name in STRATEGIES_AGREE
    ],
)
def test_strategies_agree_to_the_last_bit(name: str) -> None:
    require(BEST)
    size = size_of(name)
    x = images(BATCH, size, 2)
    expected = compiled(name, size, BATCH, BEST, threads=2)(x)
    for strategy in ("one", "layers"):
        exe = compiled(name, size, BATCH, BEST, threads=2, strategy=strategy, guarded=True)
        np.testing.assert_array_equal(exe(x), expected, strategy)


@pytest.mark.full
@pytest.mark.parametrize("isa", [AVX512, AVX2], ids=lambda isa: isa.name)
@pytest.mark.parametrize("name", [*models.CLASSIC, *LATER])
def test_numbers_at_full_size(name: str, isa: Isa) -> None:
    """In the debug mode as well: planes of other sizes are cut into other patches."""
    if isa not in usable_isas():
        pytest.skip(f"this processor does not execute {isa.name}")
    hold_to_torch(name, models.get_model(name).input_shape[1], 1, isa, guarded=True)
