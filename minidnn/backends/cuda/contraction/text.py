"""Code that the templates of our contraction kernels share.

A ``.cu`` file beside this one is a template: names in dollars stand for numbers and for code that a
Python module prints, such as parameters, loads of vectors and the epilogue.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from ...codegen.code import Code
from ...codegen.kernel import KernelSource
from ..expressions import STORED, may_diverge
from ..pointwise import print_chain
from ..prelude import TYPES
from .problem import ContractionProblem


@cache
def template(name: str) -> str:
    """Returns the text of a file beside this one."""
    return Path(__file__).with_name(name).read_text()


def fill(text: str, parts: Mapping[str, object]) -> str:
    """Replaces names in dollars by what they stand for, one name after the other."""
    for key, value in parts.items():
        text = text.replace(f"${key}$", str(value))
    return text


def source_of(file: str, parts: Mapping[str, object], specific: bool = False) -> KernelSource:
    """The kernel of a template beside this file, named after its file and its text; it is
    ``specific`` if it uses instructions of one architecture alone."""
    text = fill(template(file), parts)
    return KernelSource.named(Path(file).stem, text, "$NAME$", specific)


def parameters_of(
    problem: ContractionProblem,
    names: Sequence[str],
    distances: bool = True,
    results: Sequence[str] = (),
) -> str:
    """The parameters of a kernel.

    Pointers come first: image, filter, the other tensors, the vectors of the epilogue, those of the
    prologue, the result and further ``results``.  The numbers ``names`` follow, and, if
    ``distances`` says so, the pixel strides of the other tensors.
    """
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


def window_parts(problem: ContractionProblem) -> dict[str, object]:
    """What names in dollars stand for: size, stride and dilation of the window, down and across."""
    (rows, columns), (down, across) = problem.w.shape[2:], problem.stride
    names = {"KR": rows, "KC": columns, "SR": down, "SC": across}
    return {**names, "DR": problem.dilation[0], "DC": problem.dilation[1]}


def vectors_of(problem: ContractionProblem) -> str:
    """The loads of the epilogue's vectors, for the eight filters from ``n`` on that a thread
    writes, if ``some`` says that there are any."""
    code = Code()
    for i in range(len(problem.vectors)):
        code.line(f"float b{i}[8];")
        code.line(f"md_load<8>(b{i}, v{i} + (some ? n : 0));")
    return str(code).rstrip("\n")


def compute_stages(
    code: Code, problem: ContractionProblem, count: str = "8", result: str = "r"
) -> None:
    """Prints the epilogue of ``count`` elements, from ``a0`` to ``result``; the other tensors' are
    in ``a1`` and on."""
    with code.unrolled(f"for (int j = 0; j < {count}; j++)"):
        steps = [stage.step for stage in problem.stages]
        code.line(f"{result}[j] = {print_chain(code, steps, 'b{}[j]'.format, problem.y.dtype)};")


def reconvergence_barrier(problem: ContractionProblem) -> str:
    """The barrier at which a warp reconverges after the epilogue."""
    parts = any(may_diverge(stage.step.code) for stage in problem.stages)
    return "md_sync_warp();" if parts else "__syncwarp();"


def element_of(problem: ContractionProblem, other: int) -> str:
    """The element type of one of the other tensors."""
    dtype = problem.others[other].dtype
    return "T" if dtype == problem.x.dtype else TYPES[dtype]


def epilogue_of(problem: ContractionProblem, asked: str | None = None) -> str:
    """The epilogue of eight results in ``a0`` of pixel ``m``.  The other tensors are loaded there;
    if they were loaded early, ``asked`` is the index of their words in ``p0`` and on."""
    code = Code()
    for i in range(len(problem.others)):
        code.line(f"float a{1 + i}[8];")
        if asked is None:
            code.line(f"md_load<8>(a{1 + i}, x{1 + i} + m * P_other{i} + n);")
            continue
        code.line(f"md_pack<8, {element_of(problem, i)}> q{i};")
        code.line(f"q{i}.word = p{i}{asked};")
        code.unrolled_line(f"for (int j = 0; j < 8; j++) a{1 + i}[j] = md_value(q{i}.items[j]);")
    compute_stages(code, problem)
    return str(code).rstrip("\n")


ARCH = "sm_90"
"""The one architecture that has ``wgmma``."""


def hopper_text(dtype: str, width: int) -> str:
    """The device functions of ``hopper.cu``, for ``wgmma`` of ``dtype`` with N = ``width``."""
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
