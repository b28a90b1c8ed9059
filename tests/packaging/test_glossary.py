"""Names that gave way to the field's own words do not come back.

A reader who knows CUTLASS, TVM, MLIR or PyTorch needs no dictionary for what stands here.
"""

from __future__ import annotations

import io
import tokenize
from pathlib import Path
from typing import Any

import pytest

from minidnn.fusion.target import Target

#: Names of classes, functions and attributes, and what stands in their place.
NAMES = {
    "Agreed": "ConsensusCheck",
    "AlikePrograms": "ResizedPrograms",
    "Apart": "IsolatedJobs",
    "BackwardHalf": "BackwardGraph",
    "Built": "ContractionExecutable",
    "DeviceMeeting": "DeviceProcessGroup",
    "Done": "PreparedTask",
    "Dots": "DotProduct",
    "Form": "CudaAlgorithm",
    "Given": "CallerArray",
    "GivenTensor": "RequestTensor",
    "Halves": "ForwardBackward",
    "InFront": "Producer",
    "Join": "Combiner",
    "JoinName": "CombinerName",
    "KeptProgram": "CachedProgram",
    "KeptPrograms": "ProgramCache",
    "KnownOperator": "AtenOperator",
    "LaidDown": "UploadedConstants",
    "LaidSequence": "LaidOutSequence",
    "Meeting": "ProcessGroup",
    "NamedBatch": "DynamicBatch",
    "NamedPart": "DynamicBatchPart",
    "NamedProgram": "DynamicBatchProgram",
    "NamedPrograms": "DynamicBatchPrograms",
    "Narrow": "MixedPrecision",
    "Placed": "ArenaAllocator",
    "PlacedContraction": "BoundContraction",
    "Placement": "BufferView",
    "Planes": "PlaneStrides",
    "PlanesFilterKernel": "DepthwiseNchwFilterKernel",
    "PlanesKernel": "DepthwiseNchwKernel",
    "QuadPacker": "VnniPacker",
    "QuadScheme": "VnniScheme",
    "Quads": "Vnni",
    "QuadsKernel": "Dp4aKernel",
    "RankPlace": "RankInfo",
    "RankedRecipes": "RankedConfigs",
    "Recipe": "AlgorithmConfig",
    "StandsForContainer": "ContainerProxy",
    "StatesInTurn": "OrderedStates",
    "StemGradientKernel": "SmallChannelsGradientKernel",
    "StemShape": "SmallChannelsTile",
    "StepsInTurn": "InterleavedSteps",
    "Suited": "RescheduledSequence",
    "SumParts": "PartialSums",
    "SumsBehind": "EpilogueReduction",
    "TakenPart": "CompiledPart",
    "TapJoin": "TapReduction",
    "TileParts": "TilePartialSums",
    "Twice": "DoubleBackward",
    "Untouched": "OpaqueOperations",
    "WholeConvolution": "IntegerConvolution",
    "WholeKernel": "IntegerKernel",
    "WholeLinear": "IntegerLinear",
    "_JOIN": "_COMBINE",
    "_bereft": "_thread_without_pool",
    "_breathe": "_send_heartbeats",
    "_crowd": "_bank_conflicts",
    "_is_deaf": "_discards_input",
    "_is_whole": "_is_integer",
    "_join": "_concat",
    "_joined": "_reduced",
    "_lies": "_layout_of",
    "_lying": "_view",
    "_misfit": "_shape_error",
    "_parted": "_split_softmax",
    "_turned": "_transposed_layouts",
    "_unheard": "_logs_silenced",
    "adds_planes": "fuses_spatial_sums",
    "check_apart": "check_no_overlap",
    "check_quiet_writes": "check_untaped_writes",
    "computes_its_own_way": "overrides_computation",
    "exact_bytes": "fallback_bytes",
    "exact_products": "fallback_products",
    "exact_step": "fallback_step",
    "exact_terms": "fallback_terms",
    "find_place": "find_rank",
    "forms_of": "algorithms_for",
    "given_itself": "returned_operand",
    "has_others_code": "has_user_code",
    "in_turn": "interleaved",
    "join_block": "reduce_block",
    "join_parts": "reduce_partial_sums",
    "join_taps": "combine_taps",
    "lay_down": "upload",
    "lay_vectors": "copy_vectors",
    "lies_one_way": "has_one_layout",
    "make_in_front": "fuse_producers",
    "meet_in": "set_process_group",
    "meeting_of": "process_group_of",
    "multiplies_bytes": "multiplies_int8",
    "multiplies_strangers": "reads_padding",
    "packed_quads": "pack_int8",
    "place_concat": "concat_in_place",
    "place_parts": "slice_in_place",
    "place_sums": "overlap_rank_sums",
    "place_updates": "update_in_place",
    "placed_at": "pointer_at",
    "pool_first": "hoist_pooling",
    "pool_last": "sink_pooling",
    "print_whole": "print_integer",
    "reads_weight_as_it_lies": "reads_weight_unpacked",
    "refuse_by_image": "refuse_batch_tiling",
    "refuse_front": "refuse_fusion",
    "share_joins": "share_concats",
    "sum_behind": "fuse_epilogue_reductions",
    "turn_linear": "linear_to_conv",
    "turn_products": "transpose_products",
    "why_not_behind": "why_not_epilogue",
    "why_not_whole": "why_not_integer",
}

#: Modules and packages, from ``minidnn/`` on.
MODULES = {
    "acceleration/named": "acceleration/dynamic_batch",
    "acceleration/twice": "acceleration/double_backward",
    "backends/cpu/contraction/dots": "backends/cpu/contraction/dot_product",
    "backends/cpu/contraction/quads": "backends/cpu/contraction/vnni",
    "backends/cpu/contraction/whole": "backends/cpu/contraction/integer_fallback",
    "backends/cuda/contraction/behind": "backends/cuda/contraction/epilogue_reduction",
    "backends/cuda/contraction/bytes": "backends/cuda/contraction/int8_filter",
    "backends/cuda/contraction/fixed": "backends/cuda/contraction/fixed_function",
    "backends/cuda/contraction/forms": "backends/cuda/contraction/algorithms",
    "backends/cuda/contraction/in_front": "backends/cuda/contraction/producer",
    "backends/cuda/contraction/parts": "backends/cuda/contraction/split_k",
    "backends/cuda/contraction/planes": "backends/cuda/contraction/depthwise_nchw",
    "backends/cuda/contraction/planes_filter": "backends/cuda/contraction/depthwise_nchw_filter",
    "backends/cuda/contraction/quads": "backends/cuda/contraction/dp4a",
    "backends/cuda/contraction/recipe": "backends/cuda/contraction/config",
    "backends/cuda/contraction/stem_gradient": "backends/cuda/contraction/small_channels_gradient",
    "backends/cuda/contraction/stream_front": "backends/cuda/contraction/stream_producer",
    "backends/cuda/contraction/sums_behind": "backends/cuda/contraction/epilogue_reduction_text",
    "backends/cuda/sequence/suit": "backends/cuda/sequence/reschedule",
    "backends/cuda/sum_parts": "backends/cuda/partial_sums",
    "cudnn/gpu_turn": "cudnn/gpu_lock",
    "distributed/agreed": "distributed/rank",
    "distributed/place": "distributed/rank",
    "dynamic/alike": "dynamic/source",
    "frontends/own": "frontends/zoo",
    "frontends/torch/hidden": "frontends/torch/memory",
    "frontends/torch/quiet_writes": "frontends/torch/writes",
    "frontends/torch/untouched": "frontends/torch/higher_order",
    "frontends/torch/whole": "frontends/torch/capture",
    "gradients/halves": "gradients/forward_backward",
    "lab/apart": "lab/isolated_jobs",
    "layers/whose_code": "layers/functional",
    "measure/turns": "measure",
    "passes/by_image": "passes/batch_tiling",
    "passes/move_pools": "passes/move_pooling",
    "passes/multiply_bytes": "passes/multiply_int8",
    "passes/place": "passes/in_place",
    "passes/sum_inside": "passes/fuse_reductions",
    "passes/turn_products": "passes/transpose_products",
    "serving/places": "serving/grpc_service",
}


def names_of(text: str) -> set[str]:
    """The names in Python source, those in texts and comments left out."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return {token.string for token in tokens if token.type == tokenize.NAME}


def test_former_names_do_not_come_back(root: Path) -> None:
    found = [
        f"{path.relative_to(root)}: {name}; it is {NAMES[name]} now"
        for path in sorted((root / "minidnn").rglob("*.py"))
        for name in sorted(names_of(path.read_text("utf-8")) & NAMES.keys())
    ]
    assert found == []


@pytest.mark.parametrize("module", MODULES)
def test_former_modules_do_not_come_back(root: Path, module: str) -> None:
    package = root / "minidnn"
    former = [package / module / "__init__.py", package / f"{module}.py"]
    assert [path for path in former if path.exists()] == []
    now = package / MODULES[module]
    assert now.exists() or now.with_suffix(".py").exists()


def test_former_public_names_still_work_and_say_so() -> None:
    from minidnn import distributed

    with pytest.warns(DeprecationWarning, match="RankPlace is called RankInfo now"):
        assert distributed.RankPlace is distributed.RankInfo
    with pytest.warns(DeprecationWarning, match="find_place is called find_rank now"):
        assert distributed.find_place is distributed.find_rank


def test_former_methods_of_targets_still_work_and_say_so() -> None:
    with pytest.warns(DeprecationWarning, match="refuse_by_image is called refuse_batch_tiling"):

        class Refusing(Target):
            def refuse_by_image(self, node: object) -> str:
                return "never"

    node: Any = None
    assert Refusing().refuse_batch_tiling(node) == "never"


def test_former_refusals_of_targets_are_not_ignored() -> None:
    with pytest.raises(TypeError, match=r"^Adding.refuse_sums: passes ask Adding.refuse_fusion"):

        class Adding(Target):
            def refuse_sums(self, reduction: object) -> None:
                return None
