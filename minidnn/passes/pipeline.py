"""The pass pipeline: all passes in the order in which they run."""

from __future__ import annotations

from minidnn.graph.ir import Graph
from minidnn.passes.absorb import ABSORB
from minidnn.passes.attend import ATTEND
from minidnn.passes.by_image import BY_IMAGE
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
from minidnn.passes.fuse_rows import FUSE_ROWS
from minidnn.passes.infrastructure import Context, Observer, Pass, run_passes
from minidnn.passes.keep_layers import KEEP_LAYERS
from minidnn.passes.layout import LAYOUT
from minidnn.passes.linear import CONTRACT_MATRICES, MATMUL_TO_LINEAR, TURN_LINEAR, TURN_ROWS
from minidnn.passes.mix_precision import MIX_PRECISION
from minidnn.passes.move_pools import AVERAGE_PLANES, POOL_FIRST, POOL_LAST
from minidnn.passes.multiply_bytes import MULTIPLY_BYTES
from minidnn.passes.place import PLACE_CONCAT, PLACE_PARTS, PLACE_SUMS, PLACE_UPDATES
from minidnn.passes.recompute import RECOMPUTE
from minidnn.passes.rederive import REDERIVE
from minidnn.passes.reduce_precision import REDUCE_PRECISION
from minidnn.passes.schedule import SCHEDULE
from minidnn.passes.share_sums import REPEAT_INSIDE, SHARE_SUMS, SUM_COLUMNS
from minidnn.passes.simplify import FREEZE, SHARE_JOINS, SIMPLIFY
from minidnn.passes.sum_inside import MAKE_IN_FRONT, SUM_BEHIND, SUM_INSIDE
from minidnn.passes.sum_together import STORE_SUMMED, SUM_TOGETHER
from minidnn.passes.turn_products import TURN_PRODUCTS

PIPELINE: tuple[Pass, ...] = (
    FREEZE,
    KEEP_LAYERS,
    MULTIPLY_BYTES,
    TURN_ROWS,
    CONTRACT_MATRICES,
    COMPOSE_GRADIENTS,
    SHARE_SUMS,
    COMPOSE_VARIANCE,
    REPEAT_INSIDE,
    DROP_SAMPLES,
    VIEW_CHANNELS,
    SIMPLIFY,
    TAKE_CHANNELS,
    SHARE_JOINS,
    COMPOSE_BRANCHES,
    FOLD_PAD,
    FOLD_BIAS,
    TURN_LINEAR,
    FOLD_BATCH_NORM,
    POOL_FIRST,
    POOL_LAST,
    REDUCE_PRECISION,
    MIX_PRECISION,
    MATMUL_TO_LINEAR,
    ATTEND,
    TURN_PRODUCTS,
    REDERIVE,
    ABSORB,
    NORMALIZE_CHANNELS,
    SUM_COLUMNS,
    FUSE_ROWS,
    COMPOSE_VECTORS,
    AVERAGE_PLANES,
    SUM_TOGETHER,
    STORE_SUMMED,
    DEPTH_FIRST,
    SUM_INSIDE,
    COMPUTE_TOGETHER,
    LAUNCH_TOGETHER,
    SUM_BEHIND,
    MAKE_IN_FRONT,
    LAYOUT,
    PLACE_CONCAT,
    PLACE_PARTS,
    SCHEDULE,
    PLACE_SUMS,
    RECOMPUTE,
    BY_IMAGE,
    PLACE_UPDATES,
)


def optimize(
    graph: Graph,
    context: Context | None = None,
    observe: Observer | None = None,
    verify: bool = False,
) -> Graph:
    """The graph after the whole pipeline; see :func:`run_passes`."""
    return run_passes(graph, PIPELINE, context or Context(), observe, verify)
