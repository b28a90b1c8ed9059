"""cuDNN's enumerations as IntEnum, members under cuDNN's own names.

``tests/cudnn/test_enums.py`` compares every value with cuDNN's headers.  Deprecated aliases of
status codes are left out here; :mod:`minidnn.cudnn.constants` has them.

Source: ``cudnn_graph_v9.h``, ``cudnn_ops_v9.h``, ``cudnn_cnn_v9.h``.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum


def is_coarse_winograd(algorithm: str, window: Sequence[int]) -> bool:
    """Return whether an algorithm or engine note of this name is less accurate than TF32.

    This is about float32.  Winograd with 5 x 5 windows has errors of 7e-4 of the output's norm
    (H200, cuDNN 9.19) under every math type, 400 times those of 3 x 3 windows, where TF32 has 3e-4.
    """
    return "WINOGRAD" in algorithm and max(window) > 3


class Status(IntEnum):
    """The result of a call (``cudnnStatus_t``)."""

    CUDNN_STATUS_SUCCESS = 0
    CUDNN_STATUS_NOT_INITIALIZED = 1001
    CUDNN_STATUS_SUBLIBRARY_VERSION_MISMATCH = 1002
    CUDNN_STATUS_SERIALIZATION_VERSION_MISMATCH = 1003
    CUDNN_STATUS_DEPRECATED = 1004
    CUDNN_STATUS_LICENSE_ERROR = 1005
    CUDNN_STATUS_RUNTIME_IN_PROGRESS = 1006
    CUDNN_STATUS_RUNTIME_FP_OVERFLOW = 1007
    CUDNN_STATUS_SUBLIBRARY_LOADING_FAILED = 1008
    CUDNN_STATUS_BAD_PARAM = 2000
    CUDNN_STATUS_BAD_PARAM_NULL_POINTER = 2002
    CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER = 2003
    CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED = 2004
    CUDNN_STATUS_BAD_PARAM_OUT_OF_BOUND = 2005
    CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT = 2006
    CUDNN_STATUS_BAD_PARAM_STREAM_MISMATCH = 2007
    CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH = 2008
    CUDNN_STATUS_BAD_PARAM_DUPLICATED_ENTRIES = 2009
    CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE = 2010
    CUDNN_STATUS_BAD_PARAM_CUDA_GRAPH_MISMATCH = 2011
    CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE = 2012
    CUDNN_STATUS_NOT_SUPPORTED = 3000
    CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN = 3001
    CUDNN_STATUS_NOT_SUPPORTED_SHAPE = 3002
    CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE = 3003
    CUDNN_STATUS_NOT_SUPPORTED_LAYOUT = 3004
    CUDNN_STATUS_NOT_SUPPORTED_INCOMPATIBLE_CUDA_DRIVER = 3005
    CUDNN_STATUS_NOT_SUPPORTED_INCOMPATIBLE_CUDART = 3006
    CUDNN_STATUS_NOT_SUPPORTED_ARCH_MISMATCH = 3007
    CUDNN_STATUS_NOT_SUPPORTED_RUNTIME_PREREQUISITE_MISSING = 3008
    CUDNN_STATUS_NOT_SUPPORTED_SUBLIBRARY_UNAVAILABLE = 3009
    CUDNN_STATUS_NOT_SUPPORTED_SHARED_MEMORY_INSUFFICIENT = 3010
    CUDNN_STATUS_NOT_SUPPORTED_PADDING = 3011
    CUDNN_STATUS_NOT_SUPPORTED_BAD_LAUNCH_PARAM = 3012
    CUDNN_STATUS_NOT_SUPPORTED_CUDA_GRAPH_NATIVE_API = 3013
    CUDNN_STATUS_NOT_SUPPORTED_INVALID_DYNAMIC_SHAPE = 3014
    CUDNN_STATUS_INTERNAL_ERROR = 4000
    CUDNN_STATUS_INTERNAL_ERROR_COMPILATION_FAILED = 4001
    CUDNN_STATUS_INTERNAL_ERROR_UNEXPECTED_VALUE = 4002
    CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED = 4003
    CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED = 4004
    CUDNN_STATUS_INTERNAL_ERROR_BAD_LAUNCH_PARAM = 4005
    CUDNN_STATUS_INTERNAL_ERROR_TEXTURE_CREATION_FAILED = 4006
    CUDNN_STATUS_EXECUTION_FAILED = 5000
    CUDNN_STATUS_EXECUTION_FAILED_CUDA_DRIVER = 5001
    CUDNN_STATUS_EXECUTION_FAILED_CUBLAS = 5002
    CUDNN_STATUS_EXECUTION_FAILED_CUDART = 5003
    CUDNN_STATUS_EXECUTION_FAILED_CURAND = 5004
    CUDNN_STATUS_INVALID_VALUE = 2001


class DataType(IntEnum):
    """Element types of tensors and of computation (``cudnnDataType_t``)."""

    CUDNN_DATA_FLOAT = 0
    CUDNN_DATA_DOUBLE = 1
    CUDNN_DATA_HALF = 2
    CUDNN_DATA_INT8 = 3
    CUDNN_DATA_INT32 = 4
    CUDNN_DATA_INT8x4 = 5
    CUDNN_DATA_UINT8 = 6
    CUDNN_DATA_UINT8x4 = 7
    CUDNN_DATA_INT8x32 = 8
    CUDNN_DATA_BFLOAT16 = 9
    CUDNN_DATA_INT64 = 10
    CUDNN_DATA_BOOLEAN = 11
    CUDNN_DATA_FP8_E4M3 = 12
    CUDNN_DATA_FP8_E5M2 = 13
    CUDNN_DATA_FAST_FLOAT_FOR_FP8 = 14
    CUDNN_DATA_FP8_E8M0 = 15
    CUDNN_DATA_FP4_E2M1 = 16
    CUDNN_DATA_INT4 = 17
    CUDNN_DATA_UINT4 = 18
    CUDNN_DATA_UINT32 = 19
    CUDNN_DATA_COMPLEX_FP32 = 20
    CUDNN_DATA_COMPLEX_FP64 = 21
    CUDNN_DATA_BYTE_BOOLEAN = 22
    CUDNN_DATA_FP8_E5M3 = 23


class TensorFormat(IntEnum):
    """Order of the dimensions in memory (``cudnnTensorFormat_t``)."""

    CUDNN_TENSOR_NCHW = 0
    CUDNN_TENSOR_NHWC = 1
    CUDNN_TENSOR_NCHW_VECT_C = 2


class MathType(IntEnum):
    """Which units compute: DEFAULT allows TF32 for float, FMA does not (``cudnnMathType_t``)."""

    CUDNN_DEFAULT_MATH = 0
    CUDNN_TENSOR_OP_MATH = 1
    CUDNN_TENSOR_OP_MATH_ALLOW_CONVERSION = 2
    CUDNN_FMA_MATH = 3


class NanPropagation(IntEnum):
    """What max, ReLU and reductions do with NaN (``cudnnNanPropagation_t``)."""

    CUDNN_NOT_PROPAGATE_NAN = 0
    CUDNN_PROPAGATE_NAN = 1


class Determinism(IntEnum):
    """Whether an algorithm gives the same bits every time (``cudnnDeterminism_t``)."""

    CUDNN_NON_DETERMINISTIC = 0
    CUDNN_DETERMINISTIC = 1


class ErrQueryMode(IntEnum):
    """How cudnnQueryRuntimeError waits (``cudnnErrQueryMode_t``)."""

    CUDNN_ERRQUERY_RAWCODE = 0
    CUDNN_ERRQUERY_NONBLOCKING = 1
    CUDNN_ERRQUERY_BLOCKING = 2


class ConvolutionMode(IntEnum):
    """Mathematical convolution (flipped) or cross-correlation (``cudnnConvolutionMode_t``)."""

    CUDNN_CONVOLUTION = 0
    CUDNN_CROSS_CORRELATION = 1


class ConvolutionFwdAlgo(IntEnum):
    """Algorithms of the forward convolution (``cudnnConvolutionFwdAlgo_t``)."""

    CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM = 0
    CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM = 1
    CUDNN_CONVOLUTION_FWD_ALGO_GEMM = 2
    CUDNN_CONVOLUTION_FWD_ALGO_DIRECT = 3
    CUDNN_CONVOLUTION_FWD_ALGO_FFT = 4
    CUDNN_CONVOLUTION_FWD_ALGO_FFT_TILING = 5
    CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD = 6
    CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD_NONFUSED = 7


class ConvolutionBwdDataAlgo(IntEnum):
    """Algorithms of the gradient by the input (``cudnnConvolutionBwdDataAlgo_t``)."""

    CUDNN_CONVOLUTION_BWD_DATA_ALGO_0 = 0
    CUDNN_CONVOLUTION_BWD_DATA_ALGO_1 = 1
    CUDNN_CONVOLUTION_BWD_DATA_ALGO_FFT = 2
    CUDNN_CONVOLUTION_BWD_DATA_ALGO_FFT_TILING = 3
    CUDNN_CONVOLUTION_BWD_DATA_ALGO_WINOGRAD = 4
    CUDNN_CONVOLUTION_BWD_DATA_ALGO_WINOGRAD_NONFUSED = 5


class ConvolutionBwdFilterAlgo(IntEnum):
    """Algorithms of the gradient by the filter (``cudnnConvolutionBwdFilterAlgo_t``)."""

    CUDNN_CONVOLUTION_BWD_FILTER_ALGO_0 = 0
    CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1 = 1
    CUDNN_CONVOLUTION_BWD_FILTER_ALGO_FFT = 2
    CUDNN_CONVOLUTION_BWD_FILTER_ALGO_3 = 3
    CUDNN_CONVOLUTION_BWD_FILTER_ALGO_WINOGRAD = 4
    CUDNN_CONVOLUTION_BWD_FILTER_ALGO_WINOGRAD_NONFUSED = 5
    CUDNN_CONVOLUTION_BWD_FILTER_ALGO_FFT_TILING = 6


class ActivationMode(IntEnum):
    """Activation functions (``cudnnActivationMode_t``)."""

    CUDNN_ACTIVATION_SIGMOID = 0
    CUDNN_ACTIVATION_RELU = 1
    CUDNN_ACTIVATION_TANH = 2
    CUDNN_ACTIVATION_CLIPPED_RELU = 3
    CUDNN_ACTIVATION_ELU = 4
    CUDNN_ACTIVATION_IDENTITY = 5
    CUDNN_ACTIVATION_SWISH = 6


class PoolingMode(IntEnum):
    """Kinds of pooling (``cudnnPoolingMode_t``)."""

    CUDNN_POOLING_MAX = 0
    CUDNN_POOLING_AVERAGE_COUNT_INCLUDE_PADDING = 1
    CUDNN_POOLING_AVERAGE_COUNT_EXCLUDE_PADDING = 2
    CUDNN_POOLING_MAX_DETERMINISTIC = 3


class SoftmaxAlgorithm(IntEnum):
    """How softmax is computed (``cudnnSoftmaxAlgorithm_t``)."""

    CUDNN_SOFTMAX_FAST = 0
    CUDNN_SOFTMAX_ACCURATE = 1
    CUDNN_SOFTMAX_LOG = 2


class SoftmaxMode(IntEnum):
    """Over which dimensions softmax normalises (``cudnnSoftmaxMode_t``)."""

    CUDNN_SOFTMAX_MODE_INSTANCE = 0
    CUDNN_SOFTMAX_MODE_CHANNEL = 1


class BatchNormMode(IntEnum):
    """Over which dimensions statistics are taken (``cudnnBatchNormMode_t``)."""

    CUDNN_BATCHNORM_PER_ACTIVATION = 0
    CUDNN_BATCHNORM_SPATIAL = 1
    CUDNN_BATCHNORM_SPATIAL_PERSISTENT = 2


class BatchNormOps(IntEnum):
    """What is fused after batch normalisation (``cudnnBatchNormOps_t``)."""

    CUDNN_BATCHNORM_OPS_BN = 0
    CUDNN_BATCHNORM_OPS_BN_ACTIVATION = 1
    CUDNN_BATCHNORM_OPS_BN_ADD_ACTIVATION = 2


class LRNMode(IntEnum):
    """The dimension of the window of local response normalisation (``cudnnLRNMode_t``)."""

    CUDNN_LRN_CROSS_CHANNEL_DIM1 = 0


class OpTensorOp(IntEnum):
    """Element-wise operations of cudnnOpTensor (``cudnnOpTensorOp_t``)."""

    CUDNN_OP_TENSOR_ADD = 0
    CUDNN_OP_TENSOR_MUL = 1
    CUDNN_OP_TENSOR_MIN = 2
    CUDNN_OP_TENSOR_MAX = 3
    CUDNN_OP_TENSOR_SQRT = 4
    CUDNN_OP_TENSOR_NOT = 5


class ReduceTensorOp(IntEnum):
    """Reductions (``cudnnReduceTensorOp_t``)."""

    CUDNN_REDUCE_TENSOR_ADD = 0
    CUDNN_REDUCE_TENSOR_MUL = 1
    CUDNN_REDUCE_TENSOR_MIN = 2
    CUDNN_REDUCE_TENSOR_MAX = 3
    CUDNN_REDUCE_TENSOR_AMAX = 4
    CUDNN_REDUCE_TENSOR_AVG = 5
    CUDNN_REDUCE_TENSOR_NORM1 = 6
    CUDNN_REDUCE_TENSOR_NORM2 = 7
    CUDNN_REDUCE_TENSOR_MUL_NO_ZEROS = 8


class ReduceTensorIndices(IntEnum):
    """Whether a reduction returns indices (``cudnnReduceTensorIndices_t``)."""

    CUDNN_REDUCE_TENSOR_NO_INDICES = 0
    CUDNN_REDUCE_TENSOR_FLATTENED_INDICES = 1


class IndicesType(IntEnum):
    """Width of the indices of a reduction (``cudnnIndicesType_t``)."""

    CUDNN_32BIT_INDICES = 0
    CUDNN_64BIT_INDICES = 1
    CUDNN_16BIT_INDICES = 2
    CUDNN_8BIT_INDICES = 3


class FoldingDirection(IntEnum):
    """Fold space into channels, or back (``cudnnFoldingDirection_t``)."""

    CUDNN_TRANSFORM_FOLD = 0
    CUDNN_TRANSFORM_UNFOLD = 1
