"""Transposed convolution: a convolution for each phase of the output, and no product with zeros.

Along an axis with stride ``s`` the tap ``k`` of input ``i`` adds to the place ``i*s + k*dilation``.
The places of one remainder by ``s`` are a phase: only the taps of that remainder reach it, and
among these it is a convolution of stride 1 with the turned taps.  Phases with the same windows are
output channels of one convolution.  All of them are then laid between one another.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from minidnn.errors import GraphError
from minidnn.graph import operators as ops
from minidnn.graph.expression import argument
from minidnn.graph.ir import Constant, Value
from minidnn.graph.trace import apply_or_compute

Pair = tuple[int, int]
Apply = Callable[..., Value]
#: Gives a convolution of an input, a weight and a bias, or none.
Convolve = Callable[[ops.Conv2d, Value, Value, Value | None], Value]

#: Phases, for each of which there is a place in a table.
MOST_PHASES = 1 << 20


def transposed_convolution(
    x: Value,
    weight: Value,
    bias: Value | None = None,
    *,
    stride: tuple[int, ...],
    cut: tuple[Pair, ...],
    dilation: tuple[int, ...],
    groups: int = 1,
    apply: Apply = apply_or_compute,
    convolve: Convolve | None = None,
) -> Value:
    """What a convolution's gradient for its input is: PyTorch's and ONNX's ``ConvTranspose``.

    Args:
        x: The input, (N, C, H, W) or (N, C, L).
        weight: (C, O / groups, KH, KW) or (C, O / groups, K).
        bias: (O,), or None.
        stride: Steps of the output for one of the input, for each of the one or two axes.
        cut: For each axis what is cut off before and behind, which is ``padding`` in PyTorch;
            below zero it adds.  So ``padding=p, output_padding=e`` is ``(p, p - e)``.
        dilation: Steps between the taps of an axis.
        groups: Groups of channels that are convolved by themselves.
        apply: Applies an operator; the default computes what is known beforehand.
        convolve: Applies a convolution; the default applies it as any other operator, for which
            the weight must be known.

    Returns:
        (N, O, rows, columns) or (N, O, columns), where an axis of size ``n`` becomes
        ``(n - 1) * stride + dilation * (kernel - 1) + 1 - sum(cut)``.

    Raises:
        GraphError: Operands and arguments do not fit, or nothing is left of an axis.

    Example::

        out = transposed_convolution(
            x, weight, stride=(2, 2), cut=((1, 1), (1, 1)), dilation=(1, 1)
        )
    """
    spatial = x.type.rank - 2
    given = {len(stride), len(cut), len(dilation), weight.type.rank - 2}
    if spatial not in (1, 2) or given != {spatial}:
        raise GraphError(
            f"a transposed convolution of {x.shape} by {weight.shape} with stride={stride}, "
            f"dilation={dilation}; valid are (N, C, H, W) and (C, O / groups, KH, KW), or (N, C, L)"
            " and (C, O / groups, K), with as many strides and dilations"
        )
    channels, per_group = weight.shape[:2]
    if groups < 1 or channels % groups or x.shape[1] != channels:
        raise GraphError(
            f"operands have shapes {x.shape} and {weight.shape} with groups={groups}, which do not "
            "fit; valid are as many channels of the input as rows of the weight, in equal groups"
        )
    if bias is not None and bias.shape != (groups * per_group,):
        raise GraphError(f"bias has shape {bias.shape}; valid is ({groups * per_group},)")
    if min(stride) < 1 or min(dilation) < 1:
        raise GraphError(f"stride={stride}, dilation={dilation}; valid are ints of at least 1")

    def convolution(op: ops.Conv2d, *operands: Value | None) -> Value:
        return apply(op, *(value for value in operands if value is not None))

    build = _Build(apply, convolve or convolution, groups)
    if spatial == 2:
        rows, columns = (
            _Axis.of(*each)
            for each in zip(x.shape[2:], weight.shape[2:], stride, cut, dilation, strict=True)
        )
        return build.whole(x, weight, bias, rows, columns)
    columns = _Axis.of(x.shape[2], weight.shape[2], stride[0], cut[0], dilation[0])
    row = build.view(x, (*x.shape[:2], 1, x.shape[2]))
    taps = build.view(weight, (*weight.shape[:2], 1, weight.shape[2]))
    out = build.whole(row, taps, bias, _Axis.of(1, 1, 1, (0, 0), 1), columns)
    return build.view(out, (*out.shape[:2], out.shape[3]))


@dataclass(frozen=True)
class _Window:
    """What phases have in common that are channels of one convolution."""

    #: The part of the input that is read, and the zeros before and behind it.
    start: int
    size: int
    padding: Pair
    #: Steps between taps.
    dilation: int
    #: The phases, and the taps of each in the order in which they lie over the input.
    phases: tuple[int, ...]
    taps: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class _Axis:
    """One axis of the output, as places between which phases are laid."""

    windows: tuple[_Window, ...]
    #: Phases, and elements of each that are computed.
    stride: int
    steps: int
    #: Which of the places laid between one another the output begins with, and how many it has.
    first: int
    size: int

    @classmethod
    def of(cls, size: int, kernel: int, stride: int, cut: Pair, dilation: int) -> _Axis:
        total = (size - 1) * stride + dilation * (kernel - 1) + 1
        outputs = total - sum(cut)
        if outputs < 1:
            raise GraphError(
                f"cutting off {cut} leaves nothing of an axis of {total}, which a transposed "
                f"convolution of {size} by {kernel} taps makes"
            )
        if size == 1:
            stride = kernel * dilation  # one element goes nowhere: let each tap have its phase
        first, last = cut[0] // stride, (cut[0] + outputs - 1) // stride
        windows = []
        for (start, count, step), phases in _alike(kernel, stride, dilation).items():
            # Output `first` of a phase reads from here on, output `last` up to there.
            begin, end = first - start - (count - 1) * step, last - start
            inside = range(max(begin, 0), min(end, size - 1) + 1)
            if inside:
                padding = (inside[0] - begin, end - inside[-1])
                windows.append(
                    _Window(
                        inside[0],
                        len(inside),
                        padding,
                        step,
                        tuple(phases),
                        tuple(tuple(taps) for taps in phases.values()),
                    )
                )
        begin = cut[0] - first * stride
        return cls(tuple(windows), stride, last - first + 1, begin, outputs)


def _alike(
    kernel: int, stride: int, dilation: int
) -> dict[tuple[int, int, int], dict[int, list[int]]]:
    """Phases and their taps, the last first, by what their windows have in common: how far behind
    its input the first tap lies, how many there are, and the steps between them."""
    taps: dict[int, list[int]] = {}
    for k in range(kernel):
        taps.setdefault(k * dilation % stride, []).insert(0, k)
    found: dict[tuple[int, int, int], dict[int, list[int]]] = {}
    for phase, own in sorted(taps.items()):
        behind = [k * dilation // stride for k in own]
        step = behind[0] - behind[1] if len(own) > 1 else 1
        found.setdefault((behind[-1], len(own), step), {})[phase] = own
    return found


@dataclass(frozen=True)
class _Build:
    """Puts the convolution together from operators."""

    apply: Apply
    convolve: Convolve
    groups: int

    def view(self, x: Value, shape: tuple[int, ...]) -> Value:
        return x if x.shape == shape else self.apply(ops.View(shape), x)

    def whole(
        self, x: Value, weight: Value, bias: Value | None, rows: _Axis, columns: _Axis
    ) -> Value:
        """The output, (N, O, rows, columns)."""
        pairs = [(a, b) for a in rows.windows for b in columns.windows]
        order = [(r, c) for a, b in pairs for r in a.phases for c in b.phases]
        every = rows.stride * columns.stride
        if every > MOST_PHASES:
            raise GraphError(
                f"stride {(rows.stride, columns.stride)} makes {every} phases; "
                f"valid are at most {MOST_PHASES}"
            )
        inner = bias if len(order) == every else None  # phases that no tap reaches have it, too
        parts = [self._part(x, weight, inner, a, b, rows.steps, columns.steps) for a, b in pairs]
        if parts:
            out = self._between(x, weight, parts, order, rows, columns)
        else:  # nothing is left but places that no tap reaches
            nowhere = [(-1,) * n for n in (self.groups * weight.shape[1], rows.size, columns.size)]
            out = self.apply(ops.Take((None, *nowhere)), x)
        if bias is None or inner is not None:
            return out
        if isinstance(bias, Constant):
            body = argument(0) + argument(1)
            return self.apply(ops.Formula(body, channel_vectors=1, title="Bias"), out, bias)
        return self.apply(ops.Add(), out, self.view(bias, (*bias.shape, 1, 1)))

    def _part(
        self,
        x: Value,
        weight: Value,
        bias: Value | None,
        rows: _Window,
        columns: _Window,
        height: int,
        width: int,
    ) -> Value:
        """Phases that are one convolution: (N, groups * phases * O / groups, height, width)."""
        if (rows.size, columns.size) != x.shape[2:]:
            starts = (0, 0, rows.start, columns.start)
            sizes = (*x.shape[:2], rows.size, columns.size)
            x = self.apply(ops.Slice(starts, sizes, (1, 1, 1, 1)), x)
        channels, per_group, *kernel = weight.shape
        split = (self.groups, channels // self.groups, per_group)
        down, across = len(rows.phases), len(columns.phases)
        chosen = [tuple(k for taps in window.taps for k in taps) for window in (rows, columns)]
        taken = weight
        if chosen != [tuple(range(size)) for size in kernel]:
            taken = self.apply(ops.Take((None, None, *chosen)), weight)
        high, wide = len(rows.taps[0]), len(columns.taps[0])
        taken = self.view(taken, (*split, down, high, across, wide))
        turned = self.apply(ops.Transpose((0, 3, 5, 2, 1, 4, 6)), taken)
        outputs = self.groups * down * across * per_group
        kernels = self.view(turned, (outputs, split[1], high, wide))
        if bias is not None:
            repeated = self.view(bias, (self.groups, 1, per_group))
            repeated = self.apply(ops.Expand((self.groups, down * across, per_group)), repeated)
            bias = self.view(repeated, (outputs,))
        padding = (rows.padding, columns.padding)
        op = ops.Conv2d((1, 1), padding, (rows.dilation, columns.dilation), self.groups)
        out = self.convolve(op, x, kernels, bias)
        assert out.shape[2:] == (height, width)
        return out

    def _between(
        self,
        x: Value,
        weight: Value,
        parts: list[Value],
        order: list[Pair],
        rows: _Axis,
        columns: _Axis,
    ) -> Value:
        """The phases laid between one another, and cut to the output."""
        batch, groups, per_group = x.shape[0], self.groups, weight.shape[1]
        size = (rows.steps, columns.steps)
        joined = parts[0]
        if len(parts) > 1:
            if groups > 1:
                by_group = [(batch, groups, part.shape[1] // groups, *size) for part in parts]
                parts = [self.view(part, own) for part, own in zip(parts, by_group, strict=True)]
            joined = self.apply(ops.Concat(1 if groups == 1 else 2), *parts)
        every = [(r, c) for r in range(rows.stride) for c in range(columns.stride)]
        if order != every:
            places = {phase: place for place, phase in enumerate(order)}
            joined = self.view(joined, (batch, groups, len(order), per_group, *size))
            chosen = tuple(places.get(phase, -1) for phase in every)
            joined = self.apply(ops.Take((None, None, chosen, None, None, None)), joined)
        if len(every) > 1:
            split = (batch, groups, rows.stride, columns.stride, per_group, *size)
            joined = self.apply(ops.Transpose((0, 1, 4, 5, 2, 6, 3)), self.view(joined, split))
        laid = (rows.steps * rows.stride, columns.steps * columns.stride)
        out = self.view(joined, (batch, groups * per_group, *laid))
        starts, sizes = (0, 0, rows.first, columns.first), (*out.shape[:2], rows.size, columns.size)
        return out if sizes == out.shape else self.apply(ops.Slice(starts, sizes, (1,) * 4), out)
