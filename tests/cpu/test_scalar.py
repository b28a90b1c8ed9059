"""Printed scalar expressions against NumPy: bit for bit where IEEE 754 says the result.

Kernels write every temporary, so each operation is held to its own rule on the values that it was
given, however an expression amplifies the errors of a transcendental function before it.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from minidnn.backends.codegen.dialect import ISPC, literal
from minidnn.backends.codegen.functions import BOUNDS
from minidnn.backends.cpu.compilers.kernels import Unit, compile_units, prelude
from minidnn.backends.cpu.compilers.library import SharedObject
from minidnn.backends.cpu.execution.program import BoundKernel, NativeProgram, Pool
from minidnn.backends.cpu.isa import Isa, usable_isas
from minidnn.graph.expression import (
    Expression,
    Instruction,
    apply,
    argument,
    clip,
    constant,
    linearize,
    maximum,
    minimum,
    run,
    where,
)
from minidnn.graph.scalar_ops import COMPARISONS, SCALAR_OPS
from minidnn.runtime.operand import Operand
from tests.sampling import IS_FULL

from .accuracy import Array, errors, in_float64, same
from .conftest import Build

ARGUMENTS = 3
SIZE = 512
SPECIAL = np.array(
    [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 1e-45, -1e-40, 1.1754944e-38, 3.4e38, -2.5],
    np.float32,
)
FEW = SPECIAL[[0, 1, 2, 3, 4, 6, 8]]


def inputs() -> Array:
    """Three operands: pairs and triples of special values, then random numbers of all sizes."""
    rng = np.random.default_rng(1)
    triples = [*itertools.product(FEW, repeat=3)]
    pairs = [(a, b, SPECIAL[-1]) for a, b in itertools.product(SPECIAL, repeat=2)]
    bits = rng.integers(0, 1 << 32, (SIZE, 3), dtype=np.uint32).view(np.float32)
    usual = (rng.standard_normal((SIZE, 3)) * 3).astype(np.float32)
    some = rng.permutation(triples)[:100]
    chosen = np.concatenate([np.array(pairs), some, bits[:68], usual[: SIZE - 312]])
    return np.ascontiguousarray(chosen.astype(np.float32).T)


@dataclass
class Printed:
    """An expression's code with the variable that has each line's value ('' for none)."""

    code: tuple[Instruction, ...]
    lines: list[str]
    result: str
    names: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, expression: Expression) -> Printed:
        code = linearize(expression)
        count = itertools.count()
        arguments = [f"a{i}" for i in range(ARGUMENTS)]
        lines, result = ISPC.print_code(code, arguments, lambda: f"v{next(count)}")
        computed = itertools.count()
        names = ["" if i.value is not None else f"v{next(computed)}" for i in code]
        return cls(code, lines, result, names)

    @property
    def rows(self) -> int:
        return sum(map(bool, self.names)) + 1

    def kernels(self, name: str) -> str:
        """``name`` writes the result; ``name_all`` all temporaries, then the result."""
        head = "for (uniform int i = 0; i < SIZE; i += programCount) {\n"
        head += "".join(
            f"  float a{i} = MD_IN(float, {i})[i + programIndex];\n" for i in range(ARGUMENTS)
        )
        head += "".join(f"  {line}\n" for line in self.lines)
        out = "  MD_OUT(float, 3)[{} * SIZE + i + programIndex] = {};\n"
        used = [
            f"{name} ? 1.0f : 0.0f" if instruction.op in COMPARISONS else name
            for name, instruction in zip(self.names, self.code, strict=True)
            if name
        ]
        every = "".join(out.format(row, value) for row, value in enumerate([*used, self.result]))
        texts = {name: out.format(0, self.result), f"{name}_all": every}
        return "".join(
            f"MD_KERNEL({kernel}) {{ {head}{body}}} }}\n" for kernel, body in texts.items()
        ).replace("SIZE", str(SIZE))


def values(library: SharedObject, kernel: str, operands: Array, rows: int) -> Array:
    out = np.empty((rows, SIZE), np.float32)
    region = BoundKernel(library.kernel(kernel), tuple(map(Operand, range(ARGUMENTS + 1))), 1)
    bases = [x.ctypes.data for x in (*operands, out)]
    NativeProgram([region], ARGUMENTS + 1, pool=Pool(1)).run(bases)
    return out


def check(expressions: Sequence[Expression], isas: Sequence[Isa]) -> None:
    """Compiles the expressions for ISAs, a file each, and checks all their lines."""
    printed = [Printed.of(e) for e in expressions]
    text = "".join(p.kernels(f"e{i}") for i, p in enumerate(printed))
    libraries = compile_units(
        [Unit(f"expressions_{isa.name}", prelude(isa) + text, isa) for isa in isas]
    )
    operands = inputs()
    for number, one in enumerate(printed):
        found = []
        for library in libraries:
            every = values(library, f"e{number}_all", operands, one.rows)
            alone = values(library, f"e{number}", operands, 1)[0]
            assert same(every[-1], alone), f"{expressions[number]} depends on what stands around it"
            found.append(every)
        for other in found[1:]:
            assert same(found[0], other), f"{expressions[number]} differs between ISAs"
        check_lines(one, found[0], operands, str(expressions[number]))


def check_lines(printed: Printed, found: Array, operands: Array, what: str) -> None:
    """Each line's values follow from those of the lines that it reads."""
    rows = iter(found)
    known: list[Array] = []
    for line in printed.code:
        if line.op == "argument":
            known.append(operands[int(line.value or 0)])
        elif line.op == "constant":
            with np.errstate(over="ignore"):
                known.append(np.full(SIZE, np.float64(line.value), np.float64).astype(np.float32))
        else:
            known.append(next(rows))
            check_line(line, [known[i] for i in line.operands], known[-1], what)
    np.testing.assert_array_equal(next(rows), known[-1], err_msg=what)


def check_line(line: Instruction, given: list[Array], result: Array, what: str) -> None:
    if line.op in BOUNDS:
        worst = errors(result, in_float64(line.op, *given)).max()
        assert worst <= BOUNDS[line.op], f"{line.op} in {what}: {worst} units of the last place"
        return
    if line.op == "where":
        given = [given[0] != 0, *given[1:]]
    with np.errstate(all="ignore"):
        expected = SCALAR_OPS[line.op].evaluate(*given).astype(np.float32)
    np.testing.assert_array_equal(result, expected, err_msg=f"{line.op} in {what}")
    if line.op not in ("maximum", "minimum"):
        numbers = ~np.isnan(expected)
        np.testing.assert_array_equal(
            np.signbit(result)[numbers], np.signbit(expected)[numbers], err_msg=what
        )


def every_operation() -> list[Expression]:
    x = [argument(i) for i in range(ARGUMENTS)]
    found = []
    for op, about in SCALAR_OPS.items():
        if op == "where":
            found += [where(apply(c, x[0], x[1]), x[2], -x[0]) for c in COMPARISONS]
        else:
            found.append(apply(op, *x[: about.arity]))
    return found


def constants_in_every_place() -> list[Expression]:
    x, y = argument(0), argument(1)
    found = []
    for value in (np.nan, -np.inf, -0.0, -1.5, 1e-45, 1e300):
        for op in (maximum, minimum):
            found += [op(x, value), op(value, x), op(constant(value), constant(np.nan))]
            found.append(op(constant(np.nan), constant(value)))
        for name in ("sub", "div", "ge", "pow"):
            found += [apply(name, x, value), apply(name, value, x)]
        found += [apply("fma", value, x, y), apply("fma", x, y, value), apply("neg", value)]
        found += [where(x < value, value, y), where(constant(value) > 0.0, x, value), value + -x]
    found += [clip(x, 0, 6), constant(2.0) + 3.0, constant(-0.0), x, apply("sqrt", 2.0)]
    found += [apply("fma", 2.0, 3.0, -6.5), apply("exp", 1.0), apply("abs", -2.5), x**3, 2**x]
    return found


def test_every_operation() -> None:
    expressions = every_operation()
    assert {i.op for e in expressions for i in linearize(e)} >= set(SCALAR_OPS)
    check(expressions, usable_isas())


def test_constants() -> None:
    """In CI on one ISA: how constants are printed does not depend on it."""
    check(constants_in_every_place(), usable_isas() if IS_FULL else usable_isas()[:1])


def float32s() -> st.SearchStrategy[float]:
    return st.floats(width=32)


@st.composite
def random_expressions(draw: st.DrawFn) -> Expression:
    """Up to 12 operations over three arguments and constants, sharing subexpressions."""
    nodes = [argument(i) for i in range(ARGUMENTS)]
    nodes += [constant(draw(float32s() | st.floats(-3, 3, width=32))) for _ in range(2)]
    latest = st.integers(1, 5)
    for _ in range(draw(st.integers(2, 12))):
        op = draw(st.sampled_from(sorted(SCALAR_OPS)))

        def operand() -> Expression:
            # The newest ones twice as often, so that expressions get deep.
            if draw(st.booleans()):
                return nodes[-min(draw(latest), len(nodes))]
            return nodes[draw(st.integers(0, len(nodes) - 1))]

        given = [operand() for _ in range(SCALAR_OPS[op].arity)]
        if op == "where":
            given[0] = apply(draw(st.sampled_from(sorted(COMPARISONS))), given[0], operand())
        nodes.append(apply(op, *given))
    return nodes[-1]


def test_random_expressions() -> None:
    """120 different ones, in CI a third of them, compiled together; first those with operations
    that none before has: what is drawn depends on which modules are loaded."""
    found: dict[Expression, None] = {}

    @settings(max_examples=300, phases=[Phase.generate])
    @given(random_expressions())
    def collect(expression: Expression) -> None:
        found[expression] = None

    collect()
    count = 120 if IS_FULL else 40
    used: set[str] = set()
    first: dict[Expression, None] = {}
    for expression in found:
        if not (ops := {i.op for i in linearize(expression)}) <= used:
            first[expression] = None
            used |= ops
    expressions = list(first | found)[:count]
    assert len(expressions) == count >= len(first) and used >= set(SCALAR_OPS)
    check(expressions, usable_isas())


def test_whole_expressions(isa: Isa, build: Build) -> None:
    """What users write, from arguments to result, against the reference."""
    x, y, z = (argument(i) for i in range(ARGUMENTS))
    exact = {
        "relu": maximum(x, 0.0),
        "relu6": clip(x, 0.0, 6.0),
        "leaky": where(x > 0, x, 0.01 * x),
        "hard_swish": x * (clip(x + 3.0, 0.0, 6.0) / 6.0),
        "norm": (x - y) / apply("sqrt", abs(z) + 1e-5),
        "scale": apply("fma", x, y, z),
        "soft_sign": x / (1.0 + abs(x)),
        "step": x >= y,
    }
    printed = {name: Printed.of(e) for name, e in exact.items()}
    library = build("".join(p.kernels(name) for name, p in printed.items()), isa)
    operands = inputs()
    for name, expression in exact.items():
        found = values(library, name, operands, 1)[0]
        expected = run(linearize(expression), list(operands))
        np.testing.assert_array_equal(found, expected, err_msg=name)


def test_literals_are_exact(isa: Isa, build: Build) -> None:
    rng = np.random.default_rng(7)
    bits = rng.integers(0, 1 << 32, 500, dtype=np.uint32)
    bits = bits[~np.isnan(bits.view(np.float32))]
    chosen = [0, 1 << 31, 1, 0x80000001, 0x007FFFFF, 0x00800000, 0x7F7FFFFF, 0xFF7FFFFF]
    chosen += [0x7F800000, 0xFF800000, 0x3F800000, 0x4B800000, 0x7149F2CA, 0x0DA24260]
    bits = np.concatenate([np.array(chosen, np.uint32), bits])
    stores = "".join(
        f"MD_OUT(float, 0)[{i}] = {literal(float(value))};\n"
        for i, value in enumerate(bits.view(np.float32))
    )
    text = f"MD_KERNEL(literals) {{\n{stores}}}\n"
    out = np.zeros(bits.size, np.float32)
    kernel = build(text, isa).kernel("literals")
    NativeProgram([BoundKernel(kernel, (Operand(0),), 1)], 1, pool=Pool(1)).run([out.ctypes.data])
    np.testing.assert_array_equal(out.view(np.uint32), bits)
