"""What the texts of our kernels of contractions share: parameters, filling in, vectors, stages,
and Hopper's instructions as functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from ...codegen.code import Code
from ...codegen.kernel import KernelSource
from ..expressions import STORED, may_part
from ..pointwise import print_chain
from ..prelude import TYPES
from .problem import ContractionProblem


@cache
def template(name: str) -> str:
    """A file beside this one."""
    return Path(__file__).with_name(name).read_text()


def fill(text: str, parts: Mapping[str, object]) -> str:
    """The text with what the names in dollars stand for, one name after the other."""
    for key, value in parts.items():
        text = text.replace(f"${key}$", str(value))
    return text


def source_of(file: str, parts: Mapping[str, object], specific: bool = False) -> KernelSource:
    """The kernel of a file beside this one, filled in, named after the file and its own text."""
    text = fill(template(file), parts)
    return KernelSource.named(Path(file).stem, text, "$NAME$", specific)


def parameters_of(
    problem: ContractionProblem,
    names: Sequence[str],
    distances: bool = True,
    results: Sequence[str] = (),
) -> str:
    """Image, filter, the other tensors, the vectors of what comes after, those of what comes
    before, the result and further ones; then the numbers of those names, and the others' distances
    if they are asked for."""
    pointers = [("x", problem.x.dtype), ("w", problem.x.dtype)]
    pointers += [(f"x{1 + i}", t.dtype) for i, t in enumerate(problem.others)]
    pointers += [(f"v{i}", dtype) for i, dtype in enumerate(problem.vectors)]
    pointers += [(f"u{i}", dtype) for i, dtype in enumerate(problem.before_vectors)]
    parameters = [f"const {STORED[dtype]} *__restrict__ {name}" for name, dtype in pointers]
    parameters += (f"{STORED[problem.y.dtype]} *__restrict__ y", *results)
    parameters += [f"const long long P_{name}" for name in names]
    if distances:
        parameters += [f"const long long P_other{i}" for i in range(len(problem.others))]
    return ", ".join(parameters)


def vectors_of(problem: ContractionProblem) -> str:
    """The vectors of what comes after, for the filters from ``n`` on whose results a thread writes,
    if ``some`` says that there are any."""
    code = Code()
    for i in range(len(problem.vectors)):
        code.line(f"float b{i}[8];")
        code.line(f"md_load<8>(b{i}, v{i} + (some ? n : 0));")
    return str(code).rstrip("\n")


def compute_stages(
    code: Code, problem: ContractionProblem, count: str = "8", result: str = "r"
) -> None:
    """What comes after, on so many results in ``a0`` and the others in ``a1`` and on."""
    code.line("#pragma unroll")
    with code.block(f"for (int j = 0; j < {count}; j++)"):
        steps = [stage.step for stage in problem.stages]
        code.line(f"{result}[j] = {print_chain(code, steps, 'b{}[j]'.format, problem.y.dtype)};")


def join_of(problem: ContractionProblem) -> str:
    """The barrier of a warp behind what comes after."""
    parts = any(may_part(stage.step.code) for stage in problem.stages)
    return "md_sync_warp();" if parts else "__syncwarp();"


def element_of(problem: ContractionProblem, other: int) -> str:
    """The type of the elements of one of the other tensors."""
    dtype = problem.others[other].dtype
    return "T" if dtype == problem.x.dtype else TYPES[dtype]


def epilogue_of(problem: ContractionProblem, asked: str | None = None) -> str:
    """What comes after, on ``a0`` and the other tensors' eight numbers behind pixel ``m``: those of
    the words ``p0`` and on at that index, if they were asked for early."""
    code = Code()
    for i in range(len(problem.others)):
        code.line(f"float a{1 + i}[8];")
        if asked is None:
            code.line(f"md_load<8>(a{1 + i}, x{1 + i} + m * P_other{i} + n);")
            continue
        code.line(f"md_pack<8, {element_of(problem, i)}> q{i};")
        code.line(f"q{i}.word = p{i}{asked};")
        code.line("#pragma unroll")
        code.line(f"for (int j = 0; j < 8; j++) a{1 + i}[j] = md_value(q{i}.items[j]);")
    compute_stages(code, problem)
    return str(code).rstrip("\n")


ARCH = "sm_90"
"""The one architecture that has ``wgmma``."""


def hopper_text(dtype: str, width: int) -> str:
    """The functions of ``hopper.cu`` for products of ``dtype`` by ``width`` columns at once."""
    count = width // 2
    parts = {
        "N": width,
        "PTX": "f16" if dtype == "float16" else "bf16",
        "RESULTS": ", ".join(f"%{i}" for i in range(count)),
        "OPERANDS": ", ".join(f'"+f"(c[{i}])' for i in range(count)),
        "A": count,
        "A1": count + 1,
        "A2": count + 2,
        "A3": count + 3,
        "B": count + 1,
        "B4": count + 4,
        "ADD": count + 2,
        "ADD4": count + 5,
    }
    return fill(template("hopper.cu"), parts)
