"""A device as the cost model sees it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Device:
    """Figures of a device for the cost model.  Times that follow from them are estimates for
    choosing, no more."""

    name: str
    #: Workers that run patches side by side: cores, or multiprocessors.
    workers: int
    #: Scalar operations a second of the whole device, for element-wise and window code.
    operations: float
    #: Scalar operations a second that contractions reach; a multiply-add counts 2.
    contraction_operations: float
    #: Bytes a second to and from main memory.
    bandwidth: float
    #: Bytes a second to and from the memory that patches are kept in, of the whole device.
    local_bandwidth: float
    #: Bytes of that memory that one worker has for a patch's buffers.
    local_bytes: int
    #: Channels that one worker computes at once.
    lanes: int
    #: Seconds of overhead of one region.
    overhead: float
    #: Whether inputs that windows read several times are first copied into the patch.
    stages_inputs: bool = False
    #: Whether a worker computes row after row, so that a result may be written over what it is
    #: computed from, and neighbouring outputs of a max window share maxima.
    in_order: bool = False
    #: Seconds of overhead of one step of a patch, of one worker.
    step_overhead: float = 0.0
    #: Bytes of a worker's cache that is nearer than the one that patches are kept in; 0 if none
    #: is modelled.
    near_bytes: int = 0
    #: Bytes of a cache that all workers share, and bytes a second to and from it, of the whole
    #: device; 0 if there is none to be used on purpose.
    shared_bytes: int = 0
    shared_bandwidth: float = 0.0
    #: Bytes of registers that one worker may keep whole planes in; 0: it keeps none there.  A
    #: worker that has any computes several tasks side by side, as many as fit.
    register_bytes: int = 0
    #: Bytes of instructions that a worker with registers for planes can cache, and seconds that
    #: each byte more takes it: planes in registers are computed by unrolled code.
    code_bytes: int = 0
    code_seconds: float = 0.0
    #: Whether buffers that are not in use at the same time share memory, and whether
    #: neighbouring outputs of windows share work though rows are computed in no order.
    reuses_buffers: bool = False
    shares_windows: bool = False

    @property
    def shares(self) -> bool:
        """Whether neighbouring outputs of a window share work."""
        return self.in_order or self.shares_windows


#: Two cores with AVX-512 and 1 MiB of L2 cache each (figures: measured on such a machine).
TWO_CORES = Device(
    name="two-core CPU",
    workers=2,
    operations=150e9,
    contraction_operations=450e9,
    bandwidth=45e9,
    local_bandwidth=400e9,
    local_bytes=768 << 10,
    lanes=16,
    overhead=1e-6,
)

#: One H200: 132 multiprocessors with 227 KiB of shared memory a block, and 256 KiB of registers, of
#: which 200 for planes.  Measured: operations on the chain of max pooling, normalization and ReLU.
H200 = Device(
    name="NVIDIA H200",
    workers=132,
    operations=25e12,
    contraction_operations=55e12,
    bandwidth=4.3e12,
    local_bandwidth=30e12,
    local_bytes=227 << 10,
    lanes=1,
    overhead=3e-6,
    stages_inputs=True,
    step_overhead=150e-9,
    register_bytes=200 << 10,
    code_bytes=48 << 10,
    code_seconds=0.6e-9,
    reuses_buffers=True,
    shares_windows=True,
)
