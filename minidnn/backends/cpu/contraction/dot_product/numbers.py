"""The numbers that kernels of products read when they run, each by its name.

A kernel for planes of any size is printed once: for another size the same names have other numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..numbers import Number, Numbers
from ..problem import BlockedView
from .products import LINE

#: What a name stands for, as it follows from a scheme.
Table = Mapping[str, Callable[[Any], int]]

DOT_NUMBERS: Table = {
    # How work is shared out.
    "blocks": lambda s: s.blocks,
    "block_size": lambda s: s.block,
    "end_of_out": lambda s: s.problem.out[1 if s.by_columns else 0],
    "groups": lambda s: s.groups,
    "images": lambda s: s.images,
    "out_columns": lambda s: s.problem.out[1],
    "parts": lambda s: s.tile.groups,
    "wide": lambda s: s.tile.wide,
    # Inputs.
    "before_x": lambda s: s.problem.padding[1][0],
    "before_y": lambda s: s.problem.padding[0][0],
    "input_blocks": lambda s: -(-s.problem.inputs // s.lanes),
    "inputs": lambda s: s.problem.inputs,
    "size_x": lambda s: s.problem.size[1],
    "size_y": lambda s: s.problem.size[0],
    "stride_x": lambda s: s.problem.stride[1],
    "x_column": lambda s: s.problem.source.column,
    "x_image": lambda s: s.problem.source.image,
    "x_plane": lambda s: s.problem.source.plane,
    "x_row": lambda s: s.problem.source.row,
    # What is packed of them: numbers of the word's parts, but for those of bytes.
    "again_bytes": lambda s: s.line_bytes + s.fallback_bytes,
    "image_bytes": lambda s: s.image_bytes,
    "packed_bytes": lambda s: s.packed_bytes,
    "packed_column": lambda s: s.pixel_bytes // s.word.item_bytes,
    "packed_plane": lambda s: s.plane_bytes // s.word.item_bytes,
    "packed_rows": lambda s: s.packed_rows,
    "packed_width": lambda s: s.packed_width,
    "phase": lambda s: s.phase,
    "row_stride": lambda s: s.row_stride,
    "rows_apart": lambda s: s.problem.stride[0] if s.reads_all else 1,
    "run": lambda s: s.run_bytes // s.word.item_bytes,
    # Products.
    "blocks_of_terms": lambda s: s.blocks_of_terms,
    "flat_width": lambda s: s.flat_width,
    "group_outputs": lambda s: s.outputs,
    "next": lambda s: s.next,
    "outputs": lambda s: s.outputs,
    "slots": lambda s: s.slots,
    "taps": lambda s: s.taps,
    "weight_bytes": lambda s: LINE * s.taps * s.blocks_of_terms,
    # Those of groups by themselves.
    "exact_outputs": lambda s: s.outputs // s.merged,
    "exact_terms": lambda s: s.fallback_terms,
    "merged": lambda s: s.merged,
    "pixel_step": lambda s: s.step // s.word.item_bytes,
}


class SchemeNumbers(Numbers):
    """Numbers that follow from a scheme by a table, where they are not given: those of the results
    ``y`` and further tensors ``z0``, ``z1`` by their views; and ``zero``, what stands for 0."""

    def __init__(self, scheme: Any, table: Table, zero: int = 0) -> None:
        super().__init__()
        self._scheme, self._table, self._zero = scheme, table, zero

    def __call__(self, name: str, value: Number | None = None) -> str:
        return super().__call__(name, self.of(name) if value is None else value)

    def of(self, name: str) -> int:
        """What a name stands for."""
        if (found := self._table.get(name)) is not None:
            return found(self._scheme)
        if name == "zero":
            return self._zero
        tensor, _, what = name.partition("_")
        problem = self._scheme.problem
        view: BlockedView = problem.result if tensor == "y" else problem.others[int(tensor[1:])]
        number: int = getattr(view, what)
        return number
