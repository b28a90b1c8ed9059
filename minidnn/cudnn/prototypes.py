"""What every cuDNN function that we call takes: one table, name to argument types.

The names on the right are ctypes types under the name of what they carry, so that a row reads
like the declaration in cuDNN's headers.  ``tests/cudnn/test_prototypes.py`` compares each row
with those declarations.  All functions return a ``cudnnStatus_t``, except the few in
:data:`RESULTS`.

Source: ``cudnn_graph_v9.h``, ``cudnn_ops_v9.h``, ``cudnn_cnn_v9.h``.
"""

from __future__ import annotations

import ctypes
from typing import Any

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
