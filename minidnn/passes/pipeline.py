"""The passes, in the order in which they run."""

from __future__ import annotations

from minidnn.graph.ir import Graph
from minidnn.passes.absorb import ABSORB
from minidnn.passes.attend import ATTEND
from minidnn.passes.average_planes import AVERAGE_PLANES
from minidnn.passes.by_image import BY_IMAGE
from minidnn.passes.compose_branches import COMPOSE_BRANCHES
from minidnn.passes.compose_gradients import COMPOSE_GRADIENTS
from minidnn.passes.compose_variance import COMPOSE_VARIANCE
from minidnn.passes.compose_vectors import COMPOSE_VECTORS
from minidnn.passes.compute_together import COMPUTE_TOGETHER
from minidnn.passes.contract_matrices import CONTRACT_MATRICES
from minidnn.passes.depth_first import DEPTH_FIRST
from minidnn.passes.drop_samples import DROP_SAMPLES
from minidnn.passes.fold_batch_norm import FOLD_BATCH_NORM
from minidnn.passes.fold_bias import FOLD_BIAS
from minidnn.passes.fold_pad import FOLD_PAD
from minidnn.passes.freeze import FREEZE
from minidnn.passes.fuse_rows import FUSE_ROWS
from minidnn.passes.infrastructure import Context, Observer, Pass, run_passes
from minidnn.passes.keep_layers import KEEP_LAYERS
from minidnn.passes.launch_together import LAUNCH_TOGETHER
from minidnn.passes.layout import LAYOUT
from minidnn.passes.make_in_front import MAKE_IN_FRONT
from minidnn.passes.mix_precision import MIX_PRECISION
from minidnn.passes.multiply_bytes import MULTIPLY_BYTES
from minidnn.passes.normalize_channels import NORMALIZE_CHANNELS
from minidnn.passes.place_concat import PLACE_CONCAT
from minidnn.passes.place_parts import PLACE_PARTS
from minidnn.passes.place_sums import PLACE_SUMS
from minidnn.passes.place_updates import PLACE_UPDATES
from minidnn.passes.pool_first import POOL_FIRST
from minidnn.passes.pool_last import POOL_LAST
from minidnn.passes.recompute import RECOMPUTE
from minidnn.passes.rederive import REDERIVE
from minidnn.passes.reduce_precision import REDUCE_PRECISION
from minidnn.passes.repeat_inside import REPEAT_INSIDE
from minidnn.passes.schedule import SCHEDULE
from minidnn.passes.share_joins import SHARE_JOINS
from minidnn.passes.share_sums import SHARE_SUMS
from minidnn.passes.simplify import SIMPLIFY
from minidnn.passes.store_summed import STORE_SUMMED
from minidnn.passes.sum_behind import SUM_BEHIND
from minidnn.passes.sum_columns import SUM_COLUMNS
from minidnn.passes.sum_inside import SUM_INSIDE
from minidnn.passes.sum_together import SUM_TOGETHER
from minidnn.passes.take_channels import TAKE_CHANNELS
from minidnn.passes.turn_linear import TURN_LINEAR
from minidnn.passes.turn_products import TURN_PRODUCTS
from minidnn.passes.turn_rows import TURN_ROWS
from minidnn.passes.view_channels import VIEW_CHANNELS

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
