"""Which forms of a contraction are worth trying."""

from __future__ import annotations

from .graphs import can_be_product, fusable_stages
from .problem import ContractionProblem
from .recipe import CONVOLUTION, FIXED, PRODUCT, TILE, Form
from .tile import why_not_tiled


def forms_of(problem: ContractionProblem) -> list[Form]:
    """The forms, the most promising first.

    cuDNN computes all stages that it knows, or those before the first residual, since a residual
    leaves it few engines; what it does not compute, a kernel of ours does.  A result that is a
    slice is written there or packed and carried over.
    """
    most = fusable_stages(problem)
    adds = [i for i, stage in enumerate(problem.stages[:most]) if stage.mode == "add"]
    levels = list(dict.fromkeys((most, *adds[:1])))
    cores = [CONVOLUTION, *([PRODUCT] if can_be_product(problem) else [])]
    places = [False] if problem.is_dense else [False, True]
    forms = [Form(core, level, packed) for level in levels for core in cores for packed in places]
    if problem.is_exact:
        levels = list(dict.fromkeys((_fixed_stages(problem), 0)))
        forms += [Form(FIXED, level, packed) for level in levels for packed in places]
    if why_not_tiled(problem) is None:
        # Without a kernel before it, or a residual that cuDNN has few engines for, rather first.
        own = Form(TILE, len(problem.stages))
        forms.insert(0 if problem.before else 1, own)
    return forms


def last_resort(problem: ContractionProblem) -> list[Form]:
    """What is left where cuDNN has no engine for any of the forms: the convolution by itself."""
    places = [False] if problem.is_dense else [False, True]
    return [Form(CONVOLUTION, 0, packed) for packed in places]


def _fixed_stages(problem: ContractionProblem) -> int:
    """How many stages the fused fixed function takes: bias, residual if any, ReLU."""
    modes = [stage.mode for stage in problem.stages[:3]]
    plain = [not stage.parameters for stage in problem.stages[:3]]
    for pattern in (["bias", "add", "relu"], ["bias", "relu"]):
        if modes[: len(pattern)] == pattern and all(plain[: len(pattern)]):
            return len(pattern)
    return 0
