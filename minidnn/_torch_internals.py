"""All private names of PyTorch that minidnn uses, in one place.

Private names come and go from one version to the next.  All of them are looked up when this module
is imported, before anything else of PyTorch is used: a version that lacks one is refused at once,
with the names of all that it lacks, and never in the middle of a capture.  A name that only newer
accepted versions have is looked up with the version that introduced it, and may be None.

No other module of minidnn uses private names, except :mod:`minidnn._torch_streams`.  The private
attributes of PyTorch's objects that modules read are in :data:`ATTRIBUTES`.
``tests/torch/test_internals.py`` checks both.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from typing import Any

import torch
from torch import nn

from minidnn.errors import DeviceError

_missing: list[str] = []


def _version() -> tuple[int, ...]:
    found = re.match(r"(\d+)\.(\d+)", torch.__version__)
    return tuple(map(int, found.groups())) if found else (0, 0)


#: The version of PyTorch: major and minor number.
VERSION = _version()


def _ask(name: str, since: tuple[int, int] = (0, 0)) -> Any:
    """Looks up a dotted name of PyTorch; None if there is none, which is noted as missing unless
    this version is older than ``since``."""
    path, _, last = name.rpartition(".")
    owner: Any = torch.ops.aten if path == "torch.ops.aten" else None
    with contextlib.suppress(ImportError):
        owner = owner or import_module(path)
    if not hasattr(owner, last) and since <= VERSION:
        _missing.append(name)
    return getattr(owner, last, None)


def _lacks(names: Sequence[str]) -> DeviceError:
    return DeviceError(
        f"PyTorch {torch.__version__} lacks {', '.join(names)}, which minidnn needs; install a "
        "version that minidnn is tested with: pip install 'minidnn[torch]'"
    )


# Kinds of objects.
OpOverload = _ask("torch._ops.OpOverload")
OpOverloadPacket = _ask("torch._ops.OpOverloadPacket")
HigherOrderOperator = _ask("torch._ops.HigherOrderOperator")
FakeTensor = _ask("torch._subclasses.fake_tensor.FakeTensor")
FunctionalTensor = _ask("torch._subclasses.functional_tensor.FunctionalTensor")
BatchNorm = _ask("torch.nn.modules.batchnorm._BatchNorm")

# Hooks.
RemovableHandle = _ask("torch.utils.hooks.RemovableHandle")
#: The global hooks, which all modules call.
GLOBAL_HOOKS: tuple[Any, ...] = (
    _ask("torch.nn.modules.module._global_forward_pre_hooks"),
    _ask("torch.nn.modules.module._global_forward_hooks"),
    _ask("torch.nn.modules.module._global_backward_pre_hooks"),
    _ask("torch.nn.modules.module._global_backward_hooks"),
)

# Captures.
dynamo = _ask("torch._dynamo")
dynamo_config = _ask("torch._dynamo.config")
DynamoError: Any = _ask("torch._dynamo.exc.TorchDynamoException")
DynamoRuntimeError: Any = _ask("torch._dynamo.exc.TorchRuntimeError")
reset_code = _ask("torch._C._dynamo.eval_frame.reset_code")
RecompileLimitError: Any = _ask("torch._dynamo.exc.FailOnRecompileLimitHit")
RandomVariable = _ask("torch._dynamo.variables.misc.RandomVariable")
compile_lock: Any = _ask("torch._dynamo.convert_frame.compile_lock")
NotConverted = _ask("torch._dynamo.types.ConvertFrameReturn")
aot_export_module = _ask("torch._functorch.aot_autograd.aot_export_module")
FakeTensorMode = _ask("torch._subclasses.fake_tensor.FakeTensorMode")
ShapeEnv = _ask("torch.fx.experimental.symbolic_shapes.ShapeEnv")
without_torch_function = _ask("torch._C.DisableTorchFunction")
set_grad_enabled = _ask("torch._C._set_grad_enabled")
#: The function that ``tensor.data`` becomes in Dynamo's graphs.
data_of = _ask("torch._C._autograd._get_data_attr")
enter_inference_mode = _ask("torch.autograd.grad_mode._enter_inference_mode")
exit_inference_mode = _ask("torch.autograd.grad_mode._exit_inference_mode")
enter_autocast = _ask("torch.amp.autocast_mode._enter_autocast")
exit_autocast = _ask("torch.amp.autocast_mode._exit_autocast")

# Operations that appear in captures only, never in users' code.
to_copy = _ask("torch.ops.aten._to_copy")

# Nested containers of tensors.
pytree = _ask("torch.utils._pytree")

# The modes under which a call is computed now.
are_transforms_active = _ask("torch._C._are_functorch_transforms_active")
count_of_modes = _ask("torch._C._len_torch_dispatch_stack")
is_tracing = _ask("torch._C._is_tracing")
is_batched = _ask("torch._C._functorch.is_legacy_batchedtensor")
#: Guards: compare tensors with others in class, dtype, device, sizes, strides and dispatch keys.
TensorGuards: Any = _ask("torch._C._dynamo.guards.TensorGuards")
is_wrapper = _ask("torch.utils._python_dispatch.is_traceable_wrapper_subclass")
#: Whether the backward pass that runs now retains the graph (``retain_graph``) for another one.
keeps_graph: Any = _ask("torch._C._autograd._get_current_graph_task_keep_graph")

# Several tensors at once.
add_each = _ask("torch._foreach_add_")
copy_each = _ask("torch._foreach_copy_")

# On GPUs.
_has_cuda = torch.backends.cuda.is_built()
wait_on_gpu: Any = _ask("torch.cuda._sleep") if _has_cuda else None
if _has_cuda and _version() < (2, 12) and torch.cuda.device_count() == 0:
    # A build for GPUs on a machine without one: the state that the first capture sets here belongs
    # to its thread, and PyTorch 2.11 crashes when it captures after that thread has ended.
    _ask("torch._C._ensureCUDADeviceGuardSet")()

#: Modules whose attributes are read at each use.
_forward_gradients = _ask("torch.autograd.forward_ad")
_ask("torch.autograd.forward_ad._current_level")
_compiler = _ask("torch.compiler")
_ask("torch.compiler._is_exporting_flag")


def are_forward_gradients_computed() -> bool:
    """Whether tensors are dual numbers now."""
    return bool(_forward_gradients._current_level >= 0)


def is_exporting() -> bool:
    """Like ``torch.compiler.is_exporting``, which Dynamo of PyTorch 2.11 takes for True."""
    return bool(_compiler._is_exporting_flag)


@contextlib.contextmanager
def unguarded(function: Callable[..., Any]) -> Iterator[None]:
    """Has Dynamo take a function's result as a constant, without a guard that it stays the same;
    ``torch.compiler.assume_constant_result`` does so for ever."""
    marked: Any = torch.compiler.assume_constant_result(function)
    try:
        yield
    finally:
        del marked._dynamo_marked_constant


#: Names that benchmarks alone use, since they take seconds to import.
DEFERRED = (
    "torch._inductor.config",
    "torch._inductor.metrics",
    "torch._inductor.output_code.CompiledFxGraph",
)


def deferred(name: str) -> Any:
    """Looks up one of :data:`DEFERRED`; DeviceError if PyTorch lacks it."""
    path, _, last = name.rpartition(".")
    with contextlib.suppress(ImportError):
        import_module(name)
    found = getattr(import_module(path), last, None)
    if found is None:
        raise _lacks([name])
    return found


#: Private attributes that are read of PyTorch's objects, each with an object that has them.
ATTRIBUTES: tuple[tuple[Any, tuple[str, ...]], ...] = (
    (
        nn.Module(),
        (
            *("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"),
            *("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"),
            "_compiled_call_impl",
            *("_state_dict_hooks", "_state_dict_pre_hooks"),
            *("_load_state_dict_pre_hooks", "_load_state_dict_post_hooks"),
        ),
    ),
    (torch.Tensor, ("_version",)),
    (torch.UntypedStorage(0), ("_cdata",)),
    (torch.ops.aten.add.Tensor, ("_schema", "_overloadname")),
)
_missing += [
    f"{owner.__name__ if isinstance(owner, type) else type(owner).__name__}.{name}"
    for owner, names in ATTRIBUTES
    for name in names
    if not hasattr(owner, name)
]
if _missing:
    raise _lacks(_missing)
