"""The real libcudnn without a GPU: cuDNN 9.8 and newer plan for a device that is only described.

Needs libcudnn 9 and libcublasLt, which it loads itself; skipped where they are not installed.
"""

from __future__ import annotations

import ctypes
import gc
import importlib.util
from pathlib import Path

import pytest

from minidnn.cudnn import library
from minidnn.cudnn.graph import Graph, described
from minidnn.cudnn.graph.descriptor import counts
from minidnn.cudnn.graph.device import Target
from minidnn.errors import DeviceError


def load_cublas() -> str | None:
    """Loads cuBLASLt for cuDNN, which ends the process where it is missing; else a reason."""
    names = ["libcublasLt.so.13", "libcublasLt.so.12"]
    found = importlib.util.find_spec("nvidia")
    roots = list(found.submodule_search_locations or []) if found else []
    places = [str(path) for root in roots for n in names for path in Path(root).rglob(n)]
    for place in (*places, *names):
        try:
            ctypes.CDLL(place, mode=ctypes.RTLD_GLOBAL)
        except OSError:
            continue
        return None
    return "cuBLASLt is not installed, and cuDNN needs it"


@pytest.fixture(scope="module")
def h200() -> Target:
    """An H200 that is not here."""
    try:
        version = library.load().version
    except DeviceError as error:
        pytest.skip(f"no cuDNN: {str(error).splitlines()[0]}")
    if version < 90800:
        pytest.skip(f"cuDNN {version} is older than 9.8")
    if (reason := load_cublas()) is not None:
        pytest.skip(reason)
    return described((Path(__file__).parent / "h200.json").read_text())


def convolution(dtype: str, layout: str) -> Graph:
    g = Graph()
    x = g.tensor((8, 64, 56, 56), dtype, layout=layout)
    g.convolution(x, g.tensor((64, 64, 3, 3), dtype, layout=layout), padding=1)
    return g


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize(
    ("dtype", "least"), [("float16", 20), ("bfloat16", 20), ("float32", 5), ("float64", 2)]
)
def test_convolutions_have_plans(h200: Target, dtype: str, layout: str, least: int) -> None:
    assert len(convolution(dtype, layout).plans(target=h200)) >= least


def test_tf32_adds_plans_with_tensor_cores_only(h200: Target) -> None:
    strict = convolution("float32", "NHWC").plans(target=h200)
    loose = convolution("float32", "NHWC").plans(target=h200, tf32=True)
    added = {p.config for p in loose} - {p.config for p in strict}
    assert added
    assert all(p.proposal and p.proposal.tensor_core for p in loose if p.config in added)


def test_gradients_have_plans(h200: Target) -> None:
    g = Graph()
    dy = g.tensor((8, 64, 28, 28), "float16", layout="NHWC")
    w = g.tensor((64, 32, 3, 3), "float16", layout="NHWC")
    g.convolution_backward_data(dy, w, (8, 32, 28, 28), padding=1)
    assert g.plans(target=h200)
    g = Graph()
    dy = g.tensor((8, 64, 28, 28), "float16", layout="NHWC")
    x = g.tensor((8, 32, 28, 28), "float16", layout="NHWC")
    g.convolution_backward_filter(dy, x, (64, 32, 3, 3), padding=1)
    assert g.plans(target=h200)


@pytest.mark.parametrize(("dtype", "is_there"), [("float16", True), ("bfloat16", False)])
def test_statistics_behind_a_convolution(h200: Target, dtype: str, is_there: bool) -> None:
    g = Graph()
    x, w = (g.tensor(s, dtype, layout="NHWC") for s in ((8, 64, 56, 56), (64, 64, 3, 3)))
    y = g.convolution(x, w, padding=1)
    for result in (y, *g.statistics(y)):
        g.output(result)
    assert bool(g.plans(target=h200)) == is_there


def test_real_descriptors_are_all_destroyed(h200: Target) -> None:
    gc.collect()  # what other tests left must not be counted here
    created, destroyed = counts()
    for plan in convolution("float16", "NHWC").plans(target=h200):
        plan.close()
    del plan
    after = counts()
    assert after[0] - created == after[1] - destroyed > 100
