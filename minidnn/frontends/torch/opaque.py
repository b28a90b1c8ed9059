"""Modules that cannot be captured, as one operation each.

A module whose ``forward`` cannot be captured (it looks at values, leaves PyTorch, or keeps state)
is run once to see what it gives; while the rest is captured, a call of it is one opaque operation
with results like those.  When the program runs, the module itself is called there.  Its hooks are
part of its call.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import nn

from minidnn._torch_internals import pytree
from minidnn.errors import UnsupportedError
from minidnn.frontends.torch.arguments import Arguments
from minidnn.frontends.torch.hooks import BACKWARD_HOOKS, HOOKS
from minidnn.frontends.torch.replica import holding

_EVERY = (*HOOKS, *BACKWARD_HOOKS)


class NotOneOperation(Exception):
    """A module that cannot be called as one operation either.

    Attributes:
        path: of the module.
        reason: why not.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason


@dataclass(frozen=True)
class Lying:
    """How a tensor lies in memory."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    def like(self) -> torch.Tensor:
        """A tensor that lies so."""
        return torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device=self.device)

    def fits(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is one of these elements, however it lies."""
        return (
            tensor.shape == self.shape
            and tensor.dtype == self.dtype
            and tensor.device == self.device
        )

    def laid(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor of these elements that lies so."""
        if tensor.stride() == self.strides:
            return tensor
        if 0 in self.strides:
            return tensor.contiguous()
        return self.like().copy_(tensor)


@dataclass
class OpaqueCall:
    """One call of such a module: how its operands and results are arranged.

    Attributes:
        views: the operand, by its place among the tensors, whose memory results share, or None.
    """

    path: str
    module: nn.Module
    given: Any
    #: Leaves of the arguments: None for a tensor, else the thing itself, wrapped in a tuple.
    others: list[tuple[Any] | None]
    #: Leaves of what it gives: tensors as they lay there when it was recorded, or None.
    results: list[Lying | None] = field(repr=False)
    arranged: Any = None
    views: int | None = None

    def arguments(self, tensors: Any) -> tuple[Any, Any]:
        """The arguments with these tensors in their places."""
        left = iter(tensors)
        leaves = [next(left) if other is None else other[0] for other in self.others]
        args, kwargs = pytree.tree_unflatten(leaves, self.given)
        return args, kwargs


class OpaqueModule(nn.Module):
    """Calls a module on a list of tensors; gives the list of the tensors that it gives.

    ``read``: the tensors among these, by place, that operations of the program read, in which their
    shapes and strides are.
    """

    def __init__(self, call: OpaqueCall, read: Collection[int]) -> None:
        super().__init__()
        self._call = call
        self._read = sorted(read)
        self._expected = [each for each in call.results if each is not None]

    def forward(self, tensors: list[torch.Tensor]) -> list[Any]:
        call = self._call
        args, kwargs = call.arguments(tensors)
        given, arranged = pytree.tree_flatten(call.module(*args, **kwargs))
        if arranged != call.arranged or list(map(_kind, given)) != list(map(_kind, call.results)):
            raise UnsupportedError(
                f"module {call.path!r} gave {arranged} of {_kinds(given)}; when the network was "
                f"captured, which this module cannot be, it gave {call.arranged} of "
                f"{_kinds(call.results)}"
            )
        tensors = _tensors(given)
        for place in self._read:
            tensor, expected = tensors[place], self._expected[place]
            if not expected.fits(tensor):
                raise UnsupportedError(
                    f"module {call.path!r} gave {_text(tensor)}; when the network was captured, "
                    f"which this module cannot be, it gave {_text(expected)}, of which other "
                    'operations were made; torch.compile(model, backend="minidnn") splits a '
                    "network at such places"
                )
            tensors[place] = expected.laid(tensor)
        return tensors


class OpaqueCalls:
    """All calls of opaque modules in one run of a network, in order."""

    def __init__(self, reasons: Mapping[str, str]) -> None:
        self.reasons = dict(reasons)
        self.calls: list[OpaqueCall] = []
        self._is_within = False

    def record(self, root: nn.Module, args: Any, kwargs: Any, original: nn.Module) -> None:
        """Runs the network once, to see what the opaque modules are given and give; with gradients
        if the caller has them on.

        original: the network whose modules are called later, of which ``root`` is a replica.
        """
        self.calls.clear()
        self._is_within = False

        def recorder(path: str, forward: Any) -> Any:
            return self._recorder(path, original.get_submodule(path), forward)

        with self._replaced(root, recorder):
            root(*args, **kwargs)

    @contextmanager
    def standing_in(self, root: nn.Module) -> Iterator[None]:
        """Within, calls of opaque modules of ``root`` are recorded as opaque operations.

        All threads see that, so ``root`` is a replica that no other thread calls.
        """
        _define()
        count = iter(range(len(self.calls)))

        def replacement(path: str, forward: Any) -> Any:
            def call(*args: Any, **kwargs: Any) -> Any:
                index = next(count)
                recorded = self.calls[index]
                tensors = _tensors(pytree.tree_leaves((args, kwargs)))
                given = iter(torch.ops.minidnn.opaque(tensors, index))
                leaves = [each if each is None else next(given) for each in recorded.results]
                return pytree.tree_unflatten(leaves, recorded.arranged)

            return call

        with self._replaced(root, replacement):
            _standing.extend(
                [each for each in call.results if each is not None] for call in self.calls
            )
            try:
                yield
            finally:
                _standing.clear()

    def _recorder(self, path: str, module: nn.Module, forward: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            if self._is_within:  # it is part of another's call
                return forward(*args, **kwargs)
            arguments = Arguments(args, kwargs)
            leaves, given = arguments.leaves, arguments.arranged
            tensors = _tensors(leaves)
            before = [tensor._version for tensor in tensors if not tensor.is_inference()]
            self._is_within = True
            result = forward(*args, **kwargs)
            self._is_within = False
            after = [tensor._version for tensor in tensors if not tensor.is_inference()]
            if arguments.have_changed():
                raise NotOneOperation(path, "it changes a list or dict that it is given")
            results, arranged = pytree.tree_flatten(result)
            views = _views(path, tensors, results, before != after)
            others = [None if isinstance(leaf, torch.Tensor) else (leaf,) for leaf in leaves]
            lying = [None if each is None else _lying(each) for each in results]
            self.calls.append(OpaqueCall(path, module, given, others, lying, arranged, views))
            return result

        return call

    @contextmanager
    def _replaced(self, root: nn.Module, make: Any) -> Iterator[None]:
        """Within, calls of the opaque modules, with their hooks, are what ``make`` gives for
        them."""
        with ExitStack() as stack:
            for path in self.reasons:
                module = root.get_submodule(path)
                hooks: dict[str, Any] = {name: OrderedDict() for name in _EVERY}
                forward = make(path, whole_call(module))
                stack.enter_context(holding(module, **hooks, forward=forward))
            yield


def whole_call(module: nn.Module) -> Any:
    """A call of a module as it is now, with its hooks."""
    own = {name: getattr(module, name) for name in (*_EVERY, "forward")}

    def call(*args: Any, **kwargs: Any) -> Any:
        with holding(module, **own):
            return module(*args, **kwargs)

    return call


def _views(path: str, given: list[Any], results: list[Any], written: bool) -> int | None:
    """The operand, by its place, whose memory results share; NotOneOperation if a call is more
    than an operation."""
    if written:
        raise NotOneOperation(path, "it writes to its operands")
    if not all(result is None or isinstance(result, torch.Tensor) for result in results):
        raise NotOneOperation(path, f"it gives {_kinds(results)}; valid are tensors, and None")
    # Tensors without elements have no memory, and lie at 0.
    memory = [tensor.untyped_storage().data_ptr() if tensor.numel() else None for tensor in given]
    found = {
        place
        for result in _tensors(results)
        for place, address in enumerate(memory)
        if result.untyped_storage().data_ptr() == address
    }
    if len(found) > 1:
        raise NotOneOperation(path, "its results share memory with several operands")
    return next(iter(found), None)


def _tensors(leaves: list[Any]) -> list[torch.Tensor]:
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def _kind(leaf: Any) -> str:
    return "Tensor" if isinstance(leaf, (torch.Tensor, Lying)) else type(leaf).__name__


def _kinds(leaves: list[Any]) -> str:
    return ", ".join(map(_kind, leaves)) or "nothing"


def _lying(tensor: torch.Tensor) -> Lying:
    return Lying(tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device)


def _text(lying: torch.Tensor | Lying) -> str:
    return f"{str(lying.dtype).removeprefix('torch.')}{list(lying.shape)} on {lying.device}"


#: What the opaque calls that are being captured give; one thread captures at a time.
_standing: list[list[Lying]] = []


@cache
def _define() -> torch.library.Library:
    """Defines the operation; the definition vanishes with what is returned."""
    library = torch.library.Library("minidnn", "FRAGMENT")
    library.define("opaque(Tensor[] inputs, int call) -> Tensor[]")

    def like(inputs: list[torch.Tensor], call: int) -> list[torch.Tensor]:
        return [result.like() for result in _standing[call]]

    torch.library.register_fake("minidnn::opaque", like, lib=library)
    # A call whose results nobody reads may be one that prints, or counts.
    torch.fx.node.has_side_effect(torch.ops.minidnn.opaque.default)
    return library


def is_opaque(node: torch.fx.Node) -> bool:
    """Whether a captured operation is a call of such a module."""
    return str(node.target) == "minidnn.opaque.default"


def culprit(error: BaseException, root: nn.Module) -> str | None:
    """The path of the innermost module in whose ``forward`` an error came up; None if that is
    the network itself."""
    # A module that stands in several places is captured by way of objects that share its dict.
    paths = {id(vars(module)): path for path, module in root.named_modules()}
    pending: BaseException | None = error
    seen: list[BaseException] = []
    found: str | None = None
    while pending is not None and pending not in seen:
        seen.append(pending)
        trace = pending.__traceback__
        while trace is not None:
            owner = trace.tb_frame.f_locals.get("self")
            if isinstance(owner, nn.Module):
                found = paths.get(id(vars(owner))) or found
            trace = trace.tb_next
        if found is not None:
            return found
        pending = pending.__cause__ or pending.__context__
    return found
