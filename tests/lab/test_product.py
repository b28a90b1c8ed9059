"""The ladder of matrix products: right in the emulator, compiled, and refused with a reason."""

from __future__ import annotations

import pytest

from minidnn.backends.cuda.functions import compile_kernels
from minidnn.errors import UnsupportedError
from minidnn.lab.api import H100
from minidnn.lab.cuda.product import PRODUCT
from minidnn.lab.operands import ProductShape
from minidnn.lab.step import Block
from tests.sampling import only


@pytest.mark.parametrize("arch", only(["sm_80"], ["sm_80", "sm_90"]))
def test_steps_compile_without_spills(arch: str) -> None:
    launches = [step.calls(PRODUCT.shape, (16, 16))[0].launch for step in PRODUCT.steps]
    kernels = compile_kernels([launch.source for launch in launches], arch)
    taken = {
        step.name: kernel.resources for step, kernel in zip(PRODUCT.steps, kernels, strict=True)
    }
    for name, resources in taken.items():
        assert resources.spill_bytes == resources.stack_bytes == 0, name
    assert taken["tiled"].shared_bytes == 2 * 16 * 16 * 4
    assert taken["column_tile"].shared_bytes == (128 * 9 + 8 * 16) * 4
    assert taken["register_tile"].shared_bytes == (128 * 9 + 8 * 128) * 4
    assert taken["vectors"].shared_bytes == (8 * 132 + 8 * 128) * 4
    assert taken["naive"].registers < 64 < taken["vectors"].registers <= 160


def test_refusals_are_reasons() -> None:
    def why_not(name: str, shape: ProductShape, block: Block, **parameters: int) -> str:
        return PRODUCT.step(name).why_not(shape, block, H100, parameters) or ""

    shape = PRODUCT.shape
    assert why_not("tiled", shape, (32, 8)) == (
        "a block of 32 x 8 threads; this step wants square ones"
    )
    assert why_not("vectors", ProductShape(8, 8, 6), (8, 8)) == (
        "8 columns, depth 6; this step wants multiples of 4"
    )
    assert why_not("vectors", shape, (8, 8), TILE_DEPTH=2) == (
        "TILE_DEPTH=2; this step wants a multiple of 4"
    )
    assert why_not("register_tile", shape, (32, 32), TILE_DEPTH=64) == (
        "132096 bytes of static shared memory; there may be 49152"
    )
    assert why_not("naive", ProductShape(1 << 16, 1 << 16, 8), (8, 8)) == (
        "y has 4294967296 elements; there may be 2147483647"
    )
    with pytest.raises(UnsupportedError, match="depth=0; valid are 1 and more"):
        ProductShape(depth=0)
