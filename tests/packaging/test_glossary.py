"""Names that gave way to the field's own words do not come back.

A reader who knows CUTLASS, TVM, MLIR or PyTorch needs no dictionary for what stands here.
"""

from __future__ import annotations

import io
import tokenize
from pathlib import Path

import pytest

#: Names of classes, functions and attributes, and what stands in their place.
NAMES = {
    "Agreed": "ConsensusCheck",
    "AlikePrograms": "ResizedPrograms",
    "Apart": "IsolatedJobs",
    "Dots": "DotProduct",
    "GivenTensor": "RequestTensor",
    "QuadPacker": "VnniPacker",
    "QuadScheme": "VnniScheme",
    "Quads": "Vnni",
    "RankPlace": "RankInfo",
    "StepsInTurn": "InterleavedSteps",
    "TakenPart": "CompiledPart",
    "Untouched": "OpaqueOperations",
    "WholeConvolution": "IntegerConvolution",
    "WholeKernel": "IntegerKernel",
    "WholeLinear": "IntegerLinear",
    "check_quiet_writes": "check_untaped_writes",
    "exact_bytes": "fallback_bytes",
    "exact_products": "fallback_products",
    "exact_step": "fallback_step",
    "exact_terms": "fallback_terms",
    "find_place": "find_rank",
    "given_itself": "returned_operand",
    "has_others_code": "has_user_code",
    "in_turn": "interleaved",
    "multiplies_strangers": "reads_padding",
    "print_whole": "print_integer",
    "why_not_whole": "why_not_integer",
}

#: Modules and packages, from ``minidnn/`` on.
MODULES = {
    "backends/cpu/contraction/dots": "backends/cpu/contraction/dot_product",
    "backends/cpu/contraction/quads": "backends/cpu/contraction/vnni",
    "backends/cpu/contraction/whole": "backends/cpu/contraction/integer_fallback",
    "distributed/agreed": "distributed/rank",
    "distributed/place": "distributed/rank",
    "dynamic/alike": "dynamic/source",
    "frontends/torch/hidden": "frontends/torch/memory",
    "frontends/torch/quiet_writes": "frontends/torch/untaped_writes",
    "frontends/torch/untouched": "frontends/torch/opaque",
    "frontends/torch/whole": "frontends/torch/capture",
    "lab/apart": "lab/isolated_jobs",
    "layers/whose_code": "layers/functional",
    "measure/turns": "measure",
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
