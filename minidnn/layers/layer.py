"""The base class of layers.

A layer owns named parameters and other layers, which are found among its attributes.  Called on
symbolic values, it adds nodes to the graph that is being recorded; it never computes.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from minidnn._habits import LAYER, absent, check_mode
from minidnn.errors import GraphError, WeightsError, did_you_mean
from minidnn.graph.ir import Graph, Stored, Value
from minidnn.graph.trace import Trace, current_trace, is_tracing, tracing
from minidnn.graph.types import plain
from minidnn.layers.arguments import Declared, Shapes, named_types
from minidnn.layers.parameter import (
    Parameter,
    as_array,
    changes,
    check_picklable,
    misfit_of,
    set_state,
)
from minidnn.layers.state import LoadedState, load_state
from minidnn.layers.summary import Described, summary
from minidnn.layers.symbol import Symbol, call, results_of

__all__ = ["Layer"]

#: Types of most attributes, none of which holds layers: a fast path for :meth:`Layer.children`.
_PLAIN = frozenset({Parameter, int, float, bool, str, type(None)})


def taken_by(kind: type[Layer]) -> inspect.Signature:
    """The signature for making a layer of a class: that of its ``__init__`` without ``self``, or an
    empty one if no class defines ``__init__``."""
    if kind.__init__ is object.__init__:
        return inspect.Signature()
    signature = inspect.signature(kind.__init__)
    return signature.replace(parameters=list(signature.parameters.values())[1:])


class _Signature:
    """A descriptor that gives ``inspect.signature`` the arguments of a class of layers.

    Where a class inherits its ``__init__``, Python before 3.11.4 would give the signature of
    ``Layer.__new__``, which takes anything.  It is computed at each access, since decorators such
    as ``dataclass`` write an ``__init__`` after the class is made.
    """

    def __get__(self, layer: Layer | None, kind: type[Layer]) -> inspect.Signature:
        if layer is not None or kind.__new__ is not Layer.__new__:
            raise AttributeError("__signature__")  # Python finds it out for itself
        return taken_by(kind)


class Layer:
    """The base class of layers. A subclass defines ``forward`` on symbolic values, and takes in
    ``__init__`` whatever arguments and ``options`` it likes.

    Raises:
        TypeError: an option has a name that ``__init__`` does not take; it names what was meant.

    >>> class Residual(Layer):
    ...     def __init__(self, body):
    ...         self.body = body
    ...     def forward(self, x):
    ...         return x + self.body(x)
    """

    #: State-dict keys with these prefixes are ignored when they are loaded.
    ignored_prefixes: tuple[str, ...] = ()
    #: The attributes that :meth:`extra_repr` shows.
    _shown: ClassVar[tuple[str, ...]] = ()
    #: Whether training leaves the layer as it is; see :meth:`freeze`.
    frozen: bool = False

    def __setattr__(self, name: str, value: Any) -> None:
        """Sets an attribute; an array given for a parameter becomes its numbers."""
        held = self.__dict__.get(name)
        if isinstance(held, Parameter) and value is not None and not isinstance(value, Parameter):
            self._assign(name, held, value)
        else:
            super().__setattr__(name, value)
            changes.count += name == "frozen"

    def _assign(self, name: str, parameter: Parameter, value: Any) -> None:
        """Sets a parameter to an array; WeightsError if it does not fit."""
        array, problem = as_array(value)
        if array is not None:
            problem = misfit_of(array, parameter.type).format("the array")
        if array is None or problem:
            raise WeightsError(
                f"{type(self).__name__}.{name} = {type(value).__name__}: {problem}; valid is an "
                f"array of {parameter.type}, another Parameter, or None for no {name}"
            )
        parameter.assign(array)

    def __new__(cls, *args: Any, **options: Any) -> Self:
        """Refuses options that ``__init__`` does not take, with the name that was probably meant,
        and all arguments if no class has an ``__init__``."""
        if args or options:  # not when a layer is unpickled or copied
            known = taken_by(cls).parameters
            if cls.__init__ is object.__init__:
                raise TypeError(f"{cls.__name__}() takes no arguments, as it has no __init__")
            any_name = any(argument.kind is argument.VAR_KEYWORD for argument in known.values())
            for name in () if any_name else [o for o in options if o not in known]:
                raise TypeError(
                    f"{cls.__name__}() got an unexpected argument {name}={options[name]!r:.80}"
                    f"; valid are {', '.join(known) or 'none'}{did_you_mean(name, known)}"
                )
        return super().__new__(cls)

    #: The signature that ``help`` and editors show.
    __signature__ = _Signature()

    def forward(self, *inputs: Any) -> Any:
        """Adds this layer's nodes; takes and returns symbolic values."""
        raise GraphError(f"{type(self).__name__} does not define forward(self, ...)")

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        arguments = (*inputs, *options.values())
        if any(isinstance(value, Symbol) for value in arguments):
            return self._call_on_symbols(inputs, options)
        if not is_tracing() and not any(isinstance(value, Value) for value in arguments):
            kinds = ", ".join(type(value).__name__ for value in arguments)
            shape = getattr(arguments[0], "shape", None) if arguments else None
            sizes = "shape" if shape is None else tuple(shape)
            raise GraphError(
                f"{type(self).__name__} was called on ({kinds}); valid are symbols made by "
                "md.Input(...). Layers describe and never compute: to run a network, compile it: "
                f"md.compile(net, {sizes})(x)"
            )
        trace = current_trace()
        path = _path_in(trace, self)
        with trace.scope(path, self._is_leaf()):
            try:
                return self.forward(*inputs, **options)
            except TypeError:
                self.check_count(inputs, options)
                raise

    def _call_on_symbols(self, inputs: Sequence[Any], options: Mapping[str, Any]) -> Any:
        """Records a call on symbols; options that are symbols become inputs of the call."""
        label = type(self).__name__
        names = tuple(name for name, value in options.items() if isinstance(value, Symbol))
        function: Callable[..., Any] = self
        if options:
            rest = {name: value for name, value in options.items() if name not in names}
            function = partial(called_with, self, names, rest)
        symbols = (*inputs, *(options[name] for name in names))
        return call(function, symbols, label, lambda trace: self._name_in(trace, label))

    def check_count(self, inputs: Sequence[Any], options: Mapping[str, Any] | None = None) -> None:
        """Raises GraphError if ``forward`` does not take as many inputs, or such options."""
        signature = inspect.signature(self.forward)
        try:
            signature.bind(*inputs, **(options or {}))
        except TypeError as error:
            named = f" and {', '.join(f'{name}=' for name in options)}" if options else ""
            raise GraphError(
                f"{type(self).__name__}.forward takes {signature}, got {len(inputs)} inputs{named}"
                f": {error}"
            ) from None

    def _declared_inputs(self) -> Declared | None:
        """The inputs that the network itself declares, as a :class:`Model` does, and a layer whose
        input is not float32; None if it declares none."""
        return None

    def _to_graph(
        self,
        shapes: Shapes,
        dtype: str = "float32",
        states: bool = False,
        training: bool = False,
        ranks: int = 1,
    ) -> Graph:
        """Records the graph of the network; see :func:`minidnn.layers.build.to_graph`."""
        label = type(self).__name__
        with tracing(label, states=states, training=training) as trace:
            trace.ranks = ranks
            self._name_in(trace)
            types = named_types(label, self._declared_inputs(), shapes, dtype)
            inputs = [trace.input(type, name) for name, type in types]
            if self._is_leaf():
                trace.layer_paths[id(self)] = label.lower()
                with trace.scope("", leaf=False):
                    self.check_count(inputs)
                    results = self.forward(*inputs)
            else:
                results = self(*inputs)
            outputs = results_of(label, results)
        names = [str(name) for name in results] if isinstance(results, Mapping) else None
        return trace.graph(outputs, names)

    def _name_in(self, trace: Trace, label: str = "") -> None:
        """Gives a trace the paths of all layers and the names of all parameters of this network."""
        trace.describing = True
        trace.layer_paths = {id(layer): path for path, layer in self.named_layers(label)}
        prefix = f"{label}." if label else ""
        for name, parameter in self._all_names():
            trace.parameter_names.setdefault(id(parameter), prefix + name)

    def named(self, name: str) -> Self:
        """Gives the layer a name for :class:`Model`, which otherwise numbers its layers."""
        if not isinstance(name, str) or not name or "." in name:
            raise GraphError(f"name={name!r}; valid is a non-empty name without dots")
        self._name = name
        return self

    def freeze(self, frozen: bool = True) -> Self:
        """Leaves the parameters of this layer, and of all below it, as they are in training, and
        lets normalizations use the statistics that they store; ``freeze(False)`` undoes that.

        >>> net.freeze()
        >>> net.fc.freeze(False)                 # trains the last layer alone
        """
        for _, layer in self.named_layers():
            layer.frozen = bool(frozen)
        return self

    def trainable_parameters(self) -> Iterator[tuple[str, Parameter]]:
        """Those of :meth:`named_parameters` that training changes: neither stored statistics, nor
        ``trainable=False``, nor a frozen layer's."""
        open_to_change = {
            id(parameter)
            for _, layer in self.named_layers()
            for parameter in layer._own_parameters().values()
            if parameter.trainable and not layer.frozen
        }
        for name, parameter in self.named_parameters():
            if id(parameter) in open_to_change:
                yield name, parameter

    def eval(self) -> Self:
        """Returns the network, which runs as for inference in any case."""
        return self

    def train(self, mode: bool = True) -> Self:
        """UnsupportedError: :class:`minidnn.Trainer` trains.  ``train(False)`` is :meth:`eval`."""
        check_mode(self, mode)
        return self

    if not TYPE_CHECKING:  # a type checker that saw this would accept any name

        def __getattr__(self, name: str) -> Any:
            """Raises AttributeError, which says for names of other libraries what to write."""
            absent(self, name, LAYER)

    # Structure

    def children(self) -> Iterator[tuple[str, Layer]]:
        """The layers among the attributes, with their names, in order of assignment."""
        for name, value in vars(self).items():
            if type(value) in _PLAIN:
                continue
            if isinstance(value, Layer):
                yield name, value
            else:
                self._check_attribute(name, value)

    def _is_leaf(self) -> bool:
        """Whether the layer has no layers below it."""
        return not any(True for _ in self.children())

    def _check_attribute(self, name: str, value: Any) -> None:
        """GraphError if an attribute is a container of layers or parameters."""
        entries = value.values() if isinstance(value, Mapping) else value
        if not isinstance(value, (list, tuple, set, frozenset, Mapping)):
            return
        for kind in (Layer, Parameter):
            if any(isinstance(entry, kind) for entry in entries):
                raise GraphError(
                    f"{type(self).__name__}.{name} is a {type(value).__name__} of "
                    f"{kind.__name__.lower()}s, which would not be found; "
                    "use Sequential or LayerList, or attributes of their own"
                )

    def _walk(self, prefix: str, above: tuple[Layer, ...] = ()) -> Iterator[tuple[str, Layer]]:
        """Yields this layer and all below it, under each of their paths."""
        if any(layer is self for layer in above):
            raise GraphError(
                f"{prefix}: the {type(self).__name__} contains itself; "
                "valid is a network without cycles"
            )
        yield prefix, self
        for name, child in self.children():
            yield from child._walk(f"{prefix}.{name}" if prefix else name, (*above, self))

    def named_layers(self, prefix: str = "") -> Iterator[tuple[str, Layer]]:
        """This layer and all below it, each once, with their paths ("" for this one)."""
        seen: set[int] = set()
        for path, layer in self._walk(prefix):
            if id(layer) not in seen:
                seen.add(id(layer))
                yield path, layer

    def _all_names(self) -> Iterator[tuple[str, Parameter]]:
        """All parameters under every name that they have: a shared layer's have several."""
        for path, layer in self._walk(""):
            for name, value in layer._own_parameters().items():
                yield (f"{path}.{name}" if path else name), value

    def _own_parameters(self) -> dict[str, Parameter]:
        """The parameters among the attributes, by name."""
        return {name: value for name, value in vars(self).items() if isinstance(value, Parameter)}

    def named_parameters(self) -> Iterator[tuple[str, Parameter]]:
        """All parameters, each once, with the (first) names that PyTorch would give them."""
        seen: set[int] = set()
        for name, parameter in self._all_names():
            if id(parameter) not in seen:
                seen.add(id(parameter))
                yield name, parameter

    def parameter(self, name: str) -> Stored | None:
        """The value of one of this layer's own parameters in the recorded graph: a constant, or a
        state if the graph has states; None for an absent parameter."""
        value: Parameter | None = getattr(self, name)
        return None if value is None else value.stored(self._full_name(name))

    def reshaped(self, name: str, shape: tuple[int, ...]) -> Value:
        """The value of one of this layer's own parameters in the graph, in another shape."""
        parameter: Parameter = getattr(self, name)
        return parameter.reshaped(self._full_name(name), shape)

    def _full_name(self, name: str) -> str:
        """The name of a parameter of the layer whose ``forward`` is being recorded."""
        path = current_trace().path
        return f"{path}.{name}" if path else name

    def constants(self, *names: str) -> tuple[Value, ...]:
        """The values of the named parameters in the graph, without those that are absent."""
        values = (self.parameter(name) for name in names)
        return tuple(value for value in values if value is not None)

    # Weights

    def initialize(self, seed: int = 0) -> Self:
        """Draws all parameters anew from a seed.  Returns the layer itself."""
        seed = plain(seed)
        if type(seed) is not int or seed < 0:
            raise GraphError(f"seed={seed!r}; valid is an int of at least 0")
        for name, parameter in self.named_parameters():
            parameter.initialize(seed, name)
        return self

    def state_dict(self) -> dict[str, np.ndarray]:
        """All parameters by name, as PyTorch's state dict has them: those of a shared layer
        under each of its names.  Arrays are not copied."""
        return {name: parameter.bind(name)() for name, parameter in self._all_names()}

    def load_state_dict(
        self,
        state: Mapping[str, Any],
        strict: bool = True,
        *,
        prefix: str = "",
        without: str | Sequence[str] = (),
    ) -> LoadedState:
        """Sets all parameters by name from arrays (NumPy, or anything NumPy can view).

        For example::

            net.load_state_dict(md.load_weights("checkpoint.pth", key="state_dict"),
                                prefix="module.", without=["fc"])

        Nothing is changed unless everything fits.  Floating-point arrays are converted to the
        parameter's dtype.  A shared parameter may be given under any of its names.

        Args:
            state: arrays by name.
            strict: False tolerates missing and unexpected entries, and warns if nothing fits.
            prefix: only entries whose names begin so are taken, without it.
            without: names of layers or parameters that stay as they are, whatever the state dict
                has for them: a head for another number of classes.

        Returns:
            The names of missing parameters and of unexpected entries, as PyTorch does.

        Raises:
            WeightsError: lists every missing, unexpected and misshapen entry at once, and says
                what would make more of them fit.
        """
        ignored = tuple(
            f"{path}.{each}" if path else each
            for path, layer in self.named_layers()
            for each in layer.ignored_prefixes
        )
        return load_state(
            type(self).__name__,
            list(self._all_names()),
            state,
            ignored,
            strict=strict,
            prefix=prefix,
            without=without,
        )

    # Copies

    def __getstate__(self) -> dict[str, Any]:
        """All attributes.  Parameters get their names and seeds, so that copies draw the same."""
        for name, parameter in self.named_parameters():
            parameter.bind(name)
        return dict(vars(self))

    def __reduce_ex__(self, protocol: Any) -> Any:
        check_picklable(self)
        return super().__reduce_ex__(protocol)

    def __copy__(self) -> Self:
        twin = type(self).__new__(type(self))
        set_state(twin, self.__getstate__())
        return twin

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        twin = memo[id(self)] = type(self).__new__(type(self))
        set_state(twin, copy.deepcopy(self.__getstate__(), memo))
        return twin

    # Text

    def extra_repr(self) -> str:
        """The layer's arguments, for its representation."""
        return ", ".join(f"{name}={getattr(self, name)}" for name in self._shown)

    def __repr__(self) -> str:
        below = list(self.children())
        if not below:
            return f"{type(self).__name__}({self.extra_repr()})"
        shown = (f"({name}): {child}".replace("\n", "\n  ") for name, child in below)
        return "\n  ".join([f"{type(self).__name__}({self.extra_repr()}", *shown]) + "\n)"

    def summary(self, *shapes: tuple[int, ...]) -> str:
        """A table of the layers in the order in which they run, for inputs of these shapes.

        ``shapes`` are one per input, the batch included.  A layer that is called several times
        stands in one row, marked with the number of its calls; one that is not called at all
        comes last.  Operations between layers have rows of their own.  A multiply-add counts as
        2 operations; parameters that are shared count once, and stored statistics not at all.
        GraphError says which layer a shape does not fit.
        """
        graph = self._to_graph(list(shapes))
        layers = {
            path: Described(type(layer).__name__, layer._is_leaf(), layer._own_parameters())
            for path, layer in self.named_layers()
        }
        return summary(type(self).__name__, graph, layers)


def called_with(
    layer: Layer, names: tuple[str, ...], options: Mapping[str, Any], *values: Any
) -> Any:
    """Calls a layer with values and options; the last values are keyword arguments ``names``.

    It is the function of a :class:`~minidnn.layers.symbol.Call` whose options include symbols.
    """
    named = dict(zip(names, values[len(values) - len(names) :], strict=True))
    return layer(*values[: len(values) - len(names)], **named, **options)


def _path_in(trace: Any, layer: Layer) -> str:
    """The path of a layer in the network that is being recorded."""
    path = trace.layer_paths.get(id(layer))
    if path is not None:
        return path
    label = f"{trace.path}.{type(layer).__name__.lower()}".lstrip(".")
    if trace.layer_paths and next(layer.named_parameters(), None) is not None:
        raise GraphError(
            f"{label}: a layer with parameters was made inside forward(), where its parameters "
            "would be lost; make it in __init__ and keep it as an attribute"
        )
    return label
