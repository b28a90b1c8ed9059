"""Advice for names of PyTorch and Keras that minidnn lacks: what to write here instead.

Access to such an attribute raises an error with the advice.  It is an ``AttributeError``, so that
``hasattr`` and ``getattr`` with a default work as usual.
"""

from __future__ import annotations

from types import FunctionType
from typing import Any, NoReturn

from minidnn.errors import UnsupportedError

TRAINING = "md.Trainer(net, shape, loss, optimizer) trains a network"
_COMPILE = "md.compile(net, shape, {0}) compiles a network"
_DEVICE = f"a network is on no device: {_COMPILE.format('device={0!r}')} for one"
_PRECISION = f"parameters keep their dtype: {_COMPILE.format('precision={0!r}')} for another one"
_HOOKS = "layers do not run one by one: what forward returns besides is an output of the network"
_CALL = "md.compile(net, shape) gives an executable, which is called with arrays"

_OF_TRAINING = dict.fromkeys(
    (
        *("backward", "fit", "grad", "gradients", "optimizer", "requires_grad", "requires_grad_"),
        *("retain_grad", "train_step", "zero_grad"),
    ),
    TRAINING,
)

#: Advice for attributes of a parameter, by name.
PARAMETER = _OF_TRAINING

#: Advice for attributes of a layer, and so of a network.
LAYER = _OF_TRAINING | {
    "add_module": "a layer is assigned to an attribute",
    "apply": "net.named_layers() gives all layers, with their paths",
    "bfloat16": _PRECISION.format("bfloat16"),
    "buffers": "net.state_dict() has stored statistics beside the parameters",
    "compile": _CALL,
    "cpu": _DEVICE.format("cpu"),
    "cuda": _DEVICE.format("cuda"),
    "double": _PRECISION.format("float64"),
    "evaluate": _CALL,
    "float": _PRECISION.format("float32"),
    "get_submodule": "dict(net.named_layers())[path] is the layer of a path",
    "half": _PRECISION.format("float16"),
    "load_weights": "net.load_state_dict(md.load_weights(path)) loads weights",
    "modules": "net.named_layers() gives all layers, with their paths",
    "named_buffers": "net.state_dict() has stored statistics beside the parameters",
    "named_children": "net.children() gives names and layers",
    "named_modules": "net.named_layers() gives all layers, with their paths",
    "parameters": "net.named_parameters() gives names and parameters, net.state_dict() arrays; for "
    f"an optimizer, {TRAINING}",
    "predict": _CALL,
    "register_buffer": "a layers.Parameter is assigned to an attribute",
    "register_forward_hook": _HOOKS,
    "register_forward_pre_hook": _HOOKS,
    "register_full_backward_hook": TRAINING,
    "register_parameter": "a layers.Parameter is assigned to an attribute",
    "save": "md.save_weights(net.state_dict(), path) saves the weights",
    "save_weights": "md.save_weights(net.state_dict(), path) saves the weights",
    "to": _DEVICE.format("cuda") + f"; {_PRECISION.format('float16')}",
}

_FIXED = "an executable is compiled for one device and precision: md.compile takes both"
_WEIGHTS = "an executable has its weights in it: load and save those of the network, and compile it"
_ARRAYS = "an executable is called with arrays: y = exe(x)"

#: Advice for attributes of an executable.
EXECUTABLE = (
    _OF_TRAINING
    | dict.fromkeys(("bfloat16", "cpu", "cuda", "double", "float", "half", "to"), _FIXED)
    | dict.fromkeys(("load_state_dict", "named_parameters", "parameters", "state_dict"), _WEIGHTS)
    | dict.fromkeys(("forward", "predict", "infer"), _ARRAYS)
)

_NUMPY = "arrays are NumPy's, PyTorch's or anything with __dlpack__, taken as they are"
_NO_GRADIENTS = "nothing is recorded for gradients, so there is nothing to switch off"

#: Advice for attributes of the package itself.
FACE = {
    "Module": "md.Layer is the base class of layers and networks",
    "Tensor": _NUMPY,
    "array": _NUMPY,
    "asarray": _NUMPY,
    "cuda": "md.compile(net, shape, device='cuda') compiles for a GPU",
    "device": "md.compile(net, shape, device='cuda') compiles for a device",
    "enable_grad": TRAINING,
    "from_numpy": _NUMPY,
    "grad": TRAINING,
    "inference_mode": _NO_GRADIENTS,
    "jit": "md.optimize(module, x) makes a PyTorch module faster",
    "nn": "minidnn.layers has the layers",
    "no_grad": _NO_GRADIENTS,
    "save": "md.save_weights writes weights, md.save_graph a graph, md.save_onnx an ONNX file, "
    "exe.save(path) what is compiled",
    "tensor": _NUMPY,
    "train": TRAINING,
}


#: Advice for attributes of :mod:`minidnn.layers`.
LAYERS = {
    "Dense": "minidnn.layers.Linear is one, of so many input and output features",
    "Module": "minidnn.layers.Layer is the base class of layers and networks",
}


class AbsentError(UnsupportedError, AttributeError):
    """An attribute that other libraries have and minidnn lacks."""


def instead_of_layer(given: object) -> str:
    """The end of a message about an object that is given where a layer is wanted, or ""."""
    if isinstance(given, type):
        return f"; it is a class: {given.__name__}(...) makes one"
    if isinstance(given, FunctionType):
        return f"; it is a function: is it to be called, as {given.__name__}()?"
    if any(kind.__module__.startswith("torch.nn.") for kind in type(given).__mro__):
        return (
            "; it is PyTorch's: minidnn.layers has layers of PyTorch's names, and "
            "md.compile(module, shape) and md.optimize(module, x) take whole modules"
        )
    return ""


def check_mode(owner: Any, mode: bool) -> None:
    """Does what ``train(mode)`` of a network or an executable does: nothing, or an error."""
    if mode:
        raise UnsupportedError(f"{type(owner).__name__}.train(): {TRAINING}")


def absent(owner: Any, name: str, habits: dict[str, str]) -> NoReturn:
    """Raises what ``owner.name`` raises, from ``__getattr__``."""
    if name in habits and not hasattr(type(owner), name):  # not a property that failed
        kind = type(owner).__name__
        raise AbsentError(f"{kind} has no {name}: {habits[name]}")
    object.__getattribute__(owner, name)  # Python's own error, or that of the property
    raise AssertionError(f"{owner!r}.{name} is there only at times")
