"""minidnn: define a convolutional network, fuse it depth first, run it.

    import minidnn as md
    from minidnn import layers as L

    net = md.Sequential(L.Conv2d(3, 64, 3, padding=1), L.BatchNorm2d(64), L.ReLU(), L.MaxPool2d(2))
    exe = md.compile(net, (16, 3, 224, 224))
    y = exe(x)

Importing minidnn imports nothing but its exceptions, and notes which process it is, for forks:
every other public name is imported when it is first used (PEP 562), so that the import stays fast
and touches no optional dependency.
"""

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from minidnn import _forks  # noqa: F401 (it notes which process imports it)
from minidnn.errors import (
    CompileError,
    DeviceError,
    DownloadError,
    GraphError,
    MiniDNNError,
    MiniDNNWarning,
    OutOfMemoryError,
    TrainingError,
    UnsupportedError,
    WeightsError,
    did_you_mean,
)

if TYPE_CHECKING:
    import minidnn.batch as batch
    import minidnn.cudnn as cudnn
    import minidnn.data as data
    import minidnn.graph.expression as scalar
    import minidnn.layers as layers
    import minidnn.models as models
    import minidnn.training.callbacks as callbacks
    import minidnn.training.losses as losses
    import minidnn.training.metrics as metrics
    import minidnn.training.optim as optim
    from minidnn.acceleration.optimize import optimize
    from minidnn.comparison.compare import compare
    from minidnn.compiler import compile
    from minidnn.dynamic.dim import Dim
    from minidnn.frontends.onnx.convert import load_onnx
    from minidnn.gradients.reverse import gradient
    from minidnn.layers import Input, Layer, Model, Sequential
    from minidnn.layers.calibration import calibrate
    from minidnn.loading import load
    from minidnn.preparation import Preparation
    from minidnn.prepared_files import load_preparation
    from minidnn.quantization.quantize import quantize
    from minidnn.runtime.store import Store
    from minidnn.saving import save_graph, save_onnx
    from minidnn.storage import load_graph
    from minidnn.training.trainer import Trainer
    from minidnn.weights import load_weights, save_weights

__version__ = "0.1.0"

# Public name -> where it is: "module" for a module itself, "module:attribute" for something in it.
# The block above and __all__ tell the same to type checkers; tests/packaging holds them together.
_LAZY = {
    "Dim": "minidnn.dynamic.dim:Dim",
    "Input": "minidnn.layers:Input",
    "Layer": "minidnn.layers:Layer",
    "Model": "minidnn.layers:Model",
    "Preparation": "minidnn.preparation:Preparation",
    "Sequential": "minidnn.layers:Sequential",
    "Store": "minidnn.runtime.store:Store",
    "Trainer": "minidnn.training.trainer:Trainer",
    "batch": "minidnn.batch",
    "calibrate": "minidnn.layers.calibration:calibrate",
    "callbacks": "minidnn.training.callbacks",
    "compare": "minidnn.comparison.compare:compare",
    "compile": "minidnn.compiler:compile",
    "cudnn": "minidnn.cudnn",
    "data": "minidnn.data",
    "gradient": "minidnn.gradients.reverse:gradient",
    "layers": "minidnn.layers",
    "load": "minidnn.loading:load",
    "load_graph": "minidnn.storage:load_graph",
    "load_onnx": "minidnn.frontends.onnx.convert:load_onnx",
    "load_preparation": "minidnn.prepared_files:load_preparation",
    "load_weights": "minidnn.weights:load_weights",
    "losses": "minidnn.training.losses",
    "metrics": "minidnn.training.metrics",
    "models": "minidnn.models",
    "optim": "minidnn.training.optim",
    "optimize": "minidnn.acceleration.optimize:optimize",
    "quantize": "minidnn.quantization.quantize:quantize",
    "save_graph": "minidnn.saving:save_graph",
    "save_onnx": "minidnn.saving:save_onnx",
    "save_weights": "minidnn.weights:save_weights",
    "scalar": "minidnn.graph.expression",
}

__all__ = [
    "CompileError",
    "DeviceError",
    "Dim",
    "DownloadError",
    "GraphError",
    "Input",
    "Layer",
    "MiniDNNError",
    "MiniDNNWarning",
    "Model",
    "OutOfMemoryError",
    "Preparation",
    "Sequential",
    "Store",
    "Trainer",
    "TrainingError",
    "UnsupportedError",
    "WeightsError",
    "__version__",
    "batch",
    "calibrate",
    "callbacks",
    "compare",
    "compile",
    "cudnn",
    "data",
    "gradient",
    "layers",
    "load",
    "load_graph",
    "load_onnx",
    "load_preparation",
    "load_weights",
    "losses",
    "metrics",
    "models",
    "optim",
    "optimize",
    "quantize",
    "save_graph",
    "save_onnx",
    "save_weights",
    "scalar",
]

# The zoo's source is in models/ beside this package and is installed as minidnn.models.  In a
# checkout there is no minidnn/models, so the package also looks where the checkout keeps it.  An
# installed minidnn has its own models folder and never gets here.
_here = Path(__file__).parent
if not (_here / "models").is_dir() and (_here.parent / "models" / "__init__.py").is_file():
    __path__.append(str(_here.parent))


if not TYPE_CHECKING:  # a type checker that saw this would accept any name

    def __getattr__(name: str) -> object:
        """Import the public attribute ``name`` on first use.

        Raises AttributeError, naming what there is, when minidnn has no such attribute.
        """
        if name not in _LAZY:
            from minidnn._habits import FACE, AbsentError

            if name in FACE:
                raise AbsentError(f"minidnn has no {name}: {FACE[name]}")
            if name[0].isupper() and hasattr(import_module("minidnn.layers"), name):
                raise AbsentError(f"minidnn has no {name}: it is minidnn.layers.{name}")
            hint = did_you_mean(name, __all__) or f"; it has: {', '.join(sorted(__all__))}"
            raise AttributeError(f"module 'minidnn' has no attribute {name!r}{hint}")
        module, _, attribute = _LAZY[name].partition(":")
        value: object = import_module(module)
        if attribute:
            value = getattr(value, attribute)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _rest_before_forks() -> None:
    """Ends PyTorch's OpenMP threads before a fork: the library would go on using them in the child,
    which has none, and wait for them for ever."""
    if hasattr(sys.modules.get("torch"), "get_num_threads"):
        import_module("minidnn.acceleration.threads").end()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_rest_before_forks)
