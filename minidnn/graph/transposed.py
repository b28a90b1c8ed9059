"""Transposed convolution, decomposed into phases: convolutions of stride 1 that multiply no zeros.

Along an axis with stride ``s``, tap ``k`` of input ``i`` adds to output ``i*s + k*dilation``.  The
outputs with the same remainder by ``s`` are a *phase*: only the taps with that remainder reach it,
and it is a convolution of stride 1 with these taps, flipped.  Phases with the same input window
become output channels of one convolution.  At last all phases are interleaved.
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

#: The most phases, since tables hold an entry for each.
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
    """The input gradient of a convolution as a forward operation: ``ConvTranspose`` of PyTorch and
    ONNX.

    Args:
        x: The input, (N, C, H, W) or (N, C, L).
        weight: (C, O / groups, KH, KW) or (C, O / groups, K).
        bias: (O,), or None.
        stride: Steps of the output for one of the input, for each of the one or two axes.
        cut: The elements that are cut off before and after, for each axis, which is ``padding`` in
            PyTorch; a negative number adds some.  So ``padding=p, output_padding=e`` is
            ``(p, p - e)``.
        dilation: Steps between the taps of an axis.
        groups: The number of groups of channels that are convolved by themselves.
        apply: Applies an operator; the default makes a constant where all operands are constants.
        convolve: Applies a convolution; the default applies it as any other operator, for which
            the weight must be a constant.

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
    ranks = {len(stride), len(cut), len(dilation), weight.type.rank - 2}
    if spatial not in (1, 2) or ranks != {spatial}:
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
    x_2d = build.view(x, (*x.shape[:2], 1, x.shape[2]))
    weight_2d = build.view(weight, (*weight.shape[:2], 1, weight.shape[2]))
    out = build.whole(x_2d, weight_2d, bias, _Axis.of(1, 1, 1, (0, 0), 1), columns)
    return build.view(out, (*out.shape[:2], out.shape[3]))


@dataclass(frozen=True)
class _Window:
    """The input window of the phases that are channels of one convolution, along one axis."""

    #: The slice of the input that is read, and the zeros before and after it.
    start: int
    size: int
    padding: Pair
    #: Input elements from one tap to the next.
    dilation: int
    #: The phases, and the taps of each in the order of the input elements that they multiply.
    phases: tuple[int, ...]
    taps: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class _Axis:
    """One axis of the output, made by interleaving phases."""

    windows: tuple[_Window, ...]
    #: The number of phases, and the number of elements computed of each.
    stride: int
    steps: int
    #: The first of the interleaved elements that the output keeps, and how many it keeps.
    first: int
    size: int

    @classmethod
    def of(cls, size: int, kernel: int, stride: int, cut: Pair, dilation: int) -> _Axis:
        """The phases and windows of an axis of ``size`` elements; GraphError if it has no
        output."""
        total = (size - 1) * stride + dilation * (kernel - 1) + 1
        outputs = total - sum(cut)
        if outputs < 1:
            raise GraphError(
                f"cutting off {cut} leaves nothing of an axis of {total}, which a transposed "
                f"convolution of {size} by {kernel} taps makes"
            )
        if size == 1:
            stride = kernel * dilation  # a single element needs no stride: each tap has its phase
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
    """Groups the phases by input window, and gives the taps of each phase, the last first.

    The key of a window is the offset of its first tap, in steps of the phase, the number of taps,
    and the steps between them.
    """
    taps: dict[int, list[int]] = {}
    for k in range(kernel):
        taps.setdefault(k * dilation % stride, []).insert(0, k)
    groups: dict[tuple[int, int, int], dict[int, list[int]]] = {}
    for phase, phase_taps in sorted(taps.items()):
        offsets = [k * dilation // stride for k in phase_taps]
        step = offsets[0] - offsets[1] if len(phase_taps) > 1 else 1
        groups.setdefault((offsets[-1], len(phase_taps), step), {})[phase] = phase_taps
    return groups


@dataclass(frozen=True)
class _Build:
    """Composes the transposed convolution of operators."""

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
        phase_count = rows.stride * columns.stride
        if phase_count > MOST_PHASES:
            raise GraphError(
                f"stride {(rows.stride, columns.stride)} makes {phase_count} phases; "
                f"valid are at most {MOST_PHASES}"
            )
        # Without a convolution for each phase, the bias is added at last: all phases have it.
        inner = bias if len(order) == phase_count else None
        convolutions = [
            self._part(x, weight, inner, a, b, rows.steps, columns.steps) for a, b in pairs
        ]
        if convolutions:
            out = self._between(x, weight, convolutions, order, rows, columns)
        else:  # the output has no elements but those that no tap reaches
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
        """The phases of one pair of windows, as the result of one convolution:
        (N, groups * phases * O / groups, height, width)."""
        if (rows.size, columns.size) != x.shape[2:]:
            starts = (0, 0, rows.start, columns.start)
            sizes = (*x.shape[:2], rows.size, columns.size)
            x = self.apply(ops.Slice(starts, sizes, (1, 1, 1, 1)), x)
        channels, per_group, *kernel = weight.shape
        split = (self.groups, channels // self.groups, per_group)
        row_phases, column_phases = len(rows.phases), len(columns.phases)
        tap_indices = [tuple(k for taps in window.taps for k in taps) for window in (rows, columns)]
        chosen_taps = weight
        if tap_indices != [tuple(range(size)) for size in kernel]:
            chosen_taps = self.apply(ops.Take((None, None, *tap_indices)), weight)
        kernel_rows, kernel_columns = len(rows.taps[0]), len(columns.taps[0])
        chosen_taps = self.view(
            chosen_taps, (*split, row_phases, kernel_rows, column_phases, kernel_columns)
        )
        by_output = self.apply(ops.Transpose((0, 3, 5, 2, 1, 4, 6)), chosen_taps)
        outputs = self.groups * row_phases * column_phases * per_group
        kernels = self.view(by_output, (outputs, split[1], kernel_rows, kernel_columns))
        if bias is not None:
            repeated = self.view(bias, (self.groups, 1, per_group))
            repeated = self.apply(
                ops.Expand((self.groups, row_phases * column_phases, per_group)), repeated
            )
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
        convolutions: list[Value],
        order: list[Pair],
        rows: _Axis,
        columns: _Axis,
    ) -> Value:
        """Interleaves the phases, and cuts the result to the size of the output."""
        batch, groups, per_group = x.shape[0], self.groups, weight.shape[1]
        size = (rows.steps, columns.steps)
        phases = convolutions[0]
        if len(convolutions) > 1:
            if groups > 1:
                by_group = [
                    (batch, groups, part.shape[1] // groups, *size) for part in convolutions
                ]
                convolutions = [
                    self.view(part, grouped_shape)
                    for part, grouped_shape in zip(convolutions, by_group, strict=True)
                ]
            phases = self.apply(ops.Concat(1 if groups == 1 else 2), *convolutions)
        all_phases = [(r, c) for r in range(rows.stride) for c in range(columns.stride)]
        if order != all_phases:
            positions = {phase: position for position, phase in enumerate(order)}
            phases = self.view(phases, (batch, groups, len(order), per_group, *size))
            channels = tuple(positions.get(phase, -1) for phase in all_phases)
            phases = self.apply(ops.Take((None, None, channels, None, None, None)), phases)
        if len(all_phases) > 1:
            split = (batch, groups, rows.stride, columns.stride, per_group, *size)
            phases = self.apply(ops.Transpose((0, 1, 4, 5, 2, 6, 3)), self.view(phases, split))
        interleaved = (rows.steps * rows.stride, columns.steps * columns.stride)
        out = self.view(phases, (batch, groups * per_group, *interleaved))
        starts, sizes = (0, 0, rows.first, columns.first), (*out.shape[:2], rows.size, columns.size)
        return out if sizes == out.shape else self.apply(ops.Slice(starts, sizes, (1,) * 4), out)
