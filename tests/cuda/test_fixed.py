"""cuDNN's fixed-function convolutions: what they write lies where their form says."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from minidnn.backends.cuda.contraction import fixed_function, tune
from minidnn.backends.cuda.contraction.algorithms import algorithms_for
from minidnn.backends.cuda.contraction.config import (
    FIXED,
    ContractionExecutable,
    CudaAlgorithm,
    target,
)
from minidnn.backends.cuda.contraction.problem import ContractionProblem
from minidnn.backends.cuda.contraction.tune import Tuning
from minidnn.cudnn.convolution.key import ConvolutionKey
from minidnn.cudnn.enums import ConvolutionFwdAlgo
from minidnn.graph.evaluate import evaluate
from minidnn.layers.build import to_graph
from tests.cuda.cards import H200
from tests.cuda.contractions import dense, draw_weights

from . import single
from .lowered import problems_of


def residual_slice() -> md.Layer:
    """A convolution with a residual, whose result is a slice of a join."""
    x = md.Input((16, 14, 14))
    y = L.ReLU()(L.Conv2d(16, 16, 3, padding=1)(x) + x)
    return md.Model(x, L.Concat()(y, L.ReLU()(L.Conv2d(16, 24, 1)(x))))


NETS = {
    "dense": (lambda: dense(32), (3, 32, 14, 14)),
    "residual": (residual_slice, (3, 16, 14, 14)),
}


def faked(monkeypatch: pytest.MonkeyPatch) -> list[ConvolutionKey]:
    """cuDNN's descriptors, which need no library; what they were asked for."""
    made: list[ConvolutionKey] = []

    def descriptors(key: ConvolutionKey) -> Any:
        made.append(key)
        return SimpleNamespace(key=key, workspace=lambda algorithm: 0)

    monkeypatch.setattr(fixed_function, "Problem", descriptors)
    monkeypatch.setattr(
        fixed_function, "TensorDescriptor", SimpleNamespace(strided=lambda *about: None)
    )
    monkeypatch.setattr(
        fixed_function, "ActivationDescriptor", SimpleNamespace(of=lambda mode: None)
    )
    return made


@pytest.mark.parametrize("name", NETS)
def test_descriptors_are_those_of_what_is_written(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = faked(monkeypatch)
    make, shape = NETS[name]
    packed = 0
    for problem in problems_of(make(), shape, "float32"):
        for algorithm in (
            algorithm for algorithm in algorithms_for(problem, H200) if algorithm.core == FIXED
        ):
            output, made[:] = target(problem, algorithm), []
            found = fixed_function.fixed_convolution(problem, 0, algorithm.stages, output)
            if reads_elsewhere(problem, algorithm):
                assert isinstance(found, str) and "residual" in found
                continue
            (key,) = made
            assert (key.y.shape, key.y.strides) == (output.shape, output.strides)
            packed += algorithm.packed and output.strides != problem.output.strides
    assert packed


def test_what_another_size_is_computed_by_is_not_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Unless cuDNN refuses it for this one."""
    faked(monkeypatch)
    tried: list[ContractionProblem] = []

    def runs(built: ContractionExecutable) -> bool:
        tried.append(built.problem)
        return True

    monkeypatch.setattr(tune, "_runs", runs)
    one, other = (
        replace(problem, any_size=True)
        for size in (14, 20)
        for problem in problems_of(L.Conv2d(16, 24, 3, padding=1), (1, 16, size, size), "float32")
    )
    load: Any = list  # launches stand for what is loaded
    tuning = Tuning(H200, "heuristic", 1 << 20, load)
    config = tune.first(one, tuning).config
    assert config.algorithm.core == FIXED and tried == [one]
    engine = int(ConvolutionFwdAlgo.CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD)
    high = replace(other, accuracy="high")
    tuning = replace(tuning, taken={other: config, high: replace(config, engine=engine)})
    again = tune.again(other, tuning)
    assert again is not None and again.config == config and tried == [one]
    assert tune.again(high, tuning) is None and tune.again(one, tuning) is None


def reads_elsewhere(problem: ContractionProblem, algorithm: CudaAlgorithm) -> bool:
    """Whether the residual that the form fuses has other strides than its result."""
    out = target(problem, algorithm).strides
    return any(
        stage.mode == "add" and (other.image, other.channel, other.row, other.pixel) != out
        for stage in problem.stages[: algorithm.stages]
        for other in problem.others
    )


@pytest.mark.gpu
@pytest.mark.parametrize("packed", [False, True], ids=["in place", "packed"])
@pytest.mark.parametrize(
    "algorithm", ["implicit_gemm", "implicit_precomp_gemm", "gemm", "winograd_nonfused"]
)
@pytest.mark.parametrize("name", NETS)
def test_numbers(name: str, algorithm: str, packed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slices are written in place or packed and carried over, by each algorithm that takes it."""
    only = ConvolutionFwdAlgo[f"CUDNN_CONVOLUTION_FWD_ALGO_{algorithm.upper()}"]
    single.only(
        monkeypatch, lambda algorithm: algorithm.core == FIXED and algorithm.packed == packed
    )
    monkeypatch.setattr(tune, "algorithms_of", lambda problem: [only])
    make, shape = NETS[name]
    net = make()
    random = np.random.default_rng(0)
    draw_weights(net, random)
    x = random.standard_normal(shape).astype(np.float32)
    (expected,) = evaluate(to_graph(net, shape), [x], "float64")
    exe = md.compile(net, shape, device="cuda", precision="float32")
    result = np.asarray(exe(x), np.float64)
    assert np.abs(result - expected).max() <= 1e-5 * np.abs(expected).max()
    if algorithm == "implicit_gemm":
        assert algorithm in exe.explain(measure=True)
