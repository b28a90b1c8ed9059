"""Blocks of a cluster: they run at once, meet, and read each other's shared memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from minidnn.backends.codegen.kernel import KernelSource
from minidnn.backends.cuda.functions import compile_kernels
from minidnn.backends.cuda.kernels import Launch
from tests.cuda.emulator.run import Emulated

MEET, DONE, LEAVE = "md_cluster_meet();", "md_cluster_done();", "md_cluster_leave();"

SUMS = f"""
extern "C" __global__ void __cluster_dims__($BLOCKS$, 1, 1) __launch_bounds__($THREADS$, 1)
sums(float *y, const float *x) {{
  MD_SHARED;
  float *const own = (float *)md_shared;
  const int thread = threadIdx.x, other = $THREADS$ - 1 - thread;
  const int number = blockIdx.x % $BLOCKS$;
  for (int round = 0; round < $ROUNDS$; round++) {{
    const int at = ((blockIdx.y * gridDim.x + blockIdx.x) * $ROUNDS$ + round) * $THREADS$;
    float read[4];
    md_load(read, x + 4 * (at + thread));
    md_store(own + 4 * thread, read);
    for (int i = 0; i < number; i++) __syncthreads();
    {MEET}
    float sum[4] = {{0.0f, 0.0f, 0.0f, 0.0f}}, part[4];
    for (int i = 0; i < $BLOCKS$; i++) {{
      md_load_of(part, own + 4 * other, i);
      for (int j = 0; j < 4; j++) sum[j] += part[j];
    }}
    {DONE}
    for (int j = 0; j < 4; j++) sum[j] = __shfl_xor_sync(0xffffffffu, sum[j], 1);
    md_store(y + 4 * (at + (other ^ 1)), sum);
    {LEAVE}
  }}
}}
"""
"""In each round a thread adds up four numbers of another one of every block, which its neighbour
stores.  Barriers are a block's own affair: some blocks come to more of them."""


def launch_of(blocks: int, threads: int, text: str = SUMS, rounds: int = 2) -> Launch:
    """The kernel on two rows of two clusters each."""
    for name, number in (("BLOCKS", blocks), ("THREADS", threads), ("ROUNDS", rounds)):
        text = text.replace(f"${name}$", str(number))
    return Launch(KernelSource("sums", text), (2 * blocks, 2, 1), (threads, 1, 1), threads * 16)


def without(meeting: str) -> str:
    """The kernel's text where blocks wait for their own threads alone at one of the meetings."""
    return SUMS.replace(meeting, "__syncthreads();")


def run(
    launch: Launch, folder: Path, backwards: bool, rounds: int = 2
) -> tuple[np.ndarray, np.ndarray]:
    """What the kernel makes of drawn numbers, and those: both by row, cluster, block and round."""
    (columns, rows, _), (threads, _, _) = launch.grid, launch.block
    random = np.random.default_rng(0)
    x = random.standard_normal((rows, 2, columns // 2, rounds, threads, 4)).astype(np.float32)
    y = np.full_like(x, np.nan)
    Emulated([launch.source], folder).launch(launch, [y, x], backwards)
    return y, x


def right(launch: Launch, folder: Path, backwards: bool, rounds: int = 2) -> bool:
    """Whether the kernel gives its sums, added up in the order of blocks."""
    y, x = run(launch, folder, backwards, rounds)
    expected = np.zeros_like(x)
    for i in range(x.shape[2]):
        expected += x[:, :, i : i + 1]
    return np.array_equal(y, expected)


@pytest.mark.parametrize(
    "blocks, threads",
    [
        *(pytest.param(*size, marks=pytest.mark.race) for size in ((2, 128), (4, 96), (8, 256))),
        (4, 40),
    ],
)
def test_blocks_read_what_others_have(blocks: int, threads: int, tmp_path: Path) -> None:
    launch = launch_of(blocks, threads)
    assert right(launch, tmp_path, backwards=False)
    assert right(launch, tmp_path, backwards=True)


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("rounds", [1, 2])
@pytest.mark.parametrize("missing", [MEET, LEAVE])
def test_a_missing_meeting_shows_up(
    missing: str, rounds: int, backwards: bool, tmp_path: Path
) -> None:
    """The first: others read what is not there yet; the second: a block goes on and overwrites what
    they read, or ends."""
    launch = launch_of(4, 64, without(missing), rounds)
    assert not right(launch, tmp_path, backwards, rounds)


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("rounds", [1, 2])
def test_reads_after_the_last_show_up(rounds: int, backwards: bool, tmp_path: Path) -> None:
    """Others go on when all are done, before all have left."""
    text = SUMS.replace(DONE, "").replace(MEET, MEET + DONE)
    assert not right(launch_of(4, 64, text, rounds), tmp_path, backwards, rounds)


@pytest.mark.parametrize("read", [0, 3])
def test_blocks_run_in_both_orders(read: int, tmp_path: Path) -> None:
    """Where all read of the first block alone, or of the last, only one order shows that they do
    not wait for it."""
    text = without(MEET).replace("4 * other, i)", f"4 * other, {read})")
    launch = launch_of(4, 64, text, rounds=1)
    missed = [np.isnan(run(launch, tmp_path, backwards, 1)[0]).any() for backwards in (False, True)]
    assert missed == [read == 3, read == 0]


@pytest.mark.parametrize("who", ["number == 1", "threadIdx.x >= 32"])
@pytest.mark.parametrize("instead", ["return;", "__syncthreads();"])
def test_who_does_not_come_to_a_meeting_is_missed(who: str, instead: str, tmp_path: Path) -> None:
    text = SUMS.replace(MEET, f"if ({who}) {{ {instead} }} {MEET}")
    launch = launch_of(2, 64, text)
    if (who, instead) == ("number == 1", "__syncthreads();"):
        assert right(launch, tmp_path, backwards=False)
        return
    with pytest.raises(AssertionError, match="while others wait at a barrier"):
        right(launch, tmp_path, backwards=False)


@pytest.mark.parametrize("beside", ["own[-1]", "own[4 * $THREADS$]"])
def test_margins_of_every_block_are_looked_at(beside: str, tmp_path: Path) -> None:
    text = SUMS.replace(MEET, f"if (number == 2) {beside} = 0.0f; {MEET}")
    with pytest.raises(AssertionError, match="beside shared memory"):
        right(launch_of(4, 40, text), tmp_path, backwards=False)


def test_clusters_are_whole(tmp_path: Path) -> None:
    launch = launch_of(4, 40)
    uneven = replace(launch, grid=(6, 2, 1))
    with pytest.raises(AssertionError, match="no whole clusters"):
        right(uneven, tmp_path, backwards=False)
    with pytest.raises(AssertionError, match="2, 4 or 8 blocks in x alone"):
        right(launch_of(3, 40), tmp_path, backwards=False)


def test_the_kernel_compiles(warm_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINIDNN_CACHE", str(warm_cache))
    (kernel,) = compile_kernels([launch_of(8, 256).source], "sm_90")
    assert kernel.resources.spill_bytes == kernel.resources.stack_bytes == 0
