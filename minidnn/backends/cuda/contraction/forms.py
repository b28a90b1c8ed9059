"""Which forms of a contraction are worth trying."""

from __future__ import annotations

from .depthwise import why_not_depthwise
from .direct import why_not_direct
from .graphs import can_be_product, fusable_stages
from .halo import why_not_halo
from .own import DEPTHWISE, DIRECT, HALO, ROWS, STREAM, TILE, WINDOW, WINOGRAD
from .problem import ContractionProblem
from .recipe import CONVOLUTION, FIXED, PRODUCT, Form
from .rows import why_not_rows
from .stream import is_worth, why_not_stream
from .tile import why_not_tiled
from .window import is_worth as is_narrow
from .window import why_not_window
from .winograd import why_not_winograd

NARROW = 32
"""Filters, of which cuDNN's kernels make more at once."""


def forms_of(problem: ContractionProblem, arch: str) -> list[Form]:
    """The forms on ``arch``, the most promising first.

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
    if why_not_rows(problem) is None:
        forms.insert(0, Form(ROWS, len(problem.stages)))
    if why_not_direct(problem) is None:
        forms.insert(1, Form(DIRECT, len(problem.stages)))
    if why_not_winograd(problem) is None:
        forms.insert(1, Form(WINOGRAD, len(problem.stages)))
    if why_not_depthwise(problem, arch) is None:
        forms.insert(0, Form(DEPTHWISE, len(problem.stages)))
    if why_not_stream(problem, arch) is None and is_worth(problem):
        forms.insert(0, Form(STREAM, len(problem.stages)))
    if why_not_window(problem, arch) is None and is_narrow(problem):
        forms.insert(1, Form(WINDOW, len(problem.stages)))
    if why_not_halo(problem, arch) is None:
        # Rather first where other kernels leave tensor cores empty.
        narrow = problem.gather is not None or problem.w.shape[0] <= NARROW
        forms.insert(0 if narrow else 1, Form(HALO, len(problem.stages)))
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
