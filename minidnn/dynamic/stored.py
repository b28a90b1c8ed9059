"""Programs for parts of batches in one file."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence

from minidnn.dynamic.dim import Dim
from minidnn.dynamic.kept import KeptProgram
from minidnn.dynamic.parts import RowWise

__all__ = ["doubles", "why_not_stored", "write_programs"]


def doubles(batch: Dim) -> Iterator[int]:
    """The rows of the programs that compute all batches of a range: the least, and its doubles."""
    rows = batch.least
    while rows <= batch.most:
        yield rows
        rows *= 2


def why_not_stored(dims: Sequence[Dim], why_not_parts: str | None) -> str | None:
    """Why no file of programs computes all sizes; None if one does."""
    reason = why_not_parts
    others = [dim.name for dim in dims if dim.least < dim.most]
    if reason is None and len(others) > 1:
        reason = f"sizes other than a batch vary: {', '.join(map(repr, others))}"
    if reason is None:
        return None
    sizes = ", ".join(f"{dim.name}={dim.most}" for dim in dims)
    return (
        f"cannot be saved compiled, as a file has programs that compute batches in parts, and "
        f"{reason}; valid is one size, as exe.at({sizes}).save(path), or "
        "minidnn.save_graph(exe, path)"
    )


def write_programs(
    path: str | os.PathLike[str],
    batch: Dim,
    wise: RowWise,
    programs: Sequence[KeptProgram],
    metadata: Mapping[str, str],
) -> None:
    """Writes programs of several batches to a file.

    Args:
        batch: the named size, with its range.
        wise: which inputs and outputs have rows.
        programs: in the order of :func:`doubles`.
        metadata: how pictures are prepared, as :func:`minidnn.preparation.metadata_of` says it.
    """
    from minidnn.compiled_file import write_batches

    entries = []
    for rows, program in zip(doubles(batch), programs, strict=True):
        stored, network = program.executable.stored()
        entries.append(({"rows": rows, "seconds": program.seconds, "network": network}, stored))
    described = {
        "batch": [batch.name, batch.least, batch.most, batch.multiple],
        "inputs": wise.inputs,
        "outputs": wise.outputs,
        "preparation": metadata,
    }
    write_batches(path, programs[0].executable.device, entries, described)
