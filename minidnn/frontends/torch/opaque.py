"""Modules that cannot be captured, as one operation each.

A module whose ``forward`` cannot be captured (it looks at values, leaves PyTorch, or keeps state)
is run once to see what it gives; while the rest is captured, a call of it is one opaque operation
with results like those.  When the program runs, the module itself is called there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from minidnn.errors import UnsupportedError


@dataclass
class OpaqueCall:
    """One call of such a module: how its operands and results are arranged."""

    path: str
    module: nn.Module
    given: Any
    #: Leaves of the arguments: None for a tensor, else the thing itself, wrapped in a tuple.
    others: list[tuple[Any] | None]
    results: list[torch.Tensor] = field(repr=False)
    arranged: Any = None

    def arguments(self, tensors: Any) -> tuple[Any, Any]:
        """The arguments with these tensors in their places."""
        left = iter(tensors)
        leaves = [next(left) if other is None else other[0] for other in self.others]
        args, kwargs = pytree.tree_unflatten(leaves, self.given)
        return args, kwargs


class OpaqueModule(nn.Module):
    """Calls a module on a list of tensors; gives the list of the tensors that it gives."""

    def __init__(self, call: OpaqueCall) -> None:
        super().__init__()
        self._call = call

    def forward(self, tensors: list[torch.Tensor]) -> list[Any]:
        args, kwargs = self._call.arguments(tensors)
        return pytree.tree_leaves(self._call.module(*args, **kwargs))


class OpaqueCalls:
    """All calls of opaque modules in one run of a network, in order."""

    def __init__(self, reasons: Mapping[str, str]) -> None:
        self.reasons = dict(reasons)
        self.calls: list[OpaqueCall] = []

    def record(self, root: nn.Module, args: Any, kwargs: Any) -> None:
        """Runs the network once, to see what the opaque modules are given and give."""
        self.calls.clear()
        with self._replaced(root, self._recorder), torch.no_grad():
            root(*args, **kwargs)

    @contextmanager
    def standing_in(self, root: nn.Module) -> Iterator[None]:
        """Within, calls of opaque modules are recorded as opaque operations."""
        _define()
        count = iter(range(len(self.calls)))

        def replacement(path: str, module: nn.Module, forward: Any) -> Any:
            def call(*args: Any, **kwargs: Any) -> Any:
                leaves = pytree.tree_leaves((args, kwargs))
                index = next(count)
                tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
                _standing[index] = self.calls[index].results
                given = torch.ops.minidnn.opaque(tensors, index)
                return pytree.tree_unflatten(list(given), self.calls[index].arranged)

            return call

        with self._replaced(root, replacement):
            try:
                yield
            finally:
                _standing.clear()

    def _recorder(self, path: str, module: nn.Module, forward: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            leaves, given = pytree.tree_flatten((args, kwargs))
            tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
            before = [tensor._version for tensor in tensors if not tensor.is_inference()]
            result = forward(*args, **kwargs)
            after = [tensor._version for tensor in tensors if not tensor.is_inference()]
            results, arranged = pytree.tree_flatten(result)
            self._check(path, tensors, results, before != after)
            others = [None if isinstance(leaf, torch.Tensor) else (leaf,) for leaf in leaves]
            self.calls.append(OpaqueCall(path, module, given, others, results, arranged))
            return result

        return call

    def _check(self, path: str, given: list[Any], results: list[Any], written: bool) -> None:
        reason = None
        if written:
            reason = "it writes to its operands"
        elif not results or not all(isinstance(result, torch.Tensor) for result in results):
            reason = "it gives something else than tensors"
        else:
            # Tensors without elements have no memory, and lie at 0.
            memory = {tensor.untyped_storage().data_ptr() for tensor in given if tensor.numel()}
            if any(result.untyped_storage().data_ptr() in memory for result in results):
                reason = "its result shares memory with its operands"
        if reason is not None:
            raise UnsupportedError(
                f"module {path!r} cannot be captured ({self.reasons[path]}), nor be called as one "
                f"operation: {reason}"
            )

    @contextmanager
    def _replaced(self, root: nn.Module, make: Any) -> Iterator[None]:
        """Within, the opaque modules' ``forward`` is what ``make`` gives for it."""
        missing = object()
        saved = []
        try:
            for path in self.reasons:
                module = root.get_submodule(path)
                saved.append((module, module.__dict__.get("forward", missing)))
                module.__dict__["forward"] = make(path, module, module.forward)
            yield
        finally:
            for module, own in saved:
                if own is missing:
                    del module.__dict__["forward"]
                else:
                    module.__dict__["forward"] = own


#: What the opaque calls that are being captured give.
_standing: dict[int, list[torch.Tensor]] = {}


@cache
def _define() -> torch.library.Library:
    """Defines the operation; the definition vanishes with what is returned."""
    library = torch.library.Library("minidnn", "FRAGMENT")
    library.define("opaque(Tensor[] inputs, int call) -> Tensor[]")

    def like(inputs: list[torch.Tensor], call: int) -> list[torch.Tensor]:
        return [
            torch.empty(result.shape, dtype=result.dtype, device=result.device)
            for result in _standing[call]
        ]

    torch.library.register_fake("minidnn::opaque", like, lib=library)
    return library


def is_opaque(node: torch.fx.Node) -> bool:
    """Whether a captured operation is a call of such a module."""
    return str(node.target) == "minidnn.opaque.default"


def path_of(node: torch.fx.Node) -> str:
    """The path of the innermost module that a captured operation is of."""
    stack = node.meta.get("nn_module_stack") or {}
    return str(next(reversed(list(stack.values())), ("",))[0])


def culprit(error: BaseException, root: nn.Module) -> str | None:
    """The path of the innermost module in whose ``forward`` an error came up; None if that is
    the network itself."""
    paths = {module: path for path, module in root.named_modules()}
    pending: BaseException | None = error
    seen: list[BaseException] = []
    found: str | None = None
    while pending is not None and pending not in seen:
        seen.append(pending)
        trace = pending.__traceback__
        while trace is not None:
            owner = trace.tb_frame.f_locals.get("self")
            if isinstance(owner, nn.Module) and paths.get(owner):
                found = paths[owner]
            trace = trace.tb_next
        if found is not None:
            return found
        pending = pending.__cause__ or pending.__context__
    return found
