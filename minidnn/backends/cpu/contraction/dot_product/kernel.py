"""Prints the kernels of dot products, and the algorithm for bfloat16; :mod:`..vnni` has that for
int8 and uint8.

A task packs a block of inputs, unless the task before had the same one, then multiplies its pixels
with some vectors of output channels, tile by tile, each followed by the epilogue.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import replace
from functools import partial

import numpy as np

from minidnn.fusion.region import Parts

from ....codegen.code import Code
from ....codegen.kernel import KernelSource
from ....options import ACCURACIES
from ...execution.buffers import Array
from ...isa import Isa
from ...stage import Pointer, PrintedContraction, Stage
from ...tensor import ELEMENTS
from ..choose import Algorithm, Speed, overlapped
from ..epilogue import Epilogue
from ..numbers import PARAMETER, absorbed, printed_for_all_sizes
from ..problem import Problem
from ..tile import print_block, print_by_width
from ..weights import packed_channels, packed_outputs
from .pack import DotPacker, pack_bf16
from .products import DOT_NUMBERS, LINE, SchemeNumbers
from .scheme import DotScheme, bf16_packing, choose_dot_product, dot_schemes, merge


def print_products(
    parts: Parts,
    scheme: DotScheme,
    threads: int,
    packer: DotPacker,
    given: tuple[Pointer, Pointer],
) -> PrintedContraction:
    """Prints the kernel of a scheme whose inputs ``packer`` packs.

    ``given``: weights as :func:`.pack.packed_words` packs them, and the first terms of sums.
    """
    word, numbers = scheme.word, packer.numbers
    epilogue = Epilogue(parts, scheme, numbers, sums=word.sums)
    printer = DotKernel(scheme, packer, epilogue, numbers)
    if scheme.any_size:
        key = _text_key(scheme, epilogue), absorbed(parts)
        source = printed_for_all_sizes(key, numbers, printer.source)
    else:
        source = printer.source()
    pointers: list[Pointer] = [*range(len(parts.others) + 2), *given, partial(offsets_of, scheme)]
    pointers += [packed_channels(v, scheme.lanes) for v in packer.vectors]
    pointers += [packed_outputs([v], scheme) for v in epilogue.vectors]
    stage = Stage(
        source,
        (*pointers, numbers.pack),
        scheme.tasks,
        grain_of(scheme, threads),
        scheme.scratch_bytes,
    )
    return PrintedContraction(f"products of {word.name}", (stage,))


def _text_key(scheme: DotScheme, epilogue: Epilogue) -> Hashable:
    """A key of all that the text of a kernel depends on, fused operations aside: the scheme without
    sizes and the strides that depend on them."""
    problem = scheme.problem
    views = (problem.source, problem.result, *problem.others)
    sizes = replace(problem.source, image=0, plane=0, row=0)
    sizeless = replace(
        problem, batch=1, in_size=(1, 1), out_size=(1, 1), source=sizes, result=sizes, others=()
    )
    addressing = [(c.kind, c.masked) for _, c in epilogue.tensors]
    return (
        replace(scheme, problem=sizeless, block=1, images=1),
        scheme.by_columns,
        tuple((view.block, view.column, view.dtype) for view in views),
        tuple(addressing),
    )


def grain_of(scheme: DotScheme, threads: int) -> int:
    """Tasks of one call: all that share a packed block, unless threads would be idle."""
    groups = scheme.tile.groups
    blocks = scheme.tasks // groups
    wanted = 1 if threads == 1 or blocks >= 2 * threads else -(-2 * threads // blocks)
    return next(size for size in range(-(-groups // wanted), 0, -1) if groups % size == 0)


def offsets_of(scheme: DotScheme) -> Array:
    """The offsets of taps in bytes, in the packed block and then in the fallback's layout."""
    fallback = [tap * scheme.run_bytes for tap in range(scheme.taps)]
    return np.array([*scheme.offsets, *fallback], np.int32)


class DotKernel:
    """Prints a kernel: packing, products and epilogue.

    ``exact`` says whether there is a fallback for inputs that are NaN or infinite; see
    :attr:`.DotScheme.reads_padding`.
    """

    def __init__(
        self, scheme: DotScheme, packer: DotPacker, epilogue: Epilogue, numbers: SchemeNumbers
    ) -> None:
        self.scheme = scheme
        self.problem = scheme.problem
        self.sums, self.tiles = scheme.word.sums, scheme.word.tiles
        self.code = Code()
        self.numbers = numbers
        self.epilogue = epilogue
        self.packer = packer
        tile = scheme.tile
        self.vectors = [tile.vectors] if tile.wide else []
        self.vectors += [tile.vectors - 1] if tile.narrow else []
        self.exact = scheme.reads_padding
        self.pixels = [scheme.pixels]
        if scheme.tiles:
            self.pixels.append(16)

    def source(self) -> KernelSource:
        self.print()
        scheme = self.scheme
        products = [scheme.products(v, p) for v in self.vectors for p in self.pixels]
        if self.exact:
            products += [scheme.fallback_products(v) for v in self.vectors]
        pieces = dict.fromkeys(piece for function in products for piece in function.pieces)
        return KernelSource.named(scheme.word.name, str(self.code), beside=tuple(pieces))

    def print(self) -> None:
        code, scheme = self.code, self.scheme
        for vectors in self.vectors:
            code.lines(scheme.products(vectors, p).declaration for p in self.pixels)
            if self.exact:
                code.line(scheme.fallback_products(vectors).declaration)
        if scheme.tiles:
            code.lines(f'extern "C" void {name}();' for name in self.tiles)
        self.packer.print(code)
        for vectors in self.vectors:
            self._finish(vectors)
            self._pixels(vectors)
        with code.block("MD_KERNEL(@)"):
            self._pointers()
            with self.numbers.declared(code):
                if scheme.tiles:
                    code.line(f"{self.tiles[0]}();")
                code.line("uniform int held = -1;")
                if self.exact:
                    code.line("uniform bool special = false;")
                with code.block("for (uniform int t = md_begin; t < md_end; t++)"):
                    self._task()
                if scheme.tiles:
                    code.line(f"{self.tiles[1]}();")

    def _finish(self, vectors: int) -> None:
        """Prints ``@_finish``, a function that applies the epilogue to the sums of some pixels."""
        code, epilogue = self.code, self.epilogue
        parameters = [PARAMETER, f"const uniform {self.sums} * uniform sums"]
        parameters += [f"const uniform {self.sums} * uniform bias", *epilogue.parameters]
        parameters += [f"uniform int {name}" for name in ("begin", "end", "width")]
        head = f"static noinline unmasked void @_finish{vectors}("
        with (
            code.block(head + ", ".join(parameters) + ")"),
            self.numbers.declared(code),
        ):
            epilogue.begin(code, vectors)
            flat = self.numbers("flat_width")
            epilogue.print_rows(code, vectors, flat)

    def _pixels(self, vectors: int) -> None:
        """Prints ``@_pixels``, a function that computes all pixels of a block for some vectors of
        output channels."""
        code, scheme, number = self.code, self.scheme, self.numbers
        parameters = [PARAMETER, "const uniform int8 * uniform packed"]
        parameters += ["const uniform int32 * uniform offsets", "const uniform int8 * uniform w"]
        parameters += [f"uniform {self.sums} * uniform sums"]
        parameters += [f"const uniform {self.sums} * uniform bias"]
        parameters += [*self.epilogue.parameters, "uniform int height", "uniform int width"]
        if self.exact:
            parameters += ["uniform bool special", "uniform unsigned int16 * uniform exact"]
        head = f"static noinline unmasked void @_pixels{vectors}("
        with code.block(head + ", ".join(parameters) + ")"), self.numbers.declared(code):
            flat = number("flat_width")
            code.line(f"const uniform int all = (height - 1) * {flat} + width;")
            code.line(f"for (uniform int q = 0; q < all; q += {scheme.pixels})")
            with code.block(""):
                taps = number("taps")
                counts = f"{taps}, {number('blocks_of_terms')}"
                from_ = f"packed + (uniform int64)q * {scheme.step}"
                code.line(f"const uniform int end = min(q + {scheme.pixels}, all);")
                if self.exact:
                    with code.block("if (special)"):
                        self._exact(vectors, from_, counts)
                arguments_of_products = f"{from_}, offsets, {counts}, {number('next')}, w, sums"
                calls = [f"{scheme.products(vectors).name}({arguments_of_products});"]
                if scheme.tiles:
                    last_tile = scheme.products(vectors, 16).name
                    calls.insert(0, f"if (all - q <= 16) {last_tile}({arguments_of_products});")
                for i, call in enumerate(calls):
                    code.line(f"else {call}" if i or self.exact else call)
                arguments = ["numbers", "sums", "bias"]
                arguments += [f"{name}_" for name in self.problem.result_views]
                arguments += [f"e{i}_" for i in range(len(self.epilogue.vectors))]
                arguments += ["first", "limit", "q", "end", "width"]
                code.line(f"@_finish{vectors}({', '.join(arguments)});")

    def _exact(self, vectors: int, packed: str, counts: str) -> None:
        """Prints the fallback: the sums of a tile, each merged group by itself."""
        code, scheme, number = self.code, self.scheme, self.numbers
        taps, groups = number("taps"), number("merged")
        outputs = number("outputs")
        outputs_of_group = number("exact_outputs")
        count = scheme.pixels * vectors
        code.line(f"uniform float * uniform own = sums + {scheme.sums_floats};")
        with code.block(f"for (uniform int g = 0; g < {groups}; g++)"):
            from_ = f"(const uniform unsigned int16 * uniform)({packed})"
            code.line(f"@_exact(numbers, {from_}, offsets, exact, end - q, g);")
            arguments = f"(const uniform int8 * uniform)exact, offsets + {taps}, {counts}, {LINE}"
            code.line(f"{scheme.fallback_products(vectors).name}({arguments}, w, own);")
            with code.block(f"for (uniform int i = 0; i < {count}; i++)"):
                at = f"i * {scheme.lanes} + programIndex"
                lane = f"first % {outputs} + i % {vectors} * {scheme.lanes} + programIndex"
                code.line(f"if (({lane}) / {outputs_of_group} == g) sums[{at}] = own[{at}];")

    def _pointers(self) -> None:
        code, problem = self.code, self.problem
        views = {"x": problem.source, **problem.result_views}
        others = [f"z{i}" for i in range(len(problem.others))]
        names = ["x", *others, "y", "weights", "bias", "offsets"]
        names += [f"p{i}" for i in range(len(self.packer.vectors))]
        names += [f"e{i}" for i in range(len(self.epilogue.vectors))]
        for i, name in enumerate(names):
            element = views[name].element if name in views else None
            if name == "y":
                assert element is not None
                code.line(f"{element.pointer} y = MD_OUT({element.type}, {i});")
            elif name in ("weights", "offsets", "bias"):
                type = {"weights": "int8", "offsets": "int32", "bias": self.sums}[name]
                code.line(f"const uniform {type} * uniform {name} = MD_IN({type}, {i});")
            else:
                element = element or ELEMENTS["float32"]
                code.line(f"{element.constant_pointer} {name} = MD_IN({element.type}, {i});")
        code.line(f"{PARAMETER} = MD_IN(int32, {len(names)});")

    def _task(self) -> None:
        scheme, code, number = self.scheme, self.code, self.numbers
        parts, blocks = number("parts"), number("blocks")
        code.line(f"const uniform int part = t % {parts};")
        code.line(f"uniform int block = t / {parts};")
        groups = number("groups")
        code.line(f"const uniform int group = block % {groups};")
        code.line(f"block /= {groups};")
        images = number("images")
        code.line(f"const uniform int64 image = (uniform int64)(block / {blocks}) * {images};")
        code.line(f"block %= {blocks};")
        print_block(code, scheme, number)
        stored = f"uniform {scheme.word.stored} * uniform"
        code.line(f"{stored} packed = ({stored})md_scratch;")
        packed_bytes = number("packed_bytes")
        again_bytes = number("again_bytes")
        sums = f"uniform {self.sums} * uniform"
        code.line(f"{sums} sums = ({sums})(md_scratch + {packed_bytes} + {again_bytes});")
        after_packed = f"({stored})(md_scratch + {packed_bytes})"
        if self.exact:
            code.line(f"{stored} exact = {after_packed};")
        image_bytes = number("image_bytes")
        with code.block(f"if (held != t / {parts})"):
            x_image = number("x_image")
            if self.exact:
                code.line("special = false;")
            with code.block(f"for (uniform int i = 0; i < {images}; i++)"):
                to = f"({stored})(md_scratch + i * {image_bytes})"
                arguments = [f"numbers, x + (image + i) * {x_image}", to]
                if scheme.packing == "unrolled":
                    arguments.append(after_packed)
                arguments += [f"p{i}" for i in range(len(self.packer.vectors))]
                call = f"@_pack({', '.join(arguments)}, group, r0, r1, c0, c1)"
                code.line(f"if ({call}) special = true;" if self.exact else f"{call};")
            code.line(f"held = t / {parts};")
        print_by_width(code, scheme.tile, number, self._call)

    def _call(self, vectors: int, slot: str) -> None:
        """Prints the calls that compute a task's pixels, for its ``vectors`` vectors of output
        channels from ``slot`` on."""
        scheme, problem, code, number = self.scheme, self.problem, self.code, self.numbers
        outputs = number("group_outputs")
        code.line(f"const uniform int slot = ({slot}) * {scheme.lanes};")
        code.line(f"const uniform int first = group * {outputs} + slot;")
        code.line(f"const uniform int limit = (group + 1) * {outputs};")
        at = f"group * {number('slots')} + slot"
        weights = f"weights + (uniform int64)({at}) * {number('weight_bytes')}"
        images, image_bytes = number("images"), number("image_bytes")
        tensors = [
            f"{name} + (image + i) * {number(f'{name}_image')} + "
            f"r0 * {number(f'{name}_row')} + c0 * {view.column}"
            for name, view in problem.result_views.items()
        ]
        packed = f"(const uniform int8 * uniform)packed + i * {image_bytes}"
        arguments = ["numbers", packed, "offsets", weights]
        arguments += ["sums", f"bias + {at}", *tensors]
        arguments += [f"e{i} + {at}" for i in range(len(self.epilogue.vectors))]
        arguments += ["first", "limit", "r1 - r0", "c1 - c0"]
        arguments += ["special", "exact"] if self.exact else []
        with code.block(f"for (uniform int i = 0; i < {images}; i++)"):
            code.line(f"@_pixels{vectors}({', '.join(arguments)});")


class DotProduct(Algorithm):
    """Dot products of two bfloat16 values, summed in float32 by AVX-512 BF16 or AMX."""

    name = "bfloat16 dot product"
    error = 1.0
    accuracies = ACCURACIES
    factors: tuple[str, ...] = ("bfloat16",)

    def why_not(self, problem: Problem, has_prologue: bool, isa: Isa) -> str | None:
        if not isa.bfloat16_products:
            return f"{isa.name} has no instructions for it"
        if bf16_packing(merge(problem, isa.lanes), isa.lanes) is None:
            return "its input has few channels a group, or is not in the blocked layout"
        return None

    def scheme(self, problem: Problem, has_prologue: bool, isa: Isa, threads: int) -> DotScheme:
        return choose_dot_product(problem, isa, threads)

    def schemes(
        self, problem: Problem, has_prologue: bool, isa: Isa, threads: int
    ) -> Iterable[DotScheme]:
        return dot_schemes(problem, isa)

    def describe(self, scheme: DotScheme) -> dict[str, int]:
        return {"pixels": scheme.pixels, "vectors": scheme.tile.vectors, "block": scheme.block} | (
            {"images": scheme.images} if scheme.images > 1 else {}
        )

    def seconds(self, scheme: DotScheme, speed: Speed) -> float:
        clock = speed.flops / speed.threads / (4 * scheme.lanes)
        moved = scheme.weight_bytes
        if scheme.moved_bytes > speed.cache // 2:
            moved += scheme.moved_bytes
        return overlapped(scheme.cycles / clock / speed.threads, moved / speed.bandwidth)

    def operations(self, scheme: DotScheme) -> int:
        return scheme.problem.operations // scheme.merged

    def weight_bytes(self, scheme: DotScheme) -> int:
        return scheme.weight_bytes

    def print(self, parts: Parts, scheme: DotScheme, threads: int) -> PrintedContraction:
        weight, *bias = parts.node.inputs[1:]
        pointers = (pack_bf16(weight, scheme), packed_outputs(bias, scheme))
        packer = DotPacker(parts, scheme, SchemeNumbers(scheme, DOT_NUMBERS))
        return print_products(parts, scheme, threads, packer, pointers)
