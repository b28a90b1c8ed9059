"""The executable: a compiled network that is called with arrays."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from minidnn._habits import EXECUTABLE, absent, check_mode
from minidnn.errors import GraphError, UnsupportedError
from minidnn.graph.types import numpy_dtype
from minidnn.runtime.arrays import (
    Wrap,
    apart,
    checked,
    empty,
    from_bits,
    random_array,
    to_bits,
    to_numpy,
)
from minidnn.runtime.interface import Endpoint, Interface
from minidnn.runtime.program import (
    AddressedProgram,
    DeviceProgram,
    Program,
    StorableProgram,
    StoredProgram,
    StreamProgram,
)

# A process that loads compiled networks imports neither graphs nor reports, which take longest.
if TYPE_CHECKING:
    from minidnn.graph.ir import Graph
    from minidnn.preparation import Preparation
    from minidnn.report.explain import AutomaticPrecision, Profile
    from minidnn.runtime.plan import Plan
    from minidnn.runtime.store import Store

__all__ = ["Executable"]


class Executable:
    """A network compiled for a device and for one size of its inputs, as :func:`minidnn.compile`
    and :func:`minidnn.load` make it.

    Calling it computes. Inputs are NumPy arrays, PyTorch tensors or anything with ``__dlpack__``,
    in the order of the network's inputs or by their names; outputs are of the kind of the first
    input: one, a tuple, or a dict, as the network defines them. On a GPU, arrays lie there (NumPy's
    are copied), and work runs on the current stream of their library.

    >>> exe = md.compile(net, (2, 3, 32, 32))
    >>> y = exe(x)
    >>> print(exe.explain())
    """

    def __init__(
        self,
        interface: Interface,
        program: Program,
        device: str,
        precision: str,
        results: Sequence[str] | None = None,
        *,
        plan: Plan | None = None,
        source: Callable[[], Graph | None] | None = None,
        store: Store | None = None,
        explained: str = "",
    ) -> None:
        self.interface = interface
        self._plan = plan
        self._source = source
        #: The text of explain() if there is no plan, as for a loaded network.
        self._explained = explained
        self.program = program
        self.device = device
        #: The precision that it computes in; "int8" for a quantized network.
        self.precision = precision
        #: With ``precision="auto"``: the errors and times of all precisions; else None.
        self.automatic_precision: AutomaticPrecision | None = None
        #: The store of the graph's states; None if it has none.
        self.store = store
        #: The dtypes of results if they differ from those that the program computes; else None.
        self.result_dtypes = None if results is None else [numpy_dtype(each) for each in results]
        #: Whether the program takes bfloat16 as bits (uint16); NumPy's arrays of it are float32.
        self._takes_bits = isinstance(program, AddressedProgram) and any(
            value.dtype == "bfloat16" for value in (*interface.inputs, *interface.outputs)
        )
        # A check against a runtime protocol takes longer than a kernel launch.
        self._call = program.call if isinstance(program, DeviceProgram) else None

    def __repr__(self) -> str:
        return (
            f"<Executable of {self.interface.name} on {self.device} in {self.precision}: "
            f"{_types(self.interface.inputs)} -> {_types(self.interface.outputs)}>"
        )

    def __reduce__(self) -> Any:
        raise UnsupportedError(
            f"{self!r} can be neither pickled nor copied, as it holds compiled code and memory; "
            "compile the network where it is needed: a network can be pickled, "
            "minidnn.save_graph(network, path, shape) writes a file that minidnn.compile(path) "
            "takes, and on the CPU executable.save(path) one that minidnn.load(path) takes"
        )

    def eval(self) -> Self:
        """Returns the executable, which computes as for inference in any case."""
        return self

    def train(self, mode: bool = True) -> Self:
        """UnsupportedError: :class:`minidnn.Trainer` trains.  ``train(False)`` is :meth:`eval`."""
        check_mode(self, mode)
        return self

    if not TYPE_CHECKING:  # a type checker that saw this would accept any name

        def __getattr__(self, name: str) -> Any:
            """Raises AttributeError, which says for names of other libraries what to write."""
            absent(self, name, EXECUTABLE)

    @property
    def plan(self) -> Plan:
        """The optimized graph with its memory plan: layouts, views and offsets of all values.

        UnsupportedError for an executable that was loaded from a file, which has none.
        """
        if self._plan is None:
            raise UnsupportedError(
                f"{self!r} was loaded from a file, which keeps what is called and run, and "
                "explain()'s text; its plan and graph, the source that save_graph and save_onnx "
                "write, profile() and explain(measure=True) are had by compiling the network"
            )
        return self._plan

    @property
    def graph(self) -> Graph:
        """The optimized graph; UnsupportedError as for :attr:`plan`."""
        return self.plan.graph

    @property
    def source(self) -> Graph:
        """The graph that was compiled, before passes changed it.

        Its arrays are the network's, and can be read as long as the network lives and has the
        weights that were compiled.  GraphError if the graph itself was the network and is gone.
        """
        source = self._source if self.plan is not None else None
        graph = None if source is None else source()
        if graph is None:
            raise GraphError(
                f"{self!r} has no graph that could be saved: the one that was compiled is gone; "
                "valid is minidnn.save_graph(network, path, shape) with the network, or its graph"
            )
        return graph

    def save(self, path: str | os.PathLike[str], *, preparation: Preparation | None = None) -> None:
        """Writes the compiled network to a file that :func:`minidnn.load` takes, with its weights.

        To load it needs no compiler, but the same version of minidnn; on the CPU NumPy alone and a
        processor with the instruction set that it was compiled for, on a GPU CuPy, the same version
        of cuDNN and a GPU of the same model.  The file appears complete or not at all.  It holds
        native code: whoever loads it trusts it.

        Args:
            path: usually with the ending .mdx; is replaced when it exists.
            preparation: how pictures are prepared for it, which ``load_preparation`` gives back.

        Raises:
            GraphError: an argument is not valid.
            UnsupportedError: the device cannot do it, or the network was compiled to be debugged.
            CompileError: the cache has its code no longer.
            OSError: the file cannot be written.
        """
        from minidnn.compiled_file import check_path, write_compiled
        from minidnn.preparation import check_takes, metadata_of

        check_path(path)
        metadata = metadata_of(preparation)
        shapes = [each.shape for each in self.interface.inputs]
        check_takes(preparation, self.interface.name, shapes)
        stored, network = self.stored()
        write_compiled(path, self.device, stored, {**network, "preparation": metadata})

    def stored(self) -> tuple[StoredProgram, dict[str, Any]]:
        """The program as a file has it, and the file's description of the network; raises what
        :meth:`save` raises."""
        if not isinstance(self.program, StorableProgram):
            raise UnsupportedError(
                f"{self!r} cannot be saved compiled: devices 'cpu' and 'cuda' can, when they have "
                "compiled the network themselves; minidnn.save_graph(network, path, shape) saves "
                "what every device compiles, and a file that was loaded can be copied"
            )
        results = self.result_dtypes
        return self.program.stored(), {
            "name": self.interface.name,
            "inputs": [_stored(value) for value in self.interface.inputs],
            "outputs": [_stored(value) for value in self.interface.outputs],
            "output_names": self.interface.output_names,
            "precision": self.precision,
            "results": None if results is None else [str(each) for each in results],
            "explained": self.explain(),
        }

    @property
    def addressed(self) -> AddressedProgram | None:
        """The program, if it can be run on memory of the CPU by address, without arrays."""
        program = self.program
        if isinstance(program, AddressedProgram) and self.result_dtypes is None:
            return program if program.takes_addresses else None
        return None

    @property
    def on_streams(self) -> StreamProgram | None:
        """The program, if it can be run on its device's memory by address, without arrays."""
        program = self.program
        return program if isinstance(program, StreamProgram) else None

    def __call__(self, *inputs: Any, out: Any = None, **named: Any) -> Any:
        """Computes the outputs for inputs of the compiled shapes.

        Results are fresh arrays unless ``out`` gives contiguous NumPy arrays to write to (one,
        or as many as there are outputs).  GraphError if something does not fit.
        """
        if self._call is not None:
            results = self._call(self.ordered(inputs, named), out)
            return out if out is not None else self.packed(results)
        arrays, wrap = self._inputs(inputs, named)
        outputs = self.outputs_for(out)
        if out is not None:
            arrays = [apart(array, outputs) for array in arrays]
        if self.result_dtypes is None and not self._takes_bits:
            self.program.run(arrays, outputs)
        else:
            self._run_converting(arrays, outputs)
        if out is not None:
            return out
        return self.packed([wrap(array) for array in outputs])

    def _run_converting(self, arrays: list[np.ndarray], outputs: list[np.ndarray]) -> None:
        """Runs the program, and converts its results to the dtypes of the network's outputs."""
        computed = self._computed()
        self.program.run(arrays, computed)
        every = zip(self.interface.outputs, computed, outputs, strict=True)
        with np.errstate(over="ignore"):  # numbers beyond float16's range become infinite
            for value, result, output in every:
                output[...] = from_bits(result, value.dtype) if self._takes_bits else result

    def _computed(self) -> list[np.ndarray]:
        """Allocates arrays for the program's outputs, in the dtypes that it computes."""
        bits = np.dtype(np.uint16)
        return [
            empty(v.shape, bits if self._takes_bits and v.dtype == "bfloat16" else self._dtype(v))
            for v in self.interface.outputs
        ]

    def bind(self, *inputs: Any, out: Any = None, **named: Any) -> Any:
        """Returns a function without arguments that computes from these very arrays, into ``out``
        or arrays of its own: a call checks, copies and allocates nothing.  Its ``outputs`` are
        the arrays that it writes.

        UnsupportedError if the device cannot bind arrays, GraphError if something does not fit.
        """
        if not isinstance(self.program, DeviceProgram):
            raise UnsupportedError(f"device {self.device!r} does not bind arrays; 'cuda' does")
        return self.program.bind(self.ordered(inputs, named), out)

    def packed(self, results: Sequence[Any]) -> Any:
        """Results as the network defines them: one, a tuple, or a dict."""
        if self.interface.output_names is not None:
            return dict(zip(self.interface.output_names, results, strict=True))
        return results[0] if len(results) == 1 else tuple(results)

    def explain(self, measure: bool = False) -> str:
        """Describes what each region computes, from which layers, and its predicted cost.

        ``measure`` shows times that :meth:`profile` measures on random inputs instead.
        """
        if self._plan is None and not measure:
            return self._explained
        from minidnn.report.explain import explain

        measured = str(self.profile(*self.random_inputs())) if measure else None
        dtypes = sorted({str(dtype) for dtype in self.result_dtypes or ()} - {"float32"})
        note = f" (results in {' and '.join(dtypes)})" if dtypes else ""
        chosen = self.automatic_precision
        return explain(self.plan, self.device, self.precision + note, measured, chosen)

    def profile(self, *inputs: Any, runs: int = 9, **named: Any) -> Profile:
        """Measures the time of each region against the machine's roofline, over several runs on
        inputs as of a call, which leave states unchanged.

        UnsupportedError if the device does not time regions.
        """
        from minidnn.report.explain import profile

        plan = self.plan
        if isinstance(self.program, DeviceProgram):
            arrays, outputs = list(self.ordered(inputs, named)), []
        else:
            arrays, outputs = self._inputs(inputs, named)[0], self._computed()
        updated = [state.name for state in plan.graph.updates]
        with self.store.unchanged(updated) if self.store is not None else nullcontext():
            return profile(plan, self.program, self.device, arrays, outputs, runs)

    def random_inputs(self) -> list[np.ndarray]:
        """Random inputs of the right shapes and dtypes, always the same."""
        return self.random_arrays([value.shape for value in self.interface.inputs])

    def random_arrays(self, shapes: Sequence[tuple[int, ...]]) -> list[np.ndarray]:
        """Random inputs of the right dtypes, but of these shapes, always the same."""
        random = np.random.default_rng(0)
        dtypes = map(self._dtype, self.interface.inputs)
        return [random_array(random, *each) for each in zip(shapes, dtypes, strict=True)]

    def _dtype(self, value: Endpoint) -> np.dtype:
        """The dtype of an input or output as NumPy's arrays have it."""
        if self.precision == "float64" and "float" in value.dtype:
            return np.dtype(np.float64)
        return numpy_dtype(value.dtype)

    def _inputs(
        self, given: Sequence[Any], named: Mapping[str, Any]
    ) -> tuple[list[np.ndarray], Wrap]:
        """The inputs as checked NumPy arrays, and a function that makes results of the kind of the
        first input."""
        arrays: list[np.ndarray] = []
        wraps: list[Wrap] = []
        ordered = self.ordered(given, named)
        for value, array in zip(self.interface.inputs, ordered, strict=True):
            view, wrap = to_numpy(f"input {value.name!r}", array)
            fitting = checked(f"input {value.name!r}", view, value.shape, self._dtype(value))
            arrays.append(to_bits(fitting, value.dtype) if self._takes_bits else fitting)
            wraps.append(wrap)
        return arrays, wraps[0] if wraps else lambda result: result

    def ordered(self, given: Sequence[Any], named: Mapping[str, Any]) -> Sequence[Any]:
        """The inputs in order, whether they were given by position or by name."""
        return self.interface.ordered(given, named)

    def outputs_for(
        self, out: Any, shapes: Sequence[tuple[int, ...]] | None = None
    ) -> list[np.ndarray]:
        """The arrays that results are written to: those of ``out``, or new ones.

        ``shapes``: the results' shapes, if not the network's own.  GraphError if an array does not
        fit.
        """
        values = self.interface.outputs
        dtypes = self.result_dtypes or [self._dtype(value) for value in values]
        if shapes is None:
            shapes = [value.shape for value in values]
        if out is None:
            return [empty(shape, dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]
        if not isinstance(out, (np.ndarray, list, tuple)):
            raise GraphError(
                f"out is a {type(out).__name__}; valid is a NumPy array, or a tuple or list of "
                f"them, in the order of the {len(values)} outputs"
            )
        given = [out] if isinstance(out, np.ndarray) else list(out)
        if len(given) != len(values):
            raise GraphError(f"out gives {len(given)} arrays; valid are {len(values)}")
        for i, (shape, dtype, array) in enumerate(zip(shapes, dtypes, given, strict=True)):
            if (
                not isinstance(array, np.ndarray)
                or array.shape != shape
                or array.dtype != dtype
                or not array.flags.c_contiguous
                or not array.flags.writeable
            ):
                described = type(array).__name__
                if isinstance(array, np.ndarray):
                    described = f"{array.dtype}{list(array.shape)}"
                    described += "" if array.flags.writeable else ", read-only"
                    described += "" if array.flags.c_contiguous else ", not C-contiguous"
                raise GraphError(
                    f"out[{i}] is {described}; valid is a writable, C-contiguous NumPy array "
                    f"{dtype}{list(shape)}"
                )
            for j, other in enumerate(given[:i]):
                if np.may_share_memory(array, other):
                    raise GraphError(
                        f"out[{j}] and out[{i}] share memory; valid are arrays that do not"
                    )
        return given


def results_of(executable: Executable, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Runs an executable on NumPy arrays; returns its outputs in their order."""
    outputs = executable(*inputs)
    if isinstance(outputs, dict):
        return list(outputs.values())
    return list(outputs) if isinstance(outputs, tuple) else [outputs]


def _stored(value: Endpoint) -> list[Any]:
    return [value.name, value.dtype, list(value.shape)]


def _types(values: Sequence[Endpoint]) -> str:
    return ", ".join(str(value.type) for value in values)
