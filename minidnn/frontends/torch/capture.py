"""Capturing a whole module: what it computes, as one functional graph of ATen operations."""

from __future__ import annotations

import contextlib
import contextvars
import logging
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.export.graph_signature import InputKind

from minidnn._torch_internals import pytree
from minidnn.errors import UnsupportedError
from minidnn.frontends.torch.captured import CAPTURING, Captured, Held, layers_in_full
from minidnn.frontends.torch.functional import functional
from minidnn.frontends.torch.rehearsal import unchanged


def capture(
    root: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None
) -> Captured:
    """Captures what a module computes, without gradients, for arguments of these sizes.

    ``torch.export`` runs the module's own Python on tensors without data.

    UnsupportedError if that cannot be had, with what PyTorch says; what the module's own code
    raises for such arguments.
    """
    check_scripted(root)
    name = type(root).__name__
    with CAPTURING, torch.no_grad():
        try:
            with _unheard(), layers_in_full():
                program = contextvars.copy_context().run(_exported, root, args, kwargs or {})
        except Exception as error:  # whatever a module's own Python does
            with unchanged(root):
                root(*args, **(kwargs or {}))  # a mistake of the caller's comes to light here
            text = " ".join(str(error).split())
            raise UnsupportedError(
                f"{name} cannot be captured: {type(error).__name__}: {text:.300}; "
                'torch.compile(model, backend="minidnn") splits a network at such places'
            ) from error
        leaves = iter(pytree.tree_leaves((tuple(args), dict(kwargs or {}))))
        held: dict[int, Held] = {}
        given: list[Any] = []
        for place, spec in enumerate(program.graph_signature.input_specs):
            if spec.kind is InputKind.USER_INPUT:
                given.append(next(leaves))
            elif spec.kind in (InputKind.PARAMETER, InputKind.BUFFER):
                held[place] = _held(root, str(spec.target))
                given.append(held[place].tensor)
            elif spec.kind is InputKind.CONSTANT_TENSOR:
                held[place] = Held(program.constants, spec.target, str(spec.target))
                given.append(held[place].tensor)
            else:
                raise UnsupportedError(f"{name} is given {spec.target!r} of kind {spec.kind}")
        captured = functional(program.graph_module, given, held, trained=False, enabled=False)
    of_user = [place for place in range(len(given)) if place not in held]
    places = {place: i for i, place in enumerate(of_user)}
    names = [node.name for node in program.graph_module.graph.nodes if node.op == "placeholder"]
    for node, place in captured.given.items():
        node.meta["minidnn_name"] = names[place]
    captured.given = {node: places[place] for node, place in captured.given.items()}
    captured.arranged = program.call_spec.out_spec
    return captured


def _exported(root: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What PyTorch makes of a module, whose code may keep tensors without data: all that it writes
    is put back."""
    with unchanged(root):
        return torch.export.export(root, tuple(args), dict(kwargs), strict=False)


def _held(root: nn.Module, name: str) -> Held:
    path, _, key = name.rpartition(".")
    owner = root.get_submodule(path)
    holder: MutableMapping[str, Any] = (
        owner._parameters if key in owner._parameters else owner._buffers
    )
    return Held(holder, key, name)


@contextlib.contextmanager
def _unheard() -> Iterator[None]:
    """PyTorch logs what fails while it captures, with its traceback; here an exception tells it."""
    log = logging.getLogger("torch")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)


# TorchScript modules: what they hold and compute is not Python's, so Dynamo calls them as they are.


_REASON = "it is a TorchScript module, whose code is not Python's"


def is_scripted(module: Any) -> bool:
    return isinstance(module, torch.jit.ScriptModule)


def check_scripted(module: nn.Module) -> None:
    """UnsupportedError if a module as a whole is scripted or traced."""
    if is_scripted(module):
        raise UnsupportedError(
            f"{type(module).__name__} cannot be captured: {_REASON}; valid is the module that it "
            "was made of"
        )
