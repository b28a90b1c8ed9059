"""Find libcudnn 9, load it once, and hand out its functions with their prototypes.

The library is looked for in this order:

1. the path given to :func:`load` (a file, or a folder that holds the library);
2. the environment variable ``MINIDNN_CUDNN`` (likewise);
3. the copy that this process has already loaded, for instance through PyTorch, because two
   copies of cuDNN in one process are a source of crashes;
4. the wheel ``nvidia-cudnn-cu13`` or ``nvidia-cudnn-cu12`` (both install ``nvidia/cudnn``);
5. the system: the dynamic loader's own search path, then ``$CUDNN_PATH``,
   ``$CUDA_PATH`` and ``$CUDA_HOME``.

A library that is loaded here is found by its name when PyTorch is imported afterwards, so the
order of imports does not matter.  Nothing is loaded before the first use.

:data:`PROTOTYPES` holds the argument types of each function.  They are ctypes types with names that
say what they carry, so that a row reads like the declaration in cuDNN's headers.
``tests/cudnn/test_prototypes.py`` compares each row with those declarations.  All functions return
a ``cudnnStatus_t``, except the few in :data:`RESULTS`.

Source: ``cudnn_graph_v9.h``, ``cudnn_ops_v9.h``, ``cudnn_cnn_v9.h``.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from minidnn.errors import DeviceError, MiniDNNWarning

# Pointers.  A Python int is an address, None is NULL, and byref(...) or an array work too.
Handle = ctypes.c_void_p  # cudnnHandle_t
Stream = ctypes.c_void_p  # cudaStream_t
Desc = ctypes.c_void_p  # any cudnn...Descriptor_t
Data = ctypes.c_void_p  # void *: device memory, or an attribute's elements on the host
Scalar = ctypes.c_void_p  # const void *: alpha, beta and fill values on the host
Ints = ctypes.c_void_p  # an array of 32-bit integers on the host
Out = ctypes.c_void_p  # where the function writes its result

# Values.
Enum = ctypes.c_int
Int = ctypes.c_int
UInt = ctypes.c_uint
Int64 = ctypes.c_int64
UInt64 = ctypes.c_ulonglong
Size = ctypes.c_size_t
Float = ctypes.c_float
Double = ctypes.c_double

# fmt: off
#: Argument types of each function.
PROTOTYPES: dict[str, tuple[Any, ...]] = {
    # library and handle
    "cudnnGetVersion": (),
    "cudnnGetCudartVersion": (),
    "cudnnGetErrorString": (Enum,),
    "cudnnGetLastErrorString": (Out, Size),
    "cudnnQueryRuntimeError": (Handle, Out, Enum, Out),
    "cudnnCreate": (Out,),
    "cudnnDestroy": (Handle,),
    "cudnnSetStream": (Handle, Stream),
    "cudnnGetStream": (Handle, Out),
    # backend (graph) descriptors
    "cudnnBackendCreateDescriptor": (Enum, Out),
    "cudnnBackendDestroyDescriptor": (Desc,),
    "cudnnBackendInitialize": (Desc,),
    "cudnnBackendFinalize": (Desc,),
    "cudnnBackendSetAttribute": (Desc, Enum, Enum, Int64, Data),
    "cudnnBackendGetAttribute": (Desc, Enum, Enum, Int64, Out, Data),
    "cudnnBackendExecute": (Handle, Desc, Desc),
    # tensor descriptors
    "cudnnCreateTensorDescriptor": (Out,),
    "cudnnSetTensor4dDescriptor": (Desc, Enum, Enum, Int, Int, Int, Int),
    "cudnnSetTensor4dDescriptorEx": (Desc, Enum, Int, Int, Int, Int, Int, Int, Int, Int),
    "cudnnGetTensor4dDescriptor": (Desc, Out, Out, Out, Out, Out, Out, Out, Out, Out),
    "cudnnSetTensorNdDescriptor": (Desc, Enum, Int, Ints, Ints),
    "cudnnSetTensorNdDescriptorEx": (Desc, Enum, Enum, Int, Ints),
    "cudnnGetTensorNdDescriptor": (Desc, Int, Out, Out, Ints, Ints),
    "cudnnGetTensorSizeInBytes": (Desc, Out),
    "cudnnDestroyTensorDescriptor": (Desc,),
    # filter descriptors
    "cudnnCreateFilterDescriptor": (Out,),
    "cudnnSetFilter4dDescriptor": (Desc, Enum, Enum, Int, Int, Int, Int),
    "cudnnGetFilter4dDescriptor": (Desc, Out, Out, Out, Out, Out, Out),
    "cudnnSetFilterNdDescriptor": (Desc, Enum, Enum, Int, Ints),
    "cudnnGetFilterNdDescriptor": (Desc, Int, Out, Out, Out, Ints),
    "cudnnGetFilterSizeInBytes": (Desc, Out),
    "cudnnDestroyFilterDescriptor": (Desc,),
    # tensor transform
    "cudnnInitTransformDest": (Desc, Desc, Desc, Out),
    "cudnnCreateTensorTransformDescriptor": (Out,),
    "cudnnSetTensorTransformDescriptor": (Desc, UInt, Enum, Ints, Ints, Ints, Enum),
    "cudnnGetTensorTransformDescriptor": (Desc, UInt, Out, Ints, Ints, Ints, Out),
    "cudnnDestroyTensorTransformDescriptor": (Desc,),
    "cudnnTransformTensor": (Handle, Scalar, Desc, Data, Scalar, Desc, Data),
    "cudnnTransformTensorEx": (Handle, Desc, Scalar, Desc, Data, Scalar, Desc, Data),
    "cudnnTransformFilter": (Handle, Desc, Scalar, Desc, Data, Scalar, Desc, Data),
    # op-tensor, add, set, scale
    "cudnnAddTensor": (Handle, Scalar, Desc, Data, Scalar, Desc, Data),
    "cudnnCreateOpTensorDescriptor": (Out,),
    "cudnnSetOpTensorDescriptor": (Desc, Enum, Enum, Enum),
    "cudnnGetOpTensorDescriptor": (Desc, Out, Out, Out),
    "cudnnDestroyOpTensorDescriptor": (Desc,),
    "cudnnOpTensor": (Handle, Desc, Scalar, Desc, Data, Scalar, Desc, Data, Scalar, Desc, Data),
    "cudnnSetTensor": (Handle, Desc, Data, Scalar),
    "cudnnScaleTensor": (Handle, Desc, Data, Scalar),
    # reduction
    "cudnnCreateReduceTensorDescriptor": (Out,),
    "cudnnSetReduceTensorDescriptor": (Desc, Enum, Enum, Enum, Enum, Enum),
    "cudnnGetReduceTensorDescriptor": (Desc, Out, Out, Out, Out, Out),
    "cudnnDestroyReduceTensorDescriptor": (Desc,),
    "cudnnGetReductionIndicesSize": (Handle, Desc, Desc, Desc, Out),
    "cudnnGetReductionWorkspaceSize": (Handle, Desc, Desc, Desc, Out),
    "cudnnReduceTensor": (
        Handle, Desc, Data, Size, Data, Size, Scalar, Desc, Data, Scalar, Desc, Data,
    ),
    # convolution
    "cudnnCreateConvolutionDescriptor": (Out,),
    "cudnnDestroyConvolutionDescriptor": (Desc,),
    "cudnnSetConvolutionMathType": (Desc, Enum),
    "cudnnGetConvolutionMathType": (Desc, Out),
    "cudnnSetConvolutionGroupCount": (Desc, Int),
    "cudnnGetConvolutionGroupCount": (Desc, Out),
    "cudnnSetConvolution2dDescriptor": (Desc, Int, Int, Int, Int, Int, Int, Enum, Enum),
    "cudnnGetConvolution2dDescriptor": (Desc, Out, Out, Out, Out, Out, Out, Out, Out),
    "cudnnSetConvolutionNdDescriptor": (Desc, Int, Ints, Ints, Ints, Enum, Enum),
    "cudnnGetConvolutionNdDescriptor": (Desc, Int, Out, Ints, Ints, Ints, Out, Out),
    "cudnnGetConvolution2dForwardOutputDim": (Desc, Desc, Desc, Out, Out, Out, Out),
    "cudnnGetConvolutionNdForwardOutputDim": (Desc, Desc, Desc, Int, Ints),
    "cudnnGetConvolutionForwardAlgorithmMaxCount": (Handle, Out),
    "cudnnGetConvolutionForwardAlgorithm_v7": (Handle, Desc, Desc, Desc, Desc, Int, Out, Out),
    "cudnnFindConvolutionForwardAlgorithm": (Handle, Desc, Desc, Desc, Desc, Int, Out, Out),
    "cudnnFindConvolutionForwardAlgorithmEx": (
        Handle, Desc, Data, Desc, Data, Desc, Desc, Data, Int, Out, Out, Data, Size,
    ),
    "cudnnGetConvolutionForwardWorkspaceSize": (Handle, Desc, Desc, Desc, Desc, Enum, Out),
    "cudnnConvolutionForward": (
        Handle, Scalar, Desc, Data, Desc, Data, Desc, Enum, Data, Size, Scalar, Desc, Data,
    ),
    "cudnnConvolutionBiasActivationForward": (
        Handle, Scalar, Desc, Data, Desc, Data, Desc, Enum, Data, Size, Scalar, Desc, Data, Desc,
        Data, Desc, Desc, Data,
    ),
    "cudnnGetConvolutionBackwardDataAlgorithmMaxCount": (Handle, Out),
    "cudnnFindConvolutionBackwardDataAlgorithm": (Handle, Desc, Desc, Desc, Desc, Int, Out, Out),
    "cudnnFindConvolutionBackwardDataAlgorithmEx": (
        Handle, Desc, Data, Desc, Data, Desc, Desc, Data, Int, Out, Out, Data, Size,
    ),
    "cudnnGetConvolutionBackwardDataAlgorithm_v7": (
        Handle, Desc, Desc, Desc, Desc, Int, Out, Out,
    ),
    "cudnnGetConvolutionBackwardDataWorkspaceSize": (Handle, Desc, Desc, Desc, Desc, Enum, Out),
    "cudnnConvolutionBackwardData": (
        Handle, Scalar, Desc, Data, Desc, Data, Desc, Enum, Data, Size, Scalar, Desc, Data,
    ),
    "cudnnGetConvolutionBackwardFilterAlgorithmMaxCount": (Handle, Out),
    "cudnnFindConvolutionBackwardFilterAlgorithm": (
        Handle, Desc, Desc, Desc, Desc, Int, Out, Out,
    ),
    "cudnnFindConvolutionBackwardFilterAlgorithmEx": (
        Handle, Desc, Data, Desc, Data, Desc, Desc, Data, Int, Out, Out, Data, Size,
    ),
    "cudnnGetConvolutionBackwardFilterAlgorithm_v7": (
        Handle, Desc, Desc, Desc, Desc, Int, Out, Out,
    ),
    "cudnnGetConvolutionBackwardFilterWorkspaceSize": (Handle, Desc, Desc, Desc, Desc, Enum, Out),
    "cudnnConvolutionBackwardFilter": (
        Handle, Scalar, Desc, Data, Desc, Data, Desc, Enum, Data, Size, Scalar, Desc, Data,
    ),
    "cudnnConvolutionBackwardBias": (Handle, Scalar, Desc, Data, Scalar, Desc, Data),
    # pooling
    "cudnnCreatePoolingDescriptor": (Out,),
    "cudnnSetPooling2dDescriptor": (Desc, Enum, Enum, Int, Int, Int, Int, Int, Int),
    "cudnnGetPooling2dDescriptor": (Desc, Out, Out, Out, Out, Out, Out, Out, Out),
    "cudnnSetPoolingNdDescriptor": (Desc, Enum, Enum, Int, Ints, Ints, Ints),
    "cudnnGetPoolingNdDescriptor": (Desc, Int, Out, Out, Out, Ints, Ints, Ints),
    "cudnnGetPoolingNdForwardOutputDim": (Desc, Desc, Int, Ints),
    "cudnnGetPooling2dForwardOutputDim": (Desc, Desc, Out, Out, Out, Out),
    "cudnnDestroyPoolingDescriptor": (Desc,),
    "cudnnPoolingForward": (Handle, Desc, Scalar, Desc, Data, Scalar, Desc, Data),
    "cudnnPoolingBackward": (
        Handle, Desc, Scalar, Desc, Data, Desc, Data, Desc, Data, Scalar, Desc, Data,
    ),
    # activation
    "cudnnCreateActivationDescriptor": (Out,),
    "cudnnSetActivationDescriptor": (Desc, Enum, Enum, Double),
    "cudnnGetActivationDescriptor": (Desc, Out, Out, Out),
    "cudnnSetActivationDescriptorSwishBeta": (Desc, Double),
    "cudnnGetActivationDescriptorSwishBeta": (Desc, Out),
    "cudnnDestroyActivationDescriptor": (Desc,),
    "cudnnActivationForward": (Handle, Desc, Scalar, Desc, Data, Scalar, Desc, Data),
    "cudnnActivationBackward": (
        Handle, Desc, Scalar, Desc, Data, Desc, Data, Desc, Data, Scalar, Desc, Data,
    ),
    # softmax
    "cudnnSoftmaxForward": (Handle, Enum, Enum, Scalar, Desc, Data, Scalar, Desc, Data),
    "cudnnSoftmaxBackward": (
        Handle, Enum, Enum, Scalar, Desc, Data, Desc, Data, Scalar, Desc, Data,
    ),
    # dropout
    "cudnnCreateDropoutDescriptor": (Out,),
    "cudnnDestroyDropoutDescriptor": (Desc,),
    "cudnnDropoutGetStatesSize": (Handle, Out),
    "cudnnDropoutGetReserveSpaceSize": (Desc, Out),
    "cudnnSetDropoutDescriptor": (Desc, Handle, Float, Data, Size, UInt64),
    "cudnnRestoreDropoutDescriptor": (Desc, Handle, Float, Data, Size, UInt64),
    "cudnnGetDropoutDescriptor": (Desc, Handle, Out, Out, Out),
    "cudnnDropoutForward": (Handle, Desc, Desc, Data, Desc, Data, Data, Size),
    "cudnnDropoutBackward": (Handle, Desc, Desc, Data, Desc, Data, Data, Size),
    # batch normalisation
    "cudnnDeriveBNTensorDescriptor": (Desc, Desc, Enum),
    "cudnnBatchNormalizationForwardInference": (
        Handle, Enum, Scalar, Scalar, Desc, Data, Desc, Data, Desc, Data, Data, Data, Data,
        Double,
    ),
    "cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize": (
        Handle, Enum, Enum, Desc, Desc, Desc, Desc, Desc, Out,
    ),
    "cudnnGetBatchNormalizationBackwardExWorkspaceSize": (
        Handle, Enum, Enum, Desc, Desc, Desc, Desc, Desc, Desc, Desc, Out,
    ),
    "cudnnGetBatchNormalizationTrainingExReserveSpaceSize": (Handle, Enum, Enum, Desc, Desc, Out),
    "cudnnBatchNormalizationForwardTraining": (
        Handle, Enum, Scalar, Scalar, Desc, Data, Desc, Data, Desc, Data, Data, Double, Data,
        Data, Double, Data, Data,
    ),
    "cudnnBatchNormalizationForwardTrainingEx": (
        Handle, Enum, Enum, Scalar, Scalar, Desc, Data, Desc, Data, Desc, Data, Desc, Data, Data,
        Double, Data, Data, Double, Data, Data, Desc, Data, Size, Data, Size,
    ),
    "cudnnBatchNormalizationBackward": (
        Handle, Enum, Scalar, Scalar, Scalar, Scalar, Desc, Data, Desc, Data, Desc, Data, Desc,
        Data, Data, Data, Double, Data, Data,
    ),
    "cudnnBatchNormalizationBackwardEx": (
        Handle, Enum, Enum, Scalar, Scalar, Scalar, Scalar, Desc, Data, Desc, Data, Desc, Data,
        Desc, Data, Desc, Data, Desc, Data, Data, Data, Data, Double, Data, Data, Desc, Data,
        Size, Data, Size,
    ),
    # local response normalisation
    "cudnnCreateLRNDescriptor": (Out,),
    "cudnnSetLRNDescriptor": (Desc, UInt, Double, Double, Double),
    "cudnnGetLRNDescriptor": (Desc, Out, Out, Out, Out),
    "cudnnDestroyLRNDescriptor": (Desc,),
    "cudnnLRNCrossChannelForward": (Handle, Desc, Enum, Scalar, Desc, Data, Scalar, Desc, Data),
    "cudnnLRNCrossChannelBackward": (
        Handle, Desc, Enum, Scalar, Desc, Data, Desc, Data, Desc, Data, Scalar, Desc, Data,
    ),
}
# fmt: on

#: Result types of the functions that do not return a status.
RESULTS: dict[str, Any] = {
    "cudnnGetVersion": ctypes.c_size_t,
    "cudnnGetCudartVersion": ctypes.c_size_t,
    "cudnnGetErrorString": ctypes.c_char_p,
    "cudnnGetLastErrorString": None,
}


ENVIRONMENT = "MINIDNN_CUDNN"
FILE_NAME = "cudnn64_9.dll" if sys.platform == "win32" else "libcudnn.so.9"
OLDEST = 90000
HOW_TO_INSTALL = (
    "install it with 'pip install nvidia-cudnn-cu13' (CUDA 13) or 'pip install "
    f"nvidia-cudnn-cu12' (CUDA 12), or set {ENVIRONMENT} to the path of {FILE_NAME}"
)

_lock = threading.Lock()
_library: Library | None = None


class Library:
    """A loaded libcudnn: each function of :data:`~minidnn.cudnn.library.PROTOTYPES` is an
    attribute, with its argument types set.

    ``path`` is the file, ``version`` cuDNN's number (91900 for 9.19.0).  A function that this
    version of the library lacks raises :class:`~minidnn.errors.DeviceError` when asked for.
    """

    def __init__(self, dll: Any, path: str) -> None:
        self._dll = dll
        self.path = path
        self.version = int(self.cudnnGetVersion())

    def __getattr__(self, name: str) -> Any:
        # Only reached on the first use of a name: the result is stored on the instance.
        if name not in PROTOTYPES:
            raise AttributeError(f"{name!r} is not in minidnn.cudnn.library.PROTOTYPES")
        function = getattr(self._dll, name, None)
        if function is None:
            raise DeviceError(f"{name} is missing in cuDNN at {self.path}; {HOW_TO_INSTALL}")
        function.argtypes = PROTOTYPES[name]
        function.restype = RESULTS.get(name, ctypes.c_int)
        setattr(self, name, function)
        return function

    def has(self, name: str) -> bool:
        """Return whether this version of the library has the function ``name``."""
        return name in PROTOTYPES and getattr(self._dll, name, None) is not None

    def __repr__(self) -> str:
        return f"<cuDNN {version_text(self.version)} at {self.path}>"


def version_text(version: int) -> str:
    """Return cuDNN's version number as text: 91900 is '9.19.0', 8907 is '8.9.7'."""
    if version >= 90000:
        return f"{version // 10000}.{version // 100 % 100}.{version % 100}"
    return f"{version // 1000}.{version // 100 % 10}.{version % 100}"


def load(path: str | os.PathLike[str] | None = None) -> Library:
    """Return cuDNN, loading it on the first call.

    ``path`` is a file or a folder.  Asking for another path than the one that is loaded is an
    error: one process can hold one cuDNN.  Raises :class:`~minidnn.errors.DeviceError` when no
    cuDNN 9 is found, and says where it was looked for.
    """
    global _library
    if _library is not None and path is None:
        return _library
    with _lock:
        if _library is None:
            _library = _load(path)
        elif path is not None and not _same_file(_file_of(Path(path)), _library.path):
            raise DeviceError(
                f"cuDNN is already loaded from {_library.path}, so path={str(path)!r} cannot be "
                f"loaded beside it; give the path before the first use, or set {ENVIRONMENT}"
            )
        return _library


def loaded() -> Library | None:
    """Return the library if it is loaded already, else None; never loads it."""
    return _library


def version() -> int:
    """Return cuDNN's version number, 91900 for 9.19.0; loads the library."""
    return load().version


def path() -> str:
    """Return the file that cuDNN was loaded from; loads the library."""
    return load().path


def candidates(explicit: str | os.PathLike[str] | None = None) -> Iterator[tuple[str, str]]:
    """Yield the pairs (origin, path or bare name) where cuDNN may be, best first."""
    if explicit is not None:
        yield "path", str(_file_of(Path(explicit)))
        return
    if os.environ.get(ENVIRONMENT):
        yield f"environment variable {ENVIRONMENT}", str(_file_of(Path(os.environ[ENVIRONMENT])))
        return
    mapped = already_mapped()
    if mapped is not None:
        yield "already loaded in this process", mapped
    for folder in _wheel_folders():
        yield "wheel nvidia-cudnn-cu13/-cu12", str(folder / FILE_NAME)
    yield "system", FILE_NAME
    for variable in ("CUDNN_PATH", "CUDA_PATH", "CUDA_HOME"):
        if os.environ.get(variable):
            root = Path(os.environ[variable])
            for below in ("lib64", "lib", "bin", "lib/x64"):
                yield f"environment variable {variable}", str(root / below / FILE_NAME)


def already_mapped() -> str | None:
    """Return the path of the libcudnn that this process has loaded, or None (Linux only)."""
    maps = Path("/proc/self/maps")
    if not maps.exists():
        return None
    for line in maps.read_text(errors="replace").splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and Path(fields[5]).name.startswith(FILE_NAME):
            return fields[5]
    return None


def _wheel_folders() -> list[Path]:
    """Return the folders of an installed cuDNN wheel that may hold the library."""
    try:
        spec = importlib.util.find_spec("nvidia.cudnn")
    except ModuleNotFoundError:
        return []
    roots = list(spec.submodule_search_locations or []) if spec else []
    return [Path(root) / ("bin" if sys.platform == "win32" else "lib") for root in roots]


def _file_of(path: Path) -> Path:
    return path / FILE_NAME if path.is_dir() else path


def _same_file(first: Path, second: str) -> bool:
    return first.exists() and Path(second).exists() and first.samefile(second)


def _load(explicit: str | os.PathLike[str] | None) -> Library:
    failures = []
    mapped = already_mapped()
    for origin, place in candidates(explicit):
        if os.sep in place and not Path(place).exists():
            failures.append(f"{origin}: {place} does not exist")
            continue
        try:
            dll = ctypes.CDLL(place)
        except OSError as error:
            failures.append(f"{origin}: {place} cannot be loaded ({error})")
            continue
        where = place if os.sep in place else already_mapped() or place
        opened = Library(dll, where)
        if opened.version < OLDEST:
            failures.append(f"{origin}: {where} is version {version_text(opened.version)}")
            continue
        if mapped is not None and not _same_file(Path(mapped), where):
            warnings.warn(
                f"cuDNN is loaded from {where} beside {mapped}, which this process had loaded "
                f"already; unset {ENVIRONMENT} to share one copy",
                MiniDNNWarning,
                stacklevel=4,
            )
        return opened
    places = "".join(f"\n  {line}" for line in failures)
    raise DeviceError(f"no cuDNN 9 was found; {HOW_TO_INSTALL}. Looked at:{places}")
