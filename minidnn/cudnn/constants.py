"""The names of CuPy 13's ``cupy.cuda.cudnn``: ``available``, ``getVersion``, ``CUDNN_...``.

``from minidnn.cudnn import constants as libcudnn`` replaces ``from cupy.cuda import cudnn as
libcudnn``.  The values are those of cuDNN 9.  ``available`` is found out when it is asked for,
and :func:`minidnn.cudnn.why_unavailable` tells the reason when it is False.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from minidnn.cudnn import enums, library
from minidnn.cudnn.errors import CuDNNError, check_status

# Constants of CuPy 13's ``cupy.cuda.cudnn`` whose enumerations this binding has no use for.
#
# Most belong to functions that cuDNN 9 dropped or that are not bound here (RNN, CTC loss, spatial
# transformer, fused-ops packs); programs name them, so they stay. The deprecated status codes have
# cuDNN 9's values.


OLD: dict[str, int] = {
    "CUDNN_ADD_IMAGE": 0,
    "CUDNN_ADD_SAME_HW": 0,
    "CUDNN_ADD_FEATURE_MAP": 1,
    "CUDNN_ADD_SAME_CHW": 1,
    "CUDNN_ADD_SAME_C": 2,
    "CUDNN_ADD_FULL_TENSOR": 3,
    "CUDNN_CONVOLUTION_FWD_NO_WORKSPACE": 0,
    "CUDNN_CONVOLUTION_FWD_PREFER_FASTEST": 1,
    "CUDNN_CONVOLUTION_FWD_SPECIFY_WORKSPACE_LIMIT": 2,
    "CUDNN_CONVOLUTION_BWD_FILTER_NO_WORKSPACE": 0,
    "CUDNN_CONVOLUTION_BWD_FILTER_PREFER_FASTEST": 1,
    "CUDNN_CONVOLUTION_BWD_FILTER_SPECIFY_WORKSPACE_LIMIT": 2,
    "CUDNN_CONVOLUTION_BWD_DATA_NO_WORKSPACE": 0,
    "CUDNN_CONVOLUTION_BWD_DATA_PREFER_FASTEST": 1,
    "CUDNN_CONVOLUTION_BWD_DATA_SPECIFY_WORKSPACE_LIMIT": 2,
    "CUDNN_DIVNORM_PRECOMPUTED_MEANS": 0,
    "CUDNN_CTC_LOSS_ALGO_DETERMINISTIC": 0,
    "CUDNN_CTC_LOSS_ALGO_NON_DETERMINISTIC": 1,
    "CUDNN_RNN_RELU": 0,
    "CUDNN_RNN_TANH": 1,
    "CUDNN_LSTM": 2,
    "CUDNN_GRU": 3,
    "CUDNN_UNIDIRECTIONAL": 0,
    "CUDNN_BIDIRECTIONAL": 1,
    "CUDNN_RNN_ALGO_STANDARD": 0,
    "CUDNN_RNN_ALGO_PERSIST_STATIC": 1,
    "CUDNN_RNN_ALGO_PERSIST_DYNAMIC": 2,
    "CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_UNPACKED": 0,
    "CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_PACKED": 1,
    "CUDNN_RNN_DATA_LAYOUT_BATCH_MAJOR_UNPACKED": 2,
    "CUDNN_RNN_PADDED_IO_DISABLED": 0,
    "CUDNN_RNN_PADDED_IO_ENABLED": 1,
    "CUDNN_LINEAR_INPUT": 0,
    "CUDNN_SKIP_INPUT": 1,
    "CUDNN_SAMPLER_BILINEAR": 0,
    "CUDNN_STATUS_RUNTIME_PREREQUISITE_MISSING": 3008,
    "CUDNN_FUSED_SCALE_BIAS_ACTIVATION_CONV_BNSTATS": 0,
    "CUDNN_FUSED_SCALE_BIAS_ACTIVATION_WGRAD": 1,
    "CUDNN_FUSED_BN_FINALIZE_STATISTICS_TRAINING": 2,
    "CUDNN_FUSED_BN_FINALIZE_STATISTICS_INFERENCE": 3,
    "CUDNN_FUSED_CONV_SCALE_BIAS_ADD_ACTIVATION": 4,
    "CUDNN_FUSED_SCALE_BIAS_ADD_ACTIVATION_GEN_BITMASK": 5,
    "CUDNN_FUSED_DACTIVATION_FORK_DBATCHNORM": 6,
    "CUDNN_PARAM_XDESC": 0,
    "CUDNN_PARAM_XDATA_PLACEHOLDER": 1,
    "CUDNN_PARAM_BN_MODE": 2,
    "CUDNN_PARAM_BN_EQSCALEBIAS_DESC": 3,
    "CUDNN_PARAM_BN_EQSCALE_PLACEHOLDER": 4,
    "CUDNN_PARAM_BN_EQBIAS_PLACEHOLDER": 5,
    "CUDNN_PARAM_ACTIVATION_DESC": 6,
    "CUDNN_PARAM_CONV_DESC": 7,
    "CUDNN_PARAM_WDESC": 8,
    "CUDNN_PARAM_WDATA_PLACEHOLDER": 9,
    "CUDNN_PARAM_DWDESC": 10,
    "CUDNN_PARAM_DWDATA_PLACEHOLDER": 11,
    "CUDNN_PARAM_YDESC": 12,
    "CUDNN_PARAM_YDATA_PLACEHOLDER": 13,
    "CUDNN_PARAM_DYDESC": 14,
    "CUDNN_PARAM_DYDATA_PLACEHOLDER": 15,
    "CUDNN_PARAM_YSTATS_DESC": 16,
    "CUDNN_PARAM_YSUM_PLACEHOLDER": 17,
    "CUDNN_PARAM_YSQSUM_PLACEHOLDER": 18,
    "CUDNN_PARAM_BN_SCALEBIAS_MEANVAR_DESC": 19,
    "CUDNN_PARAM_BN_SCALE_PLACEHOLDER": 20,
    "CUDNN_PARAM_BN_BIAS_PLACEHOLDER": 21,
    "CUDNN_PARAM_BN_SAVED_MEAN_PLACEHOLDER": 22,
    "CUDNN_PARAM_BN_SAVED_INVSTD_PLACEHOLDER": 23,
    "CUDNN_PARAM_BN_RUNNING_MEAN_PLACEHOLDER": 24,
    "CUDNN_PARAM_BN_RUNNING_VAR_PLACEHOLDER": 25,
    "CUDNN_PARAM_ZDESC": 26,
    "CUDNN_PARAM_ZDATA_PLACEHOLDER": 27,
    "CUDNN_PARAM_BN_Z_EQSCALEBIAS_DESC": 28,
    "CUDNN_PARAM_BN_Z_EQSCALE_PLACEHOLDER": 29,
    "CUDNN_PARAM_BN_Z_EQBIAS_PLACEHOLDER": 30,
    "CUDNN_PARAM_ACTIVATION_BITMASK_DESC": 31,
    "CUDNN_PARAM_ACTIVATION_BITMASK_PLACEHOLDER": 32,
    "CUDNN_PARAM_DXDESC": 33,
    "CUDNN_PARAM_DXDATA_PLACEHOLDER": 34,
    "CUDNN_PARAM_DZDESC": 35,
    "CUDNN_PARAM_DZDATA_PLACEHOLDER": 36,
    "CUDNN_PARAM_BN_DSCALE_PLACEHOLDER": 37,
    "CUDNN_PARAM_BN_DBIAS_PLACEHOLDER": 38,
    "CUDNN_PTR_NULL": 0,
    "CUDNN_PTR_ELEM_ALIGNED": 1,
    "CUDNN_PTR_16B_ALIGNED": 2,
    "CUDNN_PTR_XDATA": 0,
    "CUDNN_PTR_BN_EQSCALE": 1,
    "CUDNN_PTR_BN_EQBIAS": 2,
    "CUDNN_PTR_WDATA": 3,
    "CUDNN_PTR_DWDATA": 4,
    "CUDNN_PTR_YDATA": 5,
    "CUDNN_PTR_DYDATA": 6,
    "CUDNN_PTR_YSUM": 7,
    "CUDNN_PTR_YSQSUM": 8,
    "CUDNN_PTR_WORKSPACE": 9,
    "CUDNN_PTR_BN_SCALE": 10,
    "CUDNN_PTR_BN_BIAS": 11,
    "CUDNN_PTR_BN_SAVED_MEAN": 12,
    "CUDNN_PTR_BN_SAVED_INVSTD": 13,
    "CUDNN_PTR_BN_RUNNING_MEAN": 14,
    "CUDNN_PTR_BN_RUNNING_VAR": 15,
    "CUDNN_PTR_ZDATA": 16,
    "CUDNN_PTR_BN_Z_EQSCALE": 17,
    "CUDNN_PTR_BN_Z_EQBIAS": 18,
    "CUDNN_PTR_ACTIVATION_BITMASK": 19,
    "CUDNN_PTR_DXDATA": 20,
    "CUDNN_PTR_DZDATA": 21,
    "CUDNN_PTR_BN_DSCALE": 22,
    "CUDNN_PTR_BN_DBIAS": 23,
    "CUDNN_SCALAR_SIZE_T_WORKSPACE_SIZE_IN_BYTES": 100,
    "CUDNN_SCALAR_INT64_T_BN_ACCUMULATION_COUNT": 101,
    "CUDNN_SCALAR_DOUBLE_BN_EXP_AVG_FACTOR": 102,
    "CUDNN_SCALAR_DOUBLE_BN_EPSILON": 103,
    "CUDNN_STATUS_ALLOC_FAILED": 4003,
    "CUDNN_STATUS_ARCH_MISMATCH": 3007,
    "CUDNN_STATUS_MAPPING_ERROR": 4006,
    "CUDNN_STATUS_VERSION_MISMATCH": 1002,
}


__all__ = ["CuDNNError", "check_status", "getVersion", "get_build_version"]


def getVersion() -> int:
    """Return cuDNN's version number, 91900 for 9.19.0."""
    return library.version()


def get_build_version() -> int:
    """Return the version of the loaded library; this binding is not built against one."""
    return library.version()


def _names() -> dict[str, int]:
    found: dict[str, int] = {}
    for kind in vars(enums).values():
        if isinstance(kind, type) and issubclass(kind, IntEnum) and kind is not IntEnum:
            found.update({name: int(member) for name, member in kind.__members__.items()})
    found.update(OLD)
    return found


_CONSTANTS = _names()
globals().update(_CONSTANTS)
__all__ += sorted(_CONSTANTS)


def __getattr__(name: str) -> Any:
    # Not in __all__: "import *" would ask for it, and that loads CuPy and cuDNN.
    if name == "available":
        from minidnn.cudnn import why_unavailable

        return why_unavailable() is None
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
