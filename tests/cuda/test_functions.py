"""Loading kernels, with a stand-in for CuPy and its driver."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import pytest

from minidnn.backends.codegen.kernel import KernelSource
from minidnn.backends.cuda import functions
from minidnn.backends.cuda.functions import CompiledKernel
from minidnn.backends.cuda.kernels import Launch
from minidnn.backends.cuda.nvrtc import Resources


class Driver:
    """Holds one limit of dynamic shared memory for each function, as CUDA does."""

    def __init__(self) -> None:
        self.limits: dict[str, int] = {}

    def funcSetAttribute(self, function: str, attribute: int, value: int) -> None:
        assert attribute == 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        self.limits[function] = value


@pytest.mark.parametrize("sizes", [(200_000, 60_000, 1_000), (1_000, 60_000, 200_000)])
def test_launches_of_one_kernel_may_all_have_their_shared_memory(
    sizes: Sequence[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def compiled(sources: Sequence[KernelSource], arch: str) -> list[CompiledKernel]:
        return [CompiledKernel(b"unit", s.name, Resources(32, 0, 0, 0)) for s in sources]

    def module(cubin: bytes) -> SimpleNamespace:
        return SimpleNamespace(get_function=lambda name: SimpleNamespace(ptr=name))

    driver = Driver()
    monkeypatch.setattr(
        functions, "cupy", lambda: SimpleNamespace(cuda=SimpleNamespace(driver=driver))
    )
    monkeypatch.setattr(functions, "compile_kernels", compiled)
    monkeypatch.setattr(functions, "_module", module)
    same, other = KernelSource("same", "text"), KernelSource("other", "another text")
    launches = [Launch(same, (1, 1, 1), (32, 1, 1), size) for size in sizes]
    launches.append(Launch(other, (1, 1, 1), (32, 1, 1), 100_000))
    loaded = functions.load_launches(launches, "sm_90")
    assert [one.launch for one in loaded] == launches
    assert driver.limits == {"same": max(sizes), "other": 100_000}
