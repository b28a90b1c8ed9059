"""Hooks of modules: which of them a program can hold, and calling those that it does not.

A hook that only computes a result of what it is given is captured like a module's own code.  One
that may do more (print, count, keep what passes) has to run at every call, so its module is called
as it is.  Which kind a hook is of is read off its code; in doubt it may do more.
"""

from __future__ import annotations

import dis
import inspect
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from minidnn.frontends.torch.scripted import is_scripted

#: What modules have their hooks in that run when they are called.
HOOKS = ("_forward_pre_hooks", "_forward_hooks")
#: Those that run on the way back, where gradients are computed.
BACKWARD_HOOKS = ("_backward_pre_hooks", "_backward_hooks")

#: Hooks of PyTorch's that compute a weight of others.
_COMPUTES_WEIGHTS = (WeightNorm, SpectralNorm, BasePruningMethod)

#: Instructions that write to something that outlives the call.
_WRITES = ("STORE_ATTR", "STORE_SUBSCR", "STORE_GLOBAL", "STORE_DEREF", "STORE_SLICE")
_DELETES = ("DELETE_ATTR", "DELETE_SUBSCR", "DELETE_GLOBAL", "DELETE_DEREF")
_MORE = (*_WRITES, *_DELETES, "IMPORT_NAME", "YIELD_VALUE", "LOAD_BUILD_CLASS")
_BUILTINS = frozenset(
    [
        *("abs", "all", "any", "bool", "dict", "enumerate", "float", "getattr", "hasattr", "int"),
        *("isinstance", "len", "list", "map", "max", "min", "range", "reversed", "round", "slice"),
        *("sorted", "str", "sum", "tuple", "type", "zip"),
    ]
)
#: Functions in PyTorch's modules that do more than compute.
_KEEPING = ("load", "manual_seed", "save", "seed", "set_", "register_", "add_module")
_PLAIN = (int, float, complex, str, bytes, type(None), torch.dtype, torch.device)


def beyond_computing(root: nn.Module) -> dict[str, str]:
    """The paths of modules in a network, but not its own, whose hooks may do more than compute, and
    what is said of it."""
    found = {
        path: do_more(module)
        for path, module in root.named_modules()
        if path and not is_scripted(module)
    }
    return {path: said for path, said in found.items() if said is not None}


def on_the_way_back(root: nn.Module) -> dict[str, str]:
    """The paths of modules in a network, but not its own, with hooks that run where gradients are
    computed, and what is said of it."""
    return {
        path: "it has hooks on the way back"
        for path, module in root.named_modules()
        if path and not is_scripted(module) and any(map(vars(module).get, BACKWARD_HOOKS))
    }


def do_more(module: nn.Module) -> str | None:
    """What is said of a module whose hooks may do more than compute; None of one whose do not."""
    for hook in _hooks_of(module):
        if (why := _why_more(hook, set())) is not None:
            return f"its hook {_name(hook)} may do more than compute: {why}"
    return None


def is_pytorchs(hook: Any) -> bool:
    """Whether a hook is one of PyTorch's own, as those that compute weights are: it is captured,
    whoever has it."""
    if isinstance(hook, types.FunctionType):
        return _is_pytorchs(hook.__globals__.get("__name__"))
    return isinstance(hook, _COMPUTES_WEIGHTS)


def has_hooks(module: nn.Module) -> bool:
    """Whether a module has hooks that run when it is called, but PyTorch's own."""
    return any(True for _ in _hooks_of(module))


def _hooks_of(module: nn.Module) -> Iterator[Any]:
    for name in HOOKS:
        for hook in getattr(module, name).values():
            if not is_pytorchs(hook):
                yield hook


def without_own_hooks(module: nn.Module) -> dict[str, Any]:
    """A module's hooks, by the dicts that they are in, but for those that :func:`with_hooks`
    calls."""
    return {
        name: type(found)((k, h) for k, h in found.items() if is_pytorchs(h))
        for name in HOOKS
        for found in (getattr(module, name),)
    }


def with_hooks(module: nn.Module, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """What a call of the module gives with its hooks, but PyTorch's own, around ``call``, which
    computes the rest."""
    return _around(module, False, call, args, kwargs)


def without_hooks(module: nn.Module) -> Callable[..., Any]:
    """A call of the module without the hooks that :func:`with_hooks` calls."""
    return lambda *args, **kwargs: _around(module, True, module.forward, args, kwargs)


def _around(
    module: nn.Module, pytorchs: bool, call: Callable[..., Any], args: Any, kwargs: Any
) -> Any:
    """A call of a module with its hooks that are PyTorch's own, or those that are not."""
    before, after = (
        [each for each in getattr(module, name).items() if is_pytorchs(each[1]) is pytorchs]
        for name in HOOKS
    )
    for key, hook in before:
        if key in module._forward_pre_hooks_with_kwargs:
            if (found := hook(module, args, kwargs)) is not None:
                args, kwargs = found
        elif (found := hook(module, args)) is not None:
            args = found if isinstance(found, tuple) else (found,)
    try:
        result = call(*args, **kwargs)
        while after:
            key, hook = after.pop(0)
            named = (kwargs,) if key in module._forward_hooks_with_kwargs else ()
            if (found := hook(module, args, *named, result)) is not None:
                result = found
    except Exception:
        for key, hook in after:
            if key in module._forward_hooks_always_called:
                named = (kwargs,) if key in module._forward_hooks_with_kwargs else ()
                hook(module, args, *named, None)
        raise
    return result


def _name(hook: Any) -> str:
    name = getattr(hook, "__qualname__", None) or type(hook).__qualname__
    return str(name).rpartition("<locals>.")[2]


def _why_more(hook: Any, seen: set[int]) -> str | None:
    """Why a function may do more than compute of its arguments; None if it does not."""
    if not isinstance(hook, types.FunctionType):
        return f"it is a {type(hook).__name__}"
    if id(hook) in seen:
        return None
    seen.add(id(hook))
    for code in _codes(hook.__code__):
        for instruction in dis.get_instructions(code):
            if instruction.opname in _MORE:
                return f"it has {instruction.opname}"
            if any(map(str(instruction.argval).startswith, _KEEPING)):
                return f"it uses {instruction.argval!r}"
            if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME") and (
                why := _why_named(hook.__globals__, instruction.argval, seen)
            ):
                return why
    variables = inspect.getclosurevars(hook).nonlocals
    if len(variables) != len(hook.__code__.co_freevars):
        return "it uses a variable that has no value yet"
    defaults = [("a default", each) for each in hook.__defaults__ or ()]
    held = [*variables.items(), *defaults, *(hook.__kwdefaults__ or {}).items()]
    return next((why for name, each in held if (why := _why_held(name, each, seen))), None)


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _why_named(names: dict[str, Any], name: str, seen: set[int]) -> str | None:
    if name in names:
        return _why_held(name, names[name], seen)
    return None if name in _BUILTINS else f"it uses {name!r}"


def _why_held(name: str, thing: Any, seen: set[int]) -> str | None:
    """Why code that has a thing may do more than compute; None if it cannot."""
    if isinstance(thing, _PLAIN):
        return None
    if isinstance(thing, tuple):
        return next((why for each in thing if (why := _why_held(name, each, seen))), None)
    if isinstance(thing, types.FunctionType) and not _is_pytorchs(thing.__module__):
        return None if _why_more(thing, seen) is None else f"it uses {name!r}"
    pytorchs = thing.__name__ if isinstance(thing, types.ModuleType) else _module_of(thing)
    return None if _is_pytorchs(pytorchs) else f"it uses {name!r}"


def _module_of(thing: Any) -> Any:
    """Where a function or class is from; None for all else."""
    kinds = (types.FunctionType, types.BuiltinFunctionType, type)
    return getattr(thing, "__module__", None) if isinstance(thing, kinds) else None


def _is_pytorchs(name: Any) -> bool:
    return isinstance(name, str) and name.partition(".")[0] in ("torch", "math", "_operator")
