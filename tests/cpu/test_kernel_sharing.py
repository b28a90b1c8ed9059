"""Networks need few kernels, and none is compiled again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import minidnn as md
from minidnn import models
from minidnn.backends.cpu.isa import AVX512
from minidnn.cache import forbid_builds
from minidnn.layers.build import to_graph

from .warming import kernels_of


@pytest.mark.parametrize(("name", "most"), [("densenet201", 16), ("resnet50", 24), ("vgg16", 20)])
def test_layers_of_many_sizes_share_kernels(name: str, most: int) -> None:
    graph = to_graph(models.get_model(name), (1, 3, 224, 224))
    sources = kernels_of(graph, AVX512)
    contractions = {s.name for s in sources if s.name.startswith("conv_")}
    assert 2 < len(contractions) <= most


def test_kernels_are_the_same_without_asserts(root: Path) -> None:
    code = (
        "from tests.cpu.warming import kernels_of\n"
        "from minidnn import models\n"
        "from minidnn.backends.cpu.isa import AVX512\n"
        "from minidnn.layers.build import to_graph\n"
        "graph = to_graph(models.get_model('squeezenet1_1'), (1, 3, 64, 64))\n"
        "print([source.name for source in kernels_of(graph, AVX512)])"
    )
    first, second = (
        subprocess.run(
            [sys.executable, *flags, "-c", code],
            cwd=root,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        for flags in ([], ["-O"])
    )
    assert (first.returncode, second.stderr) == (0, "")
    assert second.stdout == first.stdout


def test_a_warm_cache_starts_no_compiler(own_cache: None) -> None:
    network, shape = models.get_model("resnet18"), (1, 3, 64, 64)
    first = md.compile(network, shape, device="cpu")
    with forbid_builds():
        again = md.compile(network, shape, device="cpu")
    x = np.random.default_rng(0).standard_normal(shape, np.float32)
    assert first(x).tobytes() == again(x).tobytes()
