"""The executable of a network with named sizes.

It caches programs for single sizes.  Until a background thread has made the program for a new size,
other programs compute a batch in parts, or shape-generic kernels compute it.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from minidnn._forks import ForkLock
from minidnn.compiled_file import check_path
from minidnn.dynamic.batches import BatchSplit, BatchSplitter
from minidnn.dynamic.dim import Dim, bound, check_inputs, sizes_of, templates_of, written_inputs
from minidnn.dynamic.kept import (
    Background,
    CachedProgram,
    Key,
    ProgramCache,
    SizeCounts,
    doubles,
    table_of,
    why_not_stored,
    write_programs,
)
from minidnn.dynamic.source import NetworkSource, ResizedPrograms, check_same, checksums
from minidnn.dynamic.split import run_in_parts, shape_of, with_rows, without_rows
from minidnn.errors import GraphError, UnsupportedError
from minidnn.executable import Executable
from minidnn.graph.ir import Graph
from minidnn.preparation import Preparation, check_takes, metadata_of
from minidnn.runtime.interface import interface_of
from minidnn.runtime.store import Store
from minidnn.sizes.sized_graph import SizedGraph

__all__ = ["DynamicExecutable", "SizeCounts"]

log = logging.getLogger(__name__)

_FEW_PARTS = 3
"""If a batch has more parts, a program for larger parts is made in the background."""

_MOST_PARTS = 512
"""If a batch has more parts, a program for at least half of it is made at once."""


class DynamicExecutable:
    """A network compiled for a device and for all sizes in the ranges of its :class:`minidnn.Dim`,
    as :func:`minidnn.compile` makes it.

    It is called like an :class:`minidnn.executable.Executable`, with arrays of any of these sizes,
    and keeps a bounded number of programs, each for one size.  A batch whose rows are independent
    of each other and for which there is no program yet is computed in parts, by those that there
    are, until its own program has been made in the background.  Any other new size is computed by
    kernels that know no sizes until then, if the device has such, and else compiled by its first
    call.

    >>> exe = md.compile(net, (md.Dim("batch", 1, 64), 3, 32, 32), device="reference")
    >>> y = exe(x)
    >>> print(exe.explain())
    """

    def __init__(
        self,
        source: NetworkSource,
        dims: Sequence[Dim],
        *,
        keep: int,
        keep_bytes: int | None,
        background: bool,
    ) -> None:
        self.dims = tuple(dims)
        self.background = background
        self._source = source
        self._names = [dim.name for dim in self.dims]
        self._kept = ProgramCache(keep, keep_bytes)
        self._lock = ForkLock()  # of the cache; held shortly, never while a program is made
        #: Held while a program is compiled.
        self._making = ForkLock(reentrant=True)
        #: Held while a program with shape-generic kernels is made, which waits for no compiler.
        self._making_generic = ForkLock(reentrant=True)
        self._background = Background("minidnn-sizes")
        self._compiled = 0
        self._parts_runs = 0
        self._generic_runs = 0
        #: The program for arrays of these shapes, so that a second call finds it at once.
        self._ready: dict[Any, CachedProgram] = {}
        #: Sizes for which programs were requested for parts of batches.
        self._rungs: set[Key] = set()
        #: Sizes whose program could not be made in the background, and why.
        self._failed: dict[Key, str] = {}
        #: Graphs by size, kept until the first program is made.
        self._traces: dict[Key, Graph] = {}
        least = tuple(dim.least for dim in self.dims)
        most = tuple(dim.most for dim in self.dims)
        small = self._traces[least] = self._traced(least)
        large = self._traces[most] = self._traced(most)
        interface = interface_of(small)
        self.name = interface.name
        self.inputs = interface.inputs
        self.output_names = interface.output_names
        self.templates = templates_of(source.shapes, self.inputs, interface_of(large).inputs)
        later = checksums(large)
        #: Checksums of the constants that are the same for the least and the most sizes.
        self._weights = {n: sum for n, sum in checksums(small).items() if later.get(n) == sum}
        self._batches = BatchSplitter(self.dims, self.templates, source.is_code, self._traced)
        # There may be sizes that cannot be computed in parts.
        is_more_than_batches = self.why_not_parts is not None or len(self.dims) > 1
        self._any_size = (
            self.background and is_more_than_batches and source.compile_any_size(small) is not None
        )
        self._alike = ResizedPrograms(self._traced, self._executable_of_any_size, self._shapes_of)
        if self._any_size:
            halfway = tuple(dim.halfway for dim in self.dims)
            self._alike.find(most, halfway, source.asks_each)
        first = self._made(least, source.tunes, "compiled at first", self._any_size)
        self._traces.clear()
        if self.why_not_parts is None:
            self._kept.base = least
        self.device = first.executable.device
        self.precision = first.executable.precision
        #: Where the graph's states live; None if it has none.
        self.store: Store | None = first.executable.store

    def __repr__(self) -> str:
        inputs = written_inputs(self.inputs, self.templates)
        dims = ", ".join(map(str, self.dims))
        return (
            f"<DynamicExecutable of {self.name} on {self.device} in {self.precision}: {inputs}; "
            f"{dims}>"
        )

    def __call__(self, *inputs: Any, out: Any = None, **named: Any) -> Any:
        """Computes the outputs for inputs of any sizes in range, as an Executable does it.

        GraphError if something does not fit.
        """
        given = self.ordered(inputs, named)
        shapes = tuple([shape_of(array) for array in given])
        program = self._ready.get(shapes)
        if program is None:
            return self._found(given, shapes, out)
        program.calls += 1
        return program.executable(*given, out=out)

    def _found(self, given: Sequence[Any], shapes: Any, out: Any) -> Any:
        """Computes a call for shapes that are not in ``_ready``."""
        if self._batches.has_no_rows(shapes):
            return self._without_rows(given, shapes, out)
        sizes = sizes_of(self.inputs, self.templates, shapes)
        key = tuple(sizes[name] for name in self._names)
        with self._lock:
            program = self._kept.find(key)
            if program is None:
                self._kept.ask(key)
        if program is None and self.background:
            split = self._in_parts(key)
            if split is not None:
                self._queue_programs(key, len(split.parts))
                executables = [each.executable for each in split.programs]
                rows = key[self._batches.index]
                return run_in_parts(split.parts, executables, split.wise, rows, given, out)
        if program is None:
            if self._any_size:
                program = self._made_generic(key)
            else:
                program = self._made_now(key, self._source.tunes and not self.background)
            if self._source.tunes and self.background:
                self._background.do(("tune", key), lambda: self._tune(key))
        if program.any_size:
            return self._run_generic(key, program, given, out)
        with self._lock:
            if self._kept.find(key) is program:
                if len(self._ready) >= 4 * self._kept.most:
                    self._ready.clear()
                self._ready[shapes] = program
        program.calls += 1
        return program.executable(*given, out=out)

    def _without_rows(self, given: Sequence[Any], shapes: Any, out: Any) -> Any:
        batch = self.dims[self._batches.index]
        shapes_of_least = with_rows(
            batch.least, shapes, [template[0] == batch for template in self.templates]
        )
        key = self._key("a call", sizes_of(self.inputs, self.templates, shapes_of_least))
        wise = self._batches.row_wise(key)
        if isinstance(wise, str):
            raise GraphError(f"{batch.name!r} is 0; valid are {batch.valid}, as {wise}")
        return without_rows(self._made_now(key, tunes=False).executable, wise, given, out)

    def _run_generic(self, key: Key, program: CachedProgram, given: Sequence[Any], out: Any) -> Any:
        """Runs a program with shape-generic kernels; a second call for the size has the size's own
        program made in the background."""
        with self._lock:
            wanted = key not in self._failed and self._kept.deserves(key)
            self._generic_runs += 1
            program.calls += 1
        if wanted:
            self._background.do(key, lambda: self._compile_deserved(key))
        return program.executable(*given, out=out)

    @property
    def source(self) -> SizedGraph:
        """The graph for all sizes, before passes; GraphError if anything but integers depends on
        sizes."""
        shapes, trace = self._source.shapes, self._source.trace
        return SizedGraph.traced(lambda sizes: trace(bound(shapes, sizes)), self.dims)

    def warm(self, sizes: Sequence[Mapping[str, int] | int]) -> None:
        """Makes the programs for these sizes now.

        Args:
            sizes: a dict of sizes by name for each; of one named size alone a number will do.

        Raises:
            GraphError: a size is not in its range, or there are more than are kept.

        >>> exe.warm([1, 8, 64])
        """
        if isinstance(sizes, (str, Mapping)) or not isinstance(sizes, Sequence):
            raise GraphError(
                f"warm: sizes={sizes!r:.80} is a {type(sizes).__name__}; valid is a list with a "
                "dict of sizes by name for each program"
            )
        keys = list(dict.fromkeys(self._key("warm", each) for each in sizes))
        most = self._kept.most - (self._kept.base is not None and self._kept.base not in keys)
        if len(keys) > most:
            raise GraphError(
                f"warm: {len(keys)} sizes, of which keep={self._kept.most} allows {most}; valid "
                "are fewer sizes, or a larger keep"
            )
        for key in keys:
            self._made_now(key, self._source.tunes)

    def at(self, **sizes: int) -> Executable:
        """The executable for one size: it can be saved, profiled and bound, and stays as it is.

        GraphError if the sizes are not one for each name, in its range.

        >>> exe.at(batch=8).save("net.mdx")
        """
        return self._made_now(self._key("at", sizes), self._source.tunes).executable

    def save(self, path: str | os.PathLike[str], *, preparation: Preparation | None = None) -> None:
        """Writes programs that compute all batches in the range to a file, as
        :meth:`minidnn.executable.Executable.save` writes one: :func:`minidnn.load` gives what is
        called with any batch, without a compiler.

        The file has programs for few sizes, the least and its doubles, which compute other batches
        in parts; what they have in common stands there once.

        Args:
            path: usually with the ending .mdx; is replaced when it exists.
            preparation: how pictures are prepared for it, which ``load_preparation`` gives back.

        Raises:
            GraphError: an argument is not valid.
            UnsupportedError: rows are not independent, sizes other than the batch's vary, or a
                program cannot be saved.
            CompileError: the cache has its code no longer.
            OSError: the file cannot be written.

        >>> exe.save("net.mdx")
        """
        check_path(path)
        metadata = metadata_of(preparation)
        check_takes(preparation, self.name, self.templates)
        if (reason := why_not_stored(self.dims, self.why_not_parts)) is not None:
            raise UnsupportedError(f"{self!r} {reason}")
        batch, key = self.dims[self._batches.index], tuple(dim.least for dim in self.dims)
        keys = [self._batches.of(key, rows) for rows in doubles(batch)]
        programs = [self._made_now(each, self._source.tunes) for each in keys]
        wise = self._batches.row_wise(key)
        assert not isinstance(wise, str)
        write_programs(path, batch, wise, programs, metadata)

    def ready(self, shapes: tuple[tuple[int, ...], ...]) -> CachedProgram | None:
        """The program for arrays of these shapes, if there is one and it was called before.

        A caller that runs the program itself counts that: ``program.calls += 1``.
        """
        return self._ready.get(shapes)

    def wait(self) -> None:
        """Waits until no program is left to be made in the background."""
        self._background.wait()

    @property
    def counts(self) -> SizeCounts:
        """Counts of what it has done, and of what it keeps."""
        with self._lock:
            kept = self._kept
            return SizeCounts(
                len(kept),
                self._compiled,
                kept.dropped,
                self._parts_runs,
                self._generic_runs,
                kept.run_bytes,
                kept.weight_bytes,
            )

    def random_inputs(self, **sizes: int) -> list[np.ndarray]:
        """Random inputs of these sizes, always the same; the least for names that are left out."""
        asked = {dim.name: dim.least for dim in self.dims} | sizes
        key = self._key("random_inputs", asked)
        graph = self._traced(key)
        return self._kept_any().random_arrays([value.shape for value in graph.inputs])

    def explain(self) -> str:
        """The programs that are kept, with their sizes and calls, how other sizes are computed, and
        the explanation of the program that is used most."""
        with self._lock:
            entries = list(self._kept)
        counts = self.counts
        lines = [
            repr(self)[1:-1],
            f"{counts.kept} programs of at most {self._kept.most}, {counts.compiled} compiled, "
            f"{counts.dropped} dropped; memory of runs {counts.run_bytes / 1e6:.2f} MB, packed "
            f"weights {counts.weight_bytes / 1e6:.2f} MB",
            *table_of(entries, self._names),
            self._explained_parts(),
        ]
        if self._any_size:
            lines.append(f"{self._generic_runs} calls were computed by kernels of any size")
        for key, reason in self._failed.items():
            lines.append(f"note: sizes {key}: {reason}")
        most = max((entry for _, entry in entries), key=lambda each: each.calls + each.in_parts)
        return "\n".join([*lines, "", most.executable.explain()])

    def _explained_parts(self) -> str:
        if self.why_not_parts is not None:
            return f"batches are not computed in parts: {self.why_not_parts}"
        if not self.background:
            return "batches are not computed in parts: background=False"
        return f"{self._parts_runs} calls of batches without a program were computed in parts"

    # Sizes

    def _key(self, what: str, sizes: Mapping[str, int] | int) -> Key:
        """The sizes in order, checked for the call ``what``."""
        if not isinstance(sizes, Mapping):
            if len(self._names) != 1:
                raise GraphError(
                    f"{what}: {sizes!r:.80}; valid is a dict with the sizes of {self._names}"
                )
            sizes = {self._names[0]: sizes}
        checked = check_inputs(self.dims, sizes, what)
        return tuple(checked[name] for name in self._names)

    def ordered(self, given: Sequence[Any], named: Mapping[str, Any]) -> Sequence[Any]:
        if not named and len(given) == len(self.inputs):
            return given
        return self._kept_any().ordered(given, named)

    def _kept_any(self) -> Executable:
        with self._lock:
            (_, program), *_ = self._kept
        return program.executable

    # Programs

    def _traced(self, key: Key) -> Graph:
        if (known := self._traces.get(key)) is not None:
            return known
        sizes = dict(zip(self._names, key, strict=True))
        return self._source.trace(bound(self._source.shapes, sizes))

    def _made_now(self, key: Key, tunes: bool) -> CachedProgram:
        """The program for these sizes alone, which is compiled if there is none."""
        with self._making:
            with self._lock:
                program = self._kept.find(key)
            if program is not None and not program.any_size:
                return program
            return self._made(key, tunes, "compiled when asked for")

    def _made_generic(self, key: Key) -> CachedProgram:
        """The program for these sizes; if there is none, one with shape-generic kernels is made."""
        with self._making_generic:
            with self._lock:
                program = self._kept.find(key)
            return program or self._made(key, False, "kernels of any size", any_size=True)

    def _queue_programs(self, key: Key, parts: int) -> None:
        """Queues the program for these sizes if they are requested often enough; and, if this batch
        has many parts, the program for larger parts, once."""
        rung = self._batches.rung(key)
        with self._lock:
            wanted = key not in self._failed and self._kept.deserves(key)
            climbs = parts > _FEW_PARTS and rung not in self._rungs
            if climbs and len(self._rungs) < _MOST_PARTS:
                self._rungs.add(rung)
        if climbs:
            self._background.do(rung, lambda: self._compile_rung(rung))
        if wanted:
            self._background.do(key, lambda: self._compile_deserved(key))

    def _compile_rung(self, key: Key) -> None:
        """Compiles a program for parts of batches, unless there is one; a background job."""
        with self._lock:
            is_there = self._kept.find(key) is not None
        if not is_there:
            self._beside(key, "compiled in the background, for parts")

    def _compile_deserved(self, key: Key) -> None:
        """Compiles the program for these sizes if they still deserve one; a background job."""
        with self._lock:
            wanted = self._kept.deserves(key)
        if wanted:
            self._beside(key, "compiled in the background")

    def _tune(self, key: Key) -> None:
        """Compiles the program for these sizes again, with tuning; a background job."""
        with self._lock:
            wanted = self._kept.find(key) is not None
        if wanted:
            self._beside(key, "tuned in the background")

    def _beside(self, key: Key, how: str) -> None:
        """Compiles a program in the background thread; an error is logged and noted."""
        try:
            with self._making:
                self._made(key, self._source.tunes, how)
        except Exception as error:  # whatever it is, calls go on with other programs
            log.warning("%s: no program for sizes %s: %s", self.name, key, error)
            with self._lock:
                if len(self._failed) < self._kept.most:
                    self._failed[key] = f"{type(error).__name__}: {error}"

    def _made(self, key: Key, tunes: bool, how: str, any_size: bool = False) -> CachedProgram:
        """Compiles a program and adds it to the cache; ``how`` is why, for :meth:`explain`."""
        start = time.perf_counter()
        executable = self._alike.of(key) if any_size else None
        if executable is None:
            graph = self._traced(key)
            check_same(self._weights, checksums(graph))
            if any_size:
                executable = self._executable_of_any_size(graph)
            else:
                executable = self._source.compile(graph, tunes)
        program = CachedProgram(executable, how, any_size)
        seconds = time.perf_counter() - start
        log.info("%s: compiled for sizes %s in %.2f s", self.name, key, seconds)
        with self._lock:
            self._kept.add(key, program)
            self._compiled += 1
            self._ready.clear()
            self._batches.forget_parts()
        return program

    def _executable_of_any_size(self, graph: Graph) -> Executable:
        """The executable of a graph, with shape-generic kernels if there are any."""
        compile_generic = self._source.compile_any_size(graph)
        return self._source.compile(graph, False) if compile_generic is None else compile_generic()

    def _shapes_of(self, key: Key) -> list[tuple[int, ...]]:
        """The shapes of the inputs for these sizes."""
        sizes = dict(zip(self._names, key, strict=True))
        return [bound(template, sizes) for template in self.templates]

    # Parts

    @property
    def why_not_parts(self) -> str | None:
        """Why batches are not computed in parts; None if they can be."""
        return self._batches.why_not

    def _in_parts(self, key: Key) -> BatchSplit | None:
        """The split of a batch into parts for the programs in the cache; None if there is none."""
        split = self._batches.split(key, self._programs())
        if split is not None and len(split.parts) > _MOST_PARTS:
            self._made_now(self._batches.half(key), tunes=False)
            split = self._batches.split(key, self._programs())
        if split is not None:
            with self._lock:
                self._parts_runs += 1
                for program in split.programs:
                    program.in_parts += 1
        return split

    def _programs(self) -> dict[Key, CachedProgram]:
        with self._lock:
            return dict(self._kept)
