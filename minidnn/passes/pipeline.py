"""The pass pipeline: all passes in the order in which they run."""

from __future__ import annotations

from minidnn.graph.ir import Graph
from minidnn.passes.absorb import ABSORB
from minidnn.passes.attend import ATTEND
from minidnn.passes.batch_tiling import BATCH_TILING
from minidnn.passes.channels import NORMALIZE_CHANNELS, TAKE_CHANNELS, VIEW_CHANNELS
from minidnn.passes.compose import (
    COMPOSE_BRANCHES,
    COMPOSE_GRADIENTS,
    COMPOSE_VARIANCE,
    COMPOSE_VECTORS,
)
from minidnn.passes.compute_together import COMPUTE_TOGETHER, LAUNCH_TOGETHER
from minidnn.passes.depth_first import DEPTH_FIRST
from minidnn.passes.drop_samples import DROP_SAMPLES
from minidnn.passes.fold import FOLD_BATCH_NORM, FOLD_BIAS, FOLD_PAD
from minidnn.passes.fuse_reductions import (
    FUSE_EPILOGUE_REDUCTIONS,
    FUSE_PLANE_REDUCTIONS,
    FUSE_PRODUCERS,
)
from minidnn.passes.fuse_rows import FUSE_ROWS
from minidnn.passes.in_place import (
    CONCAT_IN_PLACE,
    OVERLAP_RANK_SUMS,
    SLICE_IN_PLACE,
    UPDATE_IN_PLACE,
)
from minidnn.passes.infrastructure import Context, Observer, Pass, run_passes
from minidnn.passes.keep_layers import KEEP_LAYERS
from minidnn.passes.layout import LAYOUT
from minidnn.passes.linear import (
    CONTRACT_MATRICES,
    LINEAR_TO_CONV,
    MATMUL_TO_LINEAR,
    TRANSPOSE_LINEAR,
)
from minidnn.passes.mix_precision import MIX_PRECISION
from minidnn.passes.move_pooling import GLOBAL_POOLS_TO_MEANS, HOIST_POOLING, SINK_POOLING
from minidnn.passes.multiply_int8 import MULTIPLY_INT8
from minidnn.passes.recompute import RECOMPUTE
from minidnn.passes.rederive import REDERIVE
from minidnn.passes.reduce_precision import REDUCE_PRECISION
from minidnn.passes.schedule import SCHEDULE
from minidnn.passes.share_sums import REPEAT_INSIDE, SHARE_SUMS, SUM_COLUMNS
from minidnn.passes.simplify import FREEZE, SHARE_CONCATS, SIMPLIFY
from minidnn.passes.sum_together import STORE_SUMMED, SUM_TOGETHER
from minidnn.passes.transpose_products import TRANSPOSE_PRODUCTS

PIPELINE: tuple[Pass, ...] = (
    FREEZE,
    KEEP_LAYERS,
    MULTIPLY_INT8,
    TRANSPOSE_LINEAR,
    CONTRACT_MATRICES,
    COMPOSE_GRADIENTS,
    SHARE_SUMS,
    COMPOSE_VARIANCE,
    REPEAT_INSIDE,
    DROP_SAMPLES,
    VIEW_CHANNELS,
    SIMPLIFY,
    TAKE_CHANNELS,
    SHARE_CONCATS,
    COMPOSE_BRANCHES,
    FOLD_PAD,
    FOLD_BIAS,
    LINEAR_TO_CONV,
    FOLD_BATCH_NORM,
    HOIST_POOLING,
    SINK_POOLING,
    REDUCE_PRECISION,
    MIX_PRECISION,
    MATMUL_TO_LINEAR,
    ATTEND,
    TRANSPOSE_PRODUCTS,
    REDERIVE,
    ABSORB,
    NORMALIZE_CHANNELS,
    SUM_COLUMNS,
    FUSE_ROWS,
    COMPOSE_VECTORS,
    GLOBAL_POOLS_TO_MEANS,
    SUM_TOGETHER,
    STORE_SUMMED,
    DEPTH_FIRST,
    FUSE_PLANE_REDUCTIONS,
    COMPUTE_TOGETHER,
    LAUNCH_TOGETHER,
    FUSE_EPILOGUE_REDUCTIONS,
    FUSE_PRODUCERS,
    LAYOUT,
    CONCAT_IN_PLACE,
    SLICE_IN_PLACE,
    SCHEDULE,
    OVERLAP_RANK_SUMS,
    RECOMPUTE,
    BATCH_TILING,
    UPDATE_IN_PLACE,
)


def optimize(
    graph: Graph,
    context: Context | None = None,
    observe: Observer | None = None,
    verify: bool = False,
) -> Graph:
    """The graph after the whole pipeline; see :func:`run_passes`."""
    return run_passes(graph, PIPELINE, context or Context(), observe, verify)
