"""Producer fusion in ``stream.cu``: the code that computes the gradient which the kernel reads.

A slab has the pixels of all tensors that the producer reads, side by side.  A warp group of its own
computes the result, eight channels at a time, writes it where the first tensor was in the slab, and
to device memory, too, while others multiply.
"""

from __future__ import annotations

from ...codegen.code import Code
from ..prelude import TYPES
from ..sums import print_values
from ..tensor import is_aligned, is_regular, step_of
from .problem import ContractionProblem
from .producer import Producer, region_of
from .text import fill

_NOTHING = {"MAKES": 0, "TENSORS": 1, "LOAD": "", "FACTS": 0, "FRONT": ""}

_REGISTERS = 104
"""Registers of a thread that computes the producer: with the 40 of one that loads and the 184 of
each of two that multiply (``stream.cu``), four times 128."""

_LOAD = """\
          const T *from$I$ = f$I$ + (m0 + first) * P_f$I$ + (some ? q * 8 : 0);
          #pragma unroll
          for (int i = 0; i < PIXELS; i += 16, from$I$ += 16 * P_f$I$)
            if (i < left) copy(to + ($I$ * PIXELS + i) * 128, from$I$, some);"""

# Chunks after the last one stay zeros, as those of the filters are.
_FRONT = """\
  if (group == GROUPS + 1) {
    keep_registers<$REGISTERS$>();
    float *const facts = (float *)(md_shared + (facts_at - begins));
$LAID$
    meet(2, 128);
    const int lane = thread & 7, first = thread >> 3;
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
      for (int slab = 0; slab < each; slab++) {
        wait(full + place * 8, round);
        const int q = slab * 8 + lane;
        if (q < chunks) {
$VECTORS$
          const unsigned int at = swizzled<8>(ring + place * SLAB + first * 128 + lane * 16);
          T *from = (T *)(md_shared + (at - begins));
          long long m = (long long)tile * PIXELS + first;
          #pragma unroll $AT_ONCE$
          for (int i = 0; i < PIXELS; i += 16, from += 16 * 64, m += 16) {
            float r[8];
$BODY$
            md_store<8>(from, r);
            if (blockIdx.y == 0 && m < P_pixels) md_write<8>(made + m * P_made + q * 8, r);
          }
        }
        arrive(ready + place * 8);
        if (++place == slabs) place = 0, round++;
      }
    }
    return;
  }"""
_AT_ONCE = 2
"""Pixels whose instructions a thread interleaves."""


def why_not(problem: ContractionProblem) -> str | None:
    """Why streams cannot fuse the producer of a problem; None if they can."""
    producer = problem.producer
    if producer is None:
        return None
    if any(not is_aligned(t, problem.batch) or not is_regular(t) for t in producer.tensors):
        return "the producer's tensors are not aligned to vectors of 8 channels"
    return None


def tensors_of(problem: ContractionProblem) -> int:
    """How many tensors' pixels a slab has."""
    return 1 if problem.producer is None else len(problem.producer.tensors)


def shared_bytes(problem: ContractionProblem, steps: int) -> int:
    """Shared memory of the producer's vectors, in bytes, for ``steps`` times 16 channels."""
    return 0 if problem.producer is None else 64 * steps * len(problem.producer.vectors)


def parameters(problem: ContractionProblem) -> list[str]:
    """The pointers that a kernel takes for the producer, after that of its result; the first tensor
    is the kernel's image."""
    producer = problem.producer
    if producer is None:
        return []
    element = TYPES[problem.x.dtype]
    pointers = [f"const {element} *__restrict__ f{i}" for i in range(1, len(producer.tensors))]
    pointers += [
        f"const {TYPES[dtype]} *__restrict__ h{i}" for i, dtype in enumerate(producer.vectors)
    ]
    return [*pointers, f"{element} *__restrict__ made"]


def names(problem: ContractionProblem) -> list[str]:
    """The names of the numbers of :func:`steps`."""
    return [f"f{i}" for i in range(1, tensors_of(problem))] + ["made"] * bool(problem.producer)


def steps(problem: ContractionProblem) -> list[int]:
    """Elements from one pixel to the next, of the other tensors and of the producer's result."""
    producer = problem.producer
    return [] if producer is None else [*map(step_of, producer.tensors[1:]), step_of(problem.x)]


def producer_text(problem: ContractionProblem) -> dict[str, object]:
    """The producer's fragments of ``stream.cu``."""
    producer = problem.producer
    if producer is None:
        return dict(_NOTHING)
    tensors, vectors = len(producer.tensors), len(producer.vectors)
    body, copies, loads = Code(), Code(), Code()
    with copies.block("for (int i = thread; i < chunks * 8; i += 128)"):
        for i in range(vectors):
            copies.line(f"facts[{i} * steps * 16 + i] = md_value(h{i}[i]);")
    for i in range(vectors):
        loads.line(f"float w{i}[8];")
        loads.line(f"md_load_floats(w{i}, facts + ({i} * steps * 2 + q) * 8);")
    _print_body(body, producer)
    parts = {
        "REGISTERS": _REGISTERS,
        "AT_ONCE": _AT_ONCE,
        "LAID": str(copies).rstrip("\n"),
        "VECTORS": str(loads).rstrip("\n"),
        "BODY": str(body).rstrip("\n"),
    }
    return {
        "MAKES": 1,
        "TENSORS": tensors,
        "LOAD": "\n".join(fill(_LOAD, {"I": i}) for i in range(1, tensors)),
        "FACTS": vectors,
        "FRONT": fill(_FRONT, parts),
    }


def _print_body(code: Code, producer: Producer) -> None:
    """Prints what a thread computes for eight channels of a pixel."""
    op = region_of(producer)
    count = len(producer.tensors)
    for i in range(count):
        code.line(f"float a{i}[8];")
        code.line(f"md_load<8>(a{i}, from + {i} * PIXELS * 64);")
    with code.unrolled("for (int k = 0; k < 8; k++)"):
        operands = {value: f"a{i}[k]" for i, value in enumerate(op.body.inputs[:count])}
        operands |= {value: f"w{i}[k]" for i, value in enumerate(op.body.inputs[count:])}
        code.line(f"r[k] = {print_values(code, op, operands)[op.body.outputs[0]]};")
