"""The ladder of transposed matrices: right in the emulator, compiled, and counted by hand."""

from __future__ import annotations

from minidnn.backends.cuda.functions import compile_kernels
from minidnn.lab.api import H100
from minidnn.lab.cuda.arrays import TRANSPOSE, TransposeShape
from minidnn.lab.model import Prediction
from minidnn.lab.step import points_of
from minidnn.lab.studies import predict


def test_counted_by_hand() -> None:
    shape, block = TransposeShape(256, 512), (32, 8)
    warps = 256 * 512 // 32
    found = {}
    for step in TRANSPOSE.steps:
        (one,) = predict(points_of([step], [block], None), shape, H100)
        assert isinstance(one, Prediction)
        found[step.name] = one
        written = [a for a in one.work.accesses if a.store and a.space == "global"]
        assert [a.sectors for a in written] == [warps * (32 if step.name == "rows" else 4)]
        assert one.coalescing == 1.0 and one.resources.spill_bytes == 0
    assert found["shared"].bank_conflicts == (1 + 32) / 2
    assert found["padded"].bank_conflicts == 1
    assert found["padded"].resources.shared_bytes == 32 * 33 * 4


def test_steps_compile() -> None:
    launches = [step.calls(TRANSPOSE.shape, (32, 8))[0].launch for step in TRANSPOSE.steps]
    assert len(compile_kernels([launch.source for launch in launches], "sm_90")) == 3
