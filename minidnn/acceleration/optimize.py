"""optimize: makes a PyTorch module faster, behind the same interface."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from minidnn._habits import instead_of_layer
from minidnn.backends.backend import check_not_automatic, get_backend
from minidnn.dynamic.dim import Dim
from minidnn.errors import GraphError, MiniDNNError
from minidnn.frontends.torch.frontend import check_mode, require_torch
from minidnn.graph.types import plain

if TYPE_CHECKING:
    from minidnn.acceleration.module import OptimizedModule


def optimize(
    module: Any,
    example: Any = None,
    *,
    kwargs: Mapping[str, Any] | None = None,
    device: str | None = None,
    precision: str | None = None,
    strict: bool = False,
    sizes: int = 8,
    dynamic: Dim | None = None,
    **options: Any,
) -> OptimizedModule:
    """A module that gives what ``module`` gives, with all that is known run by minidnn.

    Unknown operations run in PyTorch, in their place, on the same memory; ``explain()`` of the
    result lists them with reasons. Code that looks at values, prints or calls NumPy runs in Python,
    between compiled pieces. Parameters are shared with ``module``; when they change, the result
    compiles again for inference. Where gradients are enabled, known operations run forward and
    backward, in evaluation mode too: weights are read in PyTorch's memory, and gradients arrive in
    ``.grad``; random numbers are seeded by PyTorch's generator, and are not its own.

    Args:
        module: a ``torch.nn.Module``; it is compiled for the mode that it is in. Its code runs once
            for the example; what that writes is put back.
        example: a tensor, or a tuple of arguments, of the size to compile for now; None leaves that
            to the first call.
        kwargs: arguments of the example that are given by name.
        device: "cuda", "cpu" or another backend's name; None follows the tensors.
        precision, options: as :func:`minidnn.compile` takes them.
        strict: whether anything left to PyTorch is an error.
        sizes: the number of argument sizes for which programs are kept.
        dynamic: the batch, which is the first axis of all tensors: ``md.Dim("batch", 1, 64)``. One
            executable computes all batches in its range, new ones at once, as
            :class:`minidnn.dynamic.executable.DynamicExecutable` does it. Where the module's code
            looks at the batch, rows depend on each other, or PyTorch runs some of it, each batch
            has programs of its own, and ``explain()`` says why.

    Returns:
        A ``torch.nn.Module`` that is called like ``module``.

    Raises:
        GraphError: an argument is not legal.
        UnsupportedError: the module is TorchScript's, or with ``strict`` not all of it is taken.
        DeviceError: PyTorch is missing or its version is not accepted, or the device cannot be
            used.

    >>> fast = md.optimize(module, torch.rand(1, 3, 224, 224))
    """
    require_torch()
    from torch import Tensor, nn

    from minidnn.acceleration.engine import Engine
    from minidnn.acceleration.module import OptimizedModule
    from minidnn.acceleration.piece import BridgeSettings
    from minidnn.frontends.torch.capture import check_scripted

    if not isinstance(module, nn.Module):
        raise GraphError(
            f"optimize: module={module!r:.80} is a {type(module).__name__}; valid is a "
            f"torch.nn.Module{_advice_on_module(module)}"
        )
    if isinstance(module, OptimizedModule):
        module = module.original
    sizes = plain(sizes)
    if type(sizes) is not int or sizes < 1:
        raise GraphError(f"optimize: sizes={sizes!r}; valid is an int of at least 1")
    if dynamic is not None and not isinstance(dynamic, Dim):
        raise GraphError(
            f"optimize: dynamic={dynamic!r:.80}; valid is a minidnn.Dim, the size of the batch"
        )
    if example is not None and not isinstance(example, (Tensor, tuple)):
        raise GraphError(
            f"optimize: example is a {type(example).__name__}; valid is a tensor, or a tuple of "
            f"the arguments{_advice_on_example(example)}"
        )
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise GraphError(
            f"optimize: kwargs is a {type(kwargs).__name__}; valid is a dict of arguments by name"
        )
    if type(strict) is not bool:
        raise GraphError(f"optimize: strict={strict!r}; valid are True and False")
    check_not_automatic(precision, "md.optimize, which compiles pieces of networks")
    if device is not None:  # errors come now, not at the first call
        get_backend(device)
        Engine(device, precision, options).check()
    check_mode(module, "optimize: ", trains=True)
    check_scripted(module)
    settings = BridgeSettings(type(module).__name__, device, precision, strict, sizes, options)
    optimized = OptimizedModule(module, settings, dynamic)
    if example is not None or kwargs:
        args = example if isinstance(example, tuple) else () if example is None else (example,)
        try:
            optimized.prepare(*args, **(kwargs or {}))
        except MiniDNNError:
            raise
        except Exception as error:
            if (reason := _differing_dtypes(module, args)) is not None:
                raise GraphError(f"optimize: {reason} ({error})") from error
            raise
    return optimized


def _advice_on_example(example: object) -> str:
    if hasattr(example, "__array_interface__"):
        return "; torch.from_numpy(example) makes a tensor of an array"
    return ""


def _differing_dtypes(module: Any, args: tuple[Any, ...]) -> str | None:
    """Advice for a module that fails on arguments of another floating-point dtype than that of its
    parameters; None if they have the same."""
    own = {p.dtype for p in module.parameters() if p.dtype.is_floating_point}
    dtypes = [getattr(each, "dtype", None) for each in args]
    given = {dtype for dtype in dtypes if dtype is not None and dtype.is_floating_point}
    if len(own) != 1 or len(given) != 1 or own == given:
        return None
    (mine,), (theirs,) = own, given
    return (
        f"{type(module).__name__} has parameters of {mine} and fails on an example of {theirs}; "
        f"valid is example.to({mine}), or the module converted by module.to({theirs})"
    )


def _advice_on_module(module: object) -> str:
    if any(kind.__module__.startswith("minidnn.") for kind in type(module).__mro__):
        return "; md.compile(network, shape) is for networks of minidnn's own"
    return instead_of_layer(module)
