"""Describing a graph: :class:`Graph` collects tensors and operations.

::

    g = Graph()
    x, w, b, z = g.tensors(x_array, w_array, b_array, z_array)
    y = g.relu(g.convolution(x, w, padding=1) + b + z)
    plan = g.build()
    y_array = plan(x_array, w_array, b_array, z_array)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minidnn.cudnn.arrays import overlaps, packed_strides
from minidnn.cudnn.dtypes import element_type
from minidnn.cudnn.graph import arrays, device, planner
from minidnn.cudnn.graph.device import Target
from minidnn.cudnn.graph.engines import EngineConfig
from minidnn.cudnn.graph.operations import Operations
from minidnn.cudnn.graph.plan import Plan
from minidnn.cudnn.graph.spec import ALIGNMENT, Constraints, GraphSpec, TensorSpec, constraints_from
from minidnn.cudnn.graph.tensor import Tensor, check_shape, layout_strides, per_axis
from minidnn.errors import GraphError


class Graph(Operations):
    """An operation graph under construction; see :class:`.Operations` for what it can compute."""

    def tensor(
        self,
        shape: Any,
        dtype: str | None = None,
        *,
        layout: str | None = None,
        strides: Sequence[int] | None = None,
        alignment: int | None = None,
        name: str | None = None,
    ) -> Tensor:
        """Declares an input; a plan takes its arrays in the order of declaration.

        Args:
            shape: sizes in NCHW order, or an array (CuPy or PyTorch) whose shape, dtype, strides
                and alignment are taken.
            dtype: by name, such as ``"float16"``.
            layout: ``"NCHW"`` (the default) or ``"NHWC"``, and their 3- and 5-dimensional forms.
            strides: in elements, instead of a layout.
            alignment: of the address in bytes, 16 unless the array has less.
            name: for messages.

        Raises:
            GraphError: an argument is not valid.
        """
        if arrays.is_array(shape):
            if dtype is not None or layout is not None or strides is not None:
                raise GraphError("tensor(array) takes dtype and strides from the array; give none")
            view = arrays.view(shape, name or f"t{len(self._tensors)}")
            sizes, dtype = check_shape(view.shape, "array of shape"), view.dtype
            steps = self._strides(sizes, None, view.strides)
            if alignment is None:
                alignment = min(ALIGNMENT, (view.pointer & -view.pointer) or ALIGNMENT)
        else:
            sizes = check_shape(shape, "shape")
            if dtype is None:
                raise GraphError(f"tensor({sizes}): dtype is missing, for example 'float16'")
            if layout is not None and strides is not None:
                raise GraphError(f"layout {layout!r} and strides {strides!r} exclude each other")
            steps = self._strides(sizes, layout, strides)
        size = element_type(dtype).size
        alignment = ALIGNMENT if alignment is None else alignment
        if alignment < size or alignment & (alignment - 1):
            raise GraphError(f"alignment {alignment} is not a power of 2 of at least {size} bytes")
        tensor = self._declare(TensorSpec(sizes, steps, dtype, alignment), name)
        self._inputs.append(tensor.index)
        return tensor

    def tensors(self, *described: Any) -> tuple[Tensor, ...]:
        """Declares an input like each of the given arrays."""
        return tuple(self.tensor(array) for array in described)

    def output(
        self,
        tensor: Tensor,
        dtype: str | None = None,
        *,
        layout: str | None = None,
        strides: Sequence[int] | None = None,
        alignment: int | None = None,
        like: Any = None,
    ) -> Tensor:
        """Marks a result as an output, in this dtype, layout or strides (or those of an array).

        ``alignment``: of the address in bytes, 16 unless the array has less.

        Without any output marked, the results that nothing reads are the outputs.
        """
        self._own(tensor)
        if tensor.index in self._inputs or tensor.index in self._scalars:
            raise GraphError(f"output: {tensor} is an input of the graph, not a result")
        old = self._tensors[tensor.index]
        alignment = old.alignment if alignment is None else alignment
        if like is not None:
            view = arrays.view(like, "like")
            if view.shape != old.shape:
                raise GraphError(f"output: like has shape {view.shape}, the result {old.shape}")
            dtype, strides = view.dtype, view.strides
            alignment = min(ALIGNMENT, (view.pointer & -view.pointer) or ALIGNMENT)
        dtype = old.dtype if dtype is None else dtype
        element_type(dtype)
        steps = old.strides
        if layout is not None or strides is not None:
            steps = self._strides(old.shape, layout, strides)
        if overlaps(old.shape, steps):
            raise GraphError(f"output: elements overlap in memory (shape {old.shape}, {steps})")
        self._tensors[tensor.index] = TensorSpec(old.shape, steps, dtype, alignment)
        if tensor.index not in self._outputs:
            self._outputs.append(tensor.index)
        return tensor

    @staticmethod
    def _strides(
        shape: tuple[int, ...], layout: str | None, strides: Sequence[int] | None
    ) -> tuple[int, ...]:
        if strides is None:
            return packed_strides(shape) if layout is None else layout_strides(shape, layout)
        steps = per_axis(tuple(strides), len(shape), "strides", 0)
        if any(step == 0 for size, step in zip(shape, steps, strict=True) if size > 1):
            raise GraphError(f"strides {steps}: a stride of 0 is only valid where the size is 1")
        return steps

    def freeze(self) -> GraphSpec:
        """The graph as plain data; results that are not outputs become virtual."""
        if not self._nodes:
            raise GraphError("the graph has no operation")
        read = {i for node in self._nodes for i in node.reads}
        written = [i for node in self._nodes for i in node.writes]
        outputs = self._outputs or [i for i in written if i not in read]
        tensors = []
        for index, spec in enumerate(self._tensors):
            if index in written and index not in outputs:
                inner = element_type(spec.dtype).compute if spec.dtype != "bool" else "bool"
                spec = TensorSpec(spec.shape, spec.strides, inner, ALIGNMENT, virtual=True)
            tensors.append(spec)
        unused = [i for i in self._inputs if i not in read]
        if unused:
            names = ", ".join(str(Tensor(self, i)) for i in unused)
            raise GraphError(f"no operation reads {names}; declare only what the graph uses")
        return GraphSpec(
            tuple(tensors),
            tuple(self._nodes),
            tuple(self._inputs),
            tuple(outputs),
            tuple(i for i in self._scalars if i in read),
        )

    def build(
        self,
        *,
        choose: str | EngineConfig = "measure",
        constraints: Constraints | None = None,
        **constraint: Any,
    ) -> Plan:
        """Chooses an engine and builds its plan on the current device.

        Args:
            choose: ``"measure"`` times every candidate and remembers the result on disk,
                ``"heuristic"`` takes cuDNN's first proposal that works, and an
                :class:`.EngineConfig` is taken as it is.
            constraints: what engines may do, or its fields as keyword arguments
                (``tf32``, ``deterministic``, ``accuracy``, ``workspace_limit``).

        Raises:
            UnsupportedError: cuDNN has no engine for this graph under these constraints.
            OutOfMemoryError: there is not enough memory to measure, or for the workspace.
            GraphError: the graph or an argument is not valid.
            DeviceError: no GPU, CuPy or cuDNN.
        """
        wanted = constraints_from(constraints, constraint)
        spec = self.freeze()
        return planner.build(spec, wanted, choose, *self._run_time(spec))

    def plans(
        self,
        *,
        target: Target | None = None,
        defaults: bool = True,
        most: int | None = None,
        most_compiled: int | None = None,
        compiles: bool | None = None,
        constraints: Constraints | None = None,
        **constraint: Any,
    ) -> list[Plan]:
        """All plans that can be built, in cuDNN's order: those of heuristics A, B and fallback,
        and with ``defaults`` those of every engine with its default knobs.

        ``most`` limits how many of the proposals that may be used are tried, ``most_compiled`` how
        many of those that compile their kernels, which takes up to seconds; ``compiles`` selects
        those that do, or that do not.  ``target`` is the current device, or one that is only
        described (:func:`.described`).
        Raises as :meth:`build`, but an empty list is possible.
        """
        wanted = constraints_from(constraints, constraint)
        spec = self.freeze()
        scalars, names = self._run_time(spec)
        return planner.all_plans(
            spec,
            wanted,
            device.current() if target is None else target,
            defaults=defaults,
            most=most,
            most_compiled=most_compiled,
            compiles=compiles,
            scalars=scalars,
            names=names,
        )

    def _run_time(self, spec: GraphSpec) -> tuple[tuple[float, ...], tuple[str, ...]]:
        """The values of the constants, and the names of inputs and outputs."""
        scalars = tuple(self._scalars[i] for i in spec.scalars)
        names = tuple(self._names.get(i) or f"t{i}" for i in (*spec.inputs, *spec.outputs))
        return scalars, names
