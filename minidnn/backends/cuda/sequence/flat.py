"""Prints plans without windows as flat loops: element after element, in the order of memory.

Threads take packs of neighbouring elements, as wide as every tensor's alignment allows, whatever
plane or pixel they belong to; only vectors, and operands with one element for a plane, depend on
that.

Small images, such as the rows of a batch, are described as one (:func:`merge_batch`).  An
element-wise kernel depends on images only where an operand has an element for each of them.  So
images that are contiguous become channels of one, or its pixels, and blocks are as full as those of
large images.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, gcd

from ....fusion.plan import Binding, KernelPlan, Plane, roundings
from ...codegen.code import Code
from ..prelude import TYPES
from ..tensor import Tensor
from .pack import Pack
from .vectors import SequenceKernel, kernel_of, vector_at

_ACCESS = 16  # bytes
_MANY_VECTORS = 3
"""From so many on, vectors take a multiprocessor longer to read than tensors."""
_ROUNDS = 2
"""Packs of a thread that share vectors.  The regions of efficientnet_b0 that read many of them take
2.13 ms on an H200 with one pack, 1.77 with two, 1.79 with four and 1.98 with six."""


@dataclass(frozen=True, slots=True)
class Flat:
    """How elements are numbered, by channel and then pixel (planar) or the other way round, and how
    they are spread over threads."""

    planar: bool
    pack: int
    #: Threads of a block.
    threads: int = 256
    #: Packs that a thread loads before it computes.  With one, a multiprocessor has all the threads
    #: that it can have: 0.99 to 1.01 of a copy's rate on an H200, with two or four 0.94 to 0.97.
    #: Where packs read many vectors, reading these once for several packs is worth more.
    rounds: int = 1


def choose_flat(plan: KernelPlan, binding: Binding, tensors: Sequence[Tensor]) -> Flat | None:
    """Returns how a plan is computed element after element; None if it cannot be."""
    plan, binding, tensors = merge_batch(plan, binding, tensors)
    if len(plan.steps) != 1 or any(o.window for s in plan.steps[0].segments for o in s):
        return None
    full_size = []
    planes = {p.input: p for p in plan.planes if p.input is not None}
    for i, (slot, tensor) in enumerate(zip(binding.slots, tensors, strict=True)):
        is_input = i < len(binding.inputs)
        if is_input and planes[i].extent == (1, 1) != plan.anchor:
            continue
        if is_input and planes[i].extent != plan.anchor:
            return None
        full_size.append((slot, tensor))
        if is_input and planes[i].one_channel:
            return None
    area = plan.anchor[0] * plan.anchor[1]
    full_tensors = [t for _, t in full_size]
    if all(t.is_planar and t.row == t.columns and (t.channel == area) for t in full_tensors):
        planar = True
    elif all(t.channel == 1 and t.row == t.columns * t.pixel for t in full_tensors):
        planar = False
    else:
        return None
    pack = 16 // min(t.itemsize for t in full_tensors)
    for slot, tensor in full_size:
        unit = area if planar else 1
        for begin, end in binding.segments:
            pack = gcd(pack, gcd((begin - slot.channel) * unit, (end - begin) * unit))
        pack = gcd(pack, gcd(tensor.offset, tensor.image))
        pack = pack if planar else gcd(pack, tensor.pixel)
        while pack * tensor.itemsize > 16:
            pack //= 2
    flat = Flat(planar, pack)
    many = _numbers_of_channels(plan) >= _MANY_VECTORS
    narrow = any(t.itemsize == 2 for t in full_tensors)
    return _of_same_channels(plan, binding, flat) if many and narrow and not planar else flat


def _numbers_of_channels(plan: KernelPlan) -> int:
    """How many operands with an element for each channel the plan reads: vectors, and tensors."""
    operations = plan.steps[0].operations
    vectors = {number for operation in operations for number in operation.vectors}
    read = {number for operation in operations for number in operation.operands}
    singles = {n for n in read if plan.planes[n].extent == (1, 1) != plan.anchor}
    return len(vectors) + len(singles)


def _of_same_channels(plan: KernelPlan, binding: Binding, flat: Flat) -> Flat:
    """Returns ``flat`` with as many threads as give all packs of a thread the same channels, at
    pixels below each other."""
    (begin, end), *others = binding.segments
    packs = (end - begin) // flat.pack
    if others or (end - begin) % flat.pack or not 0 < packs <= flat.threads:
        return flat
    area = plan.anchor[0] * plan.anchor[1]
    rows = min(flat.threads // packs, area)
    return replace(flat, threads=packs * rows, rounds=min(_ROUNDS, -(-area // rows)))


def print_flat(
    plan: KernelPlan, binding: Binding, tensors: Sequence[Tensor], flat: Flat
) -> SequenceKernel:
    """Returns the kernel of a plan that is spread as ``flat`` says."""
    return _Printer(*merge_batch(plan, binding, tensors), flat).print()


class _Printer:
    """Prints a plan without windows."""

    def __init__(
        self, plan: KernelPlan, binding: Binding, tensors: Sequence[Tensor], flat: Flat
    ) -> None:
        self.plan = plan
        self.binding = binding
        self.tensors = tensors
        self.flat = flat
        self.area = plan.anchor[0] * plan.anchor[1]
        self.frame = max(end for _, end in binding.segments)

    def print(self) -> SequenceKernel:
        step = self.flat.threads * self.flat.pack
        channels = [end - begin for begin, end in self.binding.segments]
        sizes = [count * self.area for count in channels]
        chunks = [ceil(size / (step * self.flat.rounds)) for size in sizes]
        code = Code()
        with code.block(""):
            code.line(f"const int block = blockIdx.x % {sum(chunks)}u;")
            code.line(f"const long long image = blockIdx.x / {sum(chunks)}u;")
            first = 0
            for segment, count in enumerate(chunks):
                test = f"if (block >= {first} && block < {first + count})"
                with code.block(test if len(chunks) > 1 else ""):
                    self._segment(code, segment, first)
                first += count
        blocks = self.binding.batch * sum(chunks)
        return kernel_of(self.binding, self.tensors, code, blocks, self.flat.threads)

    def _segment(self, code: Code, segment: int, first: int) -> None:
        begin, end = self.binding.segments[segment]
        size = (end - begin) * self.area
        self.channels = end - begin
        operations = self.plan.steps[0].segments[segment]
        numbers = list(dict.fromkeys(n for o in operations for n in (*o.operands, o.result)))
        tensors = [n for n in numbers if self._at(n) is not None]
        for number in tensors:
            self._tensor(code, number, begin)
        self.inputs = [n for n in tensors if self.plan.planes[n].input is not None]
        self.vectors = list(dict.fromkeys(n for o in operations for n in o.vectors))
        self.singles: set[str] = set()
        size_of_pack = self.flat.pack
        #: Whether a pack is of one channel, or of neighbouring ones, and whether all rounds of a
        #: thread are of the same ones.
        self.has_one_channel = self.flat.planar and self.area % size_of_pack == 0
        self.has_whole_channels = not self.flat.planar and self.channels % size_of_pack == 0
        step, rounds = self.flat.threads * size_of_pack, self.flat.rounds
        self.is_same_channel = self.has_whole_channels and step % self.channels == 0
        start = f"(block - {first})" if first else "block"
        kind, wide = ("long long", "LL") if self._is_wide(tensors, size) else ("int", "")
        place = f"{start} * {rounds * step}{wide} + threadIdx.x * {size_of_pack}"
        code.line(f"const {kind} start = {place};")
        pack = Pack(code, size_of_pack)
        known: dict[int, str] = {}
        if self.is_same_channel:
            code.line(f"const {kind} e0 = start;")
            self._channel_data(pack, segment, 0, known, {n: f"v{n}" for n in self.vectors})
        is_whole = size % (rounds * step) == 0
        for k in range(rounds):
            if k or not self.is_same_channel:
                code.line(f"const {kind} e{k} = start + {k * step};")
            for number in self.inputs:
                if self._is_full(number):
                    test = "" if is_whole else f"e{k} < {size}"
                    pack.load(f"q{number}_{k}", self._address(number, f"e{k}"), test)
        for k in range(rounds):
            with code.block("" if is_whole else f"if (e{k} < {size})"):
                names = {n: f"q{n}_{k}" for n in self.inputs if self._is_full(n)} | known
                self._compute(pack, segment, k, names)

    def _is_wide(self, tensors: Sequence[int], size: int) -> bool:
        """Whether offsets in an image need more than 32 bits."""
        return size >= 1 << 30 or any(self._tensor_of(n).is_wide for n in tensors)

    def _compute(self, pack: Pack, segment: int, k: int, names: dict[int, str]) -> None:
        operations = self.plan.steps[0].segments[segment]
        dtypes = roundings(operations, self.plan.planes)
        vectors = {n: f"v{n}" if self.is_same_channel else f"v{n}_{k}" for n in self.vectors}
        if not self.is_same_channel:
            self._channel_data(pack, segment, k, names, vectors)
        for operation in operations:
            arguments = [self._argument(pack, names[n]) for n in operation.operands]
            arguments += [self._argument(pack, vectors[n]) for n in operation.vectors]
            result = f"p{operation.result}_{k}"
            dtype, stored = dtypes[operation.result], self.plan.planes[operation.result].dtype
            pack.compute(result, operation.code, arguments, dtype, stored)
            names[operation.result] = result
        for operation in operations:
            number = operation.result
            if self.plan.planes[number].output is not None:
                dtype = self._tensor_of(number).dtype
                pack.store(self._address(number, f"e{k}"), names[number], dtype)

    def _argument(self, pack: Pack, name: str) -> str:
        return name if name in self.singles else pack.at(name)

    # Data of channels: vectors, and operands with one element for a plane

    def _channel_data(
        self,
        pack: Pack,
        segment: int,
        k: int,
        names: dict[int, str],
        vectors: dict[int, str],
    ) -> None:
        """Loads the data of the channels of round ``k``'s pack."""
        begin = self.binding.segments[segment][0]
        operations = self.plan.steps[0].segments[segment]
        if self.has_one_channel:
            pack.code.line(f"const int c{k} = {self._channel(f'e{k}')};")
        for number, name in vectors.items():
            base = vector_at(self.binding, number, str(begin))
            aligned = gcd(self.frame, begin, 4) == 4
            self._load(pack, name, base, 1, k, "md_load_floats" if aligned else "")
        for number in dict.fromkeys(n for o in operations for n in o.operands):
            if number in names or number not in self.inputs or self._is_full(number):
                continue
            names[number] = f"q{number}_{k}"
            tensor = self._tensor_of(number)
            if self.plan.planes[number].one_channel:
                pack.code.line(f"const float {names[number]} = md_value(*g{number});")
                self.singles.add(names[number])
            else:
                wide = self._wide_load(number, begin)
                self._load(pack, names[number], f"g{number}", tensor.channel, k, wide)

    def _wide_load(self, number: int, begin: int) -> str:
        """The function that loads the elements of a pack's planes at once; empty where they are not
        aligned.  Those of float32 may be more than one access moves."""
        tensor, size = self._tensor_of(number), self.flat.pack
        at = self._at(number)
        assert at is not None
        first = (
            0 if self.plan.planes[number].one_channel else begin - self.binding.slots[at].channel
        )
        if tensor.channel != 1 or gcd(tensor.offset + first, tensor.image, size) != size:
            return ""
        if tensor.itemsize * size <= _ACCESS:
            return f"md_load<{size}>"
        return "md_load_floats" if tensor.dtype == "float32" and size % 4 == 0 else ""

    def _load(self, pack: Pack, name: str, base: str, stride: int, k: int, wide: str) -> None:
        """Loads one element for each channel of a pack; ``wide``: the function that loads them at
        once, if any."""
        by = "" if stride == 1 else f" * {stride}"
        if self.has_one_channel:
            pack.code.line(f"const float {name} = md_value(*({base} + c{k}{by}));")
            self.singles.add(name)
        elif self.has_whole_channels and wide and pack.size % 4 == 0:
            pack.code.line(f"float {name}[{pack.size}];")
            pack.code.line(f"{wide}({name}, {base} + {self._channel(f'e{k}')});")
        else:
            element = f"e{k}" if pack.size == 1 else f"(e{k} + v)"
            pack.declare(name, f"md_value(*({base} + {self._channel(element)}{by}))")

    def _channel(self, element: str) -> str:
        """The channel of an element, counted from the segment's first."""
        if self.flat.planar:
            return f"{element} / {self.area}"
        return f"{element} % {self.channels}"

    def _at(self, number: int) -> int | None:
        """The index of a plane among the kernel's tensors; None if it stays in registers."""
        return self.binding.slot_of(self.plan.planes[number])

    def _tensor_of(self, number: int) -> Tensor:
        at = self._at(number)
        assert at is not None
        return self.tensors[at]

    def _is_full(self, number: int) -> bool:
        """Whether a tensor has an element for each one of the plane."""
        return self.plan.planes[number].extent == self.plan.anchor

    def _tensor(self, code: Code, number: int, begin: int) -> None:
        plane, tensor, at = self.plan.planes[number], self._tensor_of(number), self._at(number)
        assert at is not None
        slot = self.binding.slots[at]
        shift = 0 if plane.one_channel else (begin - slot.channel) * tensor.channel
        terms = [f"a{at}", str(tensor.offset + shift)]
        if not plane.one_image:
            terms.append(f"image * {tensor.image}")
        const = "const " if plane.input is not None else ""
        code.line(f"{const}{TYPES[tensor.dtype]} *const g{number} = {' + '.join(terms)};")

    def _address(self, number: int, element: str) -> str:
        tensor = self._tensor_of(number)
        if self.flat.planar or tensor.pixel == self.channels:
            return f"g{number} + {element}"
        count = self.channels
        return f"g{number} + ({element} / {count} * {tensor.pixel} + {element} % {count})"


SMALL = 16384
"""Elements of an image from which on blocks of its own are no worse: 8 packs of half precision a
thread."""

Described = tuple[KernelPlan, Binding, Sequence[Tensor]]


def merge_batch(plan: KernelPlan, binding: Binding, tensors: Sequence[Tensor]) -> Described:
    """Returns a plan, its binding and the layouts of its tensors, described as one image; unchanged
    where one image cannot stand for them, or where images are large."""
    unchanged = plan, binding, tensors
    operations = plan.operations
    if binding.batch == 1 or len(plan.steps) != 1 or any(o.window for o in operations):
        return unchanged
    if len(binding.segments) != 1 or any(slot.channel for slot in binding.slots):
        return unchanged
    (_, channels), rows, columns = binding.segments[0], *plan.anchor
    inputs = {plane.input: plane for plane in plan.planes}
    planes = [inputs[i] if i < len(binding.inputs) else None for i, _ in enumerate(tensors)]
    kinds = [_kind(plane, plan.anchor, channels) for plane in planes]
    shape = channels, rows, columns
    if None in kinds or not all(
        _follow(tensor, kind, shape) for tensor, kind in zip(tensors, kinds, strict=True)
    ):
        return unchanged
    present = set(kinds)
    if present <= {"full", "image"} and rows * columns == 1 and not binding.vectors:
        if present == {"full"}:
            return (
                unchanged
                if channels >= SMALL
                else _rows(plan, binding, tensors, kinds, 1, channels)
            )
        return _rows(plan, binding, tensors, kinds, binding.batch, channels)
    if channels * rows * columns >= SMALL:
        return unchanged
    channels_last = all(
        t.channel == 1 for t, kind in zip(tensors, kinds, strict=True) if kind == "full"
    )
    if present <= {"full", "channel"} and (channels_last or channels == 1):
        return _pixels(plan, binding, tensors, kinds, shape)
    if present <= {"full", "plane"} and not channels_last and not binding.vectors:
        return _planes(plan, binding, tensors, shape)
    return unchanged


def _kind(plane: Plane | None, anchor: tuple[int, int], channels: int) -> str | None:
    """Names what a tensor has an element for: each element ("full"), image, channel or plane; None
    if it is something else."""
    if plane is None:
        return "full"
    if plane.one_image:
        return "channel" if anchor == (1, 1) and not plane.one_channel else None
    if plane.one_channel and channels > 1:
        return "image" if anchor == (1, 1) else None
    if plane.extent == anchor:
        return "full"
    return "plane" if plane.extent == (1, 1) else None


def _follow(tensor: Tensor, kind: str | None, shape: tuple[int, int, int]) -> bool:
    """Whether a tensor's images are contiguous."""
    channels, rows, columns = shape
    area = rows * columns
    if tensor.offset:
        return False
    if kind in ("channel", "image"):
        return True
    if kind == "plane":
        return tensor.image == channels and (tensor.channel == 1 or channels == 1)
    if tensor.image != channels * area:
        return False
    if area == 1:
        return tensor.channel == 1 or channels == 1
    if tensor.channel == 1 and channels > 1:
        return tensor.pixel == channels and tensor.row == columns * channels
    return tensor.pixel == 1 and tensor.row == columns and tensor.channel == area


def _rows(
    plan: KernelPlan,
    binding: Binding,
    tensors: Sequence[Tensor],
    kinds: Sequence[str | None],
    count: int,
    channels: int,
) -> Described:
    """Describes images of one pixel as one image of ``count`` channels, and their channels as its
    pixels: where there is a channel for each image, elements of images are elements of channels."""
    length = binding.batch * channels // count
    anchor = (1, length)
    layouts = []
    for tensor, kind in zip(tensors, kinds, strict=True):
        if kind == "image":
            layouts.append(Tensor(tensor.dtype, count, 1, 1, 0, tensor.image, 1, 1))
        else:
            layouts.append(
                Tensor(tensor.dtype, count, 1, length, count * length, length, length, 1)
            )
    planes = tuple(
        replace(plane, one_channel=False)
        if plane.input is not None and kinds[plane.input] == "image"
        else replace(plane, extent=anchor)
        for plane in plan.planes
    )
    return replace(plan, anchor=anchor, planes=planes), _bound(binding, count), layouts


def _pixels(
    plan: KernelPlan,
    binding: Binding,
    tensors: Sequence[Tensor],
    kinds: Sequence[str | None],
    shape: tuple[int, int, int],
) -> Described:
    """Describes images as rows of pixels of one channels-last image."""
    channels, area = shape[0], binding.batch * shape[1] * shape[2]
    anchor = (1, area)
    layouts = [
        tensor
        if kind == "channel"
        else Tensor(tensor.dtype, channels, 1, area, channels * area, 1, channels * area, channels)
        for tensor, kind in zip(tensors, kinds, strict=True)
    ]
    planes = tuple(
        plane
        if plane.input is not None and kinds[plane.input] == "channel"
        else replace(plane, extent=anchor)
        for plane in plan.planes
    )
    return replace(plan, anchor=anchor, planes=planes), _bound(binding, channels), layouts


def _planes(
    plan: KernelPlan, binding: Binding, tensors: Sequence[Tensor], shape: tuple[int, int, int]
) -> Described:
    """Describes the channels of all images as those of one."""
    count = binding.batch * shape[0]
    layouts = [replace(tensor, channels=count, image=count * tensor.channel) for tensor in tensors]
    return plan, _bound(binding, count), layouts


def _bound(binding: Binding, channels: int) -> Binding:
    return replace(binding, batch=1, segments=((0, channels),))
