"""A cuDNN that computes what its functions mean, with NumPy in float64, on the host's memory.

It knows of a tensor what its descriptor was told, and reads and writes it at its address by these
strides: arguments in another order, a wrong layout or a descriptor that is gone are seen.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from minidnn.cudnn.enums import DataType, OpTensorOp, PoolingMode, TensorFormat
from minidnn.cudnn.library import PROTOTYPES
from minidnn.graph import operators as ops
from minidnn.runtime.arrays import from_bits, to_bits

_DTYPES: dict[DataType, tuple[str, np.dtype[Any]]] = {
    DataType.CUDNN_DATA_FLOAT: ("float32", np.dtype("f4")),
    DataType.CUDNN_DATA_HALF: ("float16", np.dtype("f2")),
    DataType.CUDNN_DATA_BFLOAT16: ("bfloat16", np.dtype("u2")),
}
_FIRST = 2.0**-20


class _Tensor:
    """A tensor's elements in memory."""

    def __init__(self, told: tuple[Any, ...], address: int) -> None:
        kind, shape, strides = told
        self.dtype, held = _DTYPES[DataType(kind)]
        reach = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
        flat = np.frombuffer((ctypes.c_char * (reach * held.itemsize)).from_address(address), held)
        steps = [s * held.itemsize for s in strides]
        self.view = np.lib.stride_tricks.as_strided(flat, shape, steps, writeable=True)

    def read(self) -> np.ndarray:
        return from_bits(np.ascontiguousarray(self.view), self.dtype).astype(np.float64)

    def write(self, array: np.ndarray) -> None:
        self.view[...] = to_bits(array.astype(np.float32), self.dtype)


class HostCuDNN:
    """The shared library."""

    def __init__(self) -> None:
        self.told: dict[int, tuple[Any, ...]] = {}
        self.live: set[int] = set()
        self.names: list[str] = []
        self.bitorder: Literal["little", "big"] = "little"
        self._next = 0x1000

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in PROTOTYPES:
            raise AttributeError(name)

        def call(*arguments: Any) -> int:
            self.names.append(name)
            if name.startswith("cudnnCreate"):
                self._next += 16
                self.live.add(self._next)
                arguments[0]._obj.value = self._next
            elif name.startswith("cudnnDestroy"):
                self.live.remove(arguments[0])
            elif name.startswith("cudnnSet") and name != "cudnnSetStream":
                assert arguments[0] in self.live
                told = tuple(list(a) if isinstance(a, ctypes.Array) else a for a in arguments[1:])
                self.told[arguments[0]] = (*self.told.get(arguments[0], ()), (name, told))
            elif name == "cudnnGetVersion":
                return 91900
            elif name != "cudnnSetStream":
                getattr(self, f"_{name}")(*arguments)
            return 0

        return call

    # Descriptors

    def _last(self, descriptor: int, name: str) -> tuple[Any, ...]:
        assert descriptor in self.live, f"a descriptor of {name} is gone"
        return [told for setter, told in self.told[descriptor] if setter == name][-1]

    def _tensor(self, descriptor: int, address: int) -> _Tensor:
        kind, _, shape, strides = self._last(descriptor, "cudnnSetTensorNdDescriptor")
        return _Tensor((kind, tuple(shape), tuple(strides)), address)

    def _filter(self, descriptor: int, address: int) -> _Tensor:
        kind, layout, _, shape = self._last(descriptor, "cudnnSetFilterNdDescriptor")
        _, c, h, w = shape
        strides = (c * h * w, h * w, w, 1)
        if layout == TensorFormat.CUDNN_TENSOR_NHWC:
            strides = (c * h * w, 1, w * c, c)
        return _Tensor((kind, tuple(shape), strides), address)

    def _vector(self, descriptor: int, address: int) -> np.ndarray:
        """Scale, shift or statistics: float32, as many as there are channels."""
        ((_, (count,)),) = self.told[descriptor]
        assert descriptor in self.live
        memory = (ctypes.c_char * (4 * count)).from_address(address)
        return np.frombuffer(memory, np.float32)

    def _cudnnDeriveBNTensorDescriptor(self, derived: int, x: int, mode: int) -> None:
        _, _, shape, _ = self._last(x, "cudnnSetTensorNdDescriptor")
        self.told[derived] = (("derived", (shape[1],)),)

    def _cudnnGetTensorNdDescriptor(self, descriptor: int, most: int, *out: Any) -> None:
        kind, rank, shape, strides = self._last(descriptor, "cudnnSetTensorNdDescriptor")
        out[0]._obj.value, out[1]._obj.value = int(kind), rank
        out[2][:rank], out[3][:rank] = shape, strides

    def _cudnnDropoutGetStatesSize(self, handle: int, size: Any) -> None:
        size._obj.value = 64

    def _cudnnDropoutGetReserveSpaceSize(self, x: int, size: Any) -> None:
        _, _, shape, _ = self._last(x, "cudnnSetTensorNdDescriptor")
        size._obj.value = -(-int(np.prod(shape)) // 8)

    # Functions

    def _cudnnActivationForward(self, _: int, kind: int, one: Any, *rest: Any) -> None:
        x, px, _, y, py = rest
        self._tensor(y, py).write(self._activated(kind, self._tensor(x, px).read()))

    def _activated(self, kind: int, x: np.ndarray) -> np.ndarray:
        mode, _, coefficient = self._last(kind, "cudnnSetActivationDescriptor")
        formulas = {
            "SIGMOID": lambda: 1 / (1 + np.exp(-x)),
            "RELU": lambda: np.maximum(x, 0),
            "TANH": lambda: np.tanh(x),
            "CLIPPED_RELU": lambda: np.clip(x, 0, coefficient),
            "ELU": lambda: np.where(x > 0, x, coefficient * np.expm1(x)),
            "SWISH": lambda: x / (1 + np.exp(-x)),
        }
        found: np.ndarray = formulas[mode.name.removeprefix("CUDNN_ACTIVATION_")]()
        return found

    def _cudnnActivationBackward(self, _: int, kind: int, one: Any, *rest: Any) -> None:
        y, py, dy, pdy, x, px, _, dx, pdx = rest
        at = self._tensor(x, px).read()
        np.testing.assert_allclose(self._activated(kind, at), self._tensor(y, py).read(), 0.05, 0.1)
        slope = self._activated(kind, at + _FIRST) - self._activated(kind, at - _FIRST)
        slope /= 2 * _FIRST
        self._tensor(dx, pdx).write(slope * self._tensor(dy, pdy).read())

    def _windows(self, kind: int, x: np.ndarray) -> tuple[Any, ...]:
        mode, _, *sizes = self._last(kind, "cudnnSetPooling2dDescriptor")
        window, padding, stride = sizes[:2], sizes[2:4], sizes[4:]
        shape = [
            (n + 2 * p - w) // s + 1
            for n, w, p, s in zip(x.shape[2:], window, padding, stride, strict=True)
        ]
        fill = -np.inf if mode == PoolingMode.CUDNN_POOLING_MAX_DETERMINISTIC else 0.0
        pads = ((0, 0), (0, 0), *((p, p) for p in padding))
        return mode, window, padding, stride, shape, np.pad(x, pads, constant_values=fill), pads

    def _pooled(self, kind: int, x: np.ndarray, dy: np.ndarray | None) -> np.ndarray:
        mode, window, padding, stride, shape, padded, pads = self._windows(kind, x)
        inside = np.pad(np.ones(x.shape), pads)
        y, dx = np.empty((*x.shape[:2], *shape)), np.zeros(padded.shape)
        for i, j in np.ndindex(*shape):
            rows = slice(i * stride[0], i * stride[0] + window[0])
            columns = slice(j * stride[1], j * stride[1] + window[1])
            taps = padded[:, :, rows, columns]
            flat = taps.reshape(*taps.shape[:2], -1)
            if mode == PoolingMode.CUDNN_POOLING_MAX_DETERMINISTIC:
                y[:, :, i, j] = flat.max(-1)
                if dy is not None:
                    first = np.eye(flat.shape[-1])[flat.argmax(-1)].reshape(taps.shape)
                    dx[:, :, rows, columns] += first * dy[:, :, i, j, None, None]
                continue
            count = window[0] * window[1]
            if mode == PoolingMode.CUDNN_POOLING_AVERAGE_COUNT_EXCLUDE_PADDING:
                count = int(inside[0, 0, rows, columns].sum())
            y[:, :, i, j] = flat.sum(-1) / count
            if dy is not None:
                dx[:, :, rows, columns] += dy[:, :, i, j, None, None] / count
        if dy is None:
            return y
        (top, left), (high, wide) = padding, x.shape[2:]
        return dx[:, :, top : top + high, left : left + wide]

    def _cudnnPoolingForward(self, _: int, kind: int, one: Any, *rest: Any) -> None:
        x, px, _, y, py = rest
        self._tensor(y, py).write(self._pooled(kind, self._tensor(x, px).read(), None))

    def _cudnnPoolingBackward(self, _: int, kind: int, one: Any, *rest: Any) -> None:
        _, _, dy, pdy, x, px, _, dx, pdx = rest
        found = self._pooled(kind, self._tensor(x, px).read(), self._tensor(dy, pdy).read())
        self._tensor(dx, pdx).write(found)

    def _cudnnSoftmaxForward(self, _: int, algorithm: int, mode: int, *rest: Any) -> None:
        _, x, px, _, y, py = rest
        at = self._tensor(x, px).read()
        at = at - at.max(1, keepdims=True)
        logs = at - np.log(np.exp(at).sum(1, keepdims=True))
        self._tensor(y, py).write(logs if algorithm == 2 else np.exp(logs))

    def _cudnnSoftmaxBackward(self, _: int, algorithm: int, mode: int, *rest: Any) -> None:
        _, y, py, dy, pdy, _, dx, pdx = rest
        at, gradient = self._tensor(y, py).read(), self._tensor(dy, pdy).read()
        if algorithm == 2:
            found = gradient - np.exp(at) * gradient.sum(1, keepdims=True)
        else:
            found = at * (gradient - (at * gradient).sum(1, keepdims=True))
        self._tensor(dx, pdx).write(found)

    def _cudnnBatchNormalizationForwardInference(self, _: int, *rest: Any) -> None:
        _, _, _, x, px, y, py, vector, *vectors, eps = rest
        scale, bias, mean, var = (self._column(vector, at) for at in vectors)
        normal = (self._tensor(x, px).read() - mean) / np.sqrt(var + eps)
        self._tensor(y, py).write(normal * scale + bias)

    def _column(self, vector: int, address: int) -> np.ndarray:
        return self._vector(vector, address).astype(np.float64)[:, None, None]

    def _cudnnBatchNormalizationForwardTraining(self, _: int, *rest: Any) -> None:
        _, _, _, x, px, y, py, vector, scale, bias, factor, moved, spread, eps, *saved = rest
        at = self._tensor(x, px).read()
        mean, var = at.mean((0, 2, 3)), at.var((0, 2, 3))
        inverse = 1 / np.sqrt(var + eps)
        normal = (at - mean[:, None, None]) * inverse[:, None, None]
        result = normal * self._column(vector, scale) + self._column(vector, bias)
        self._tensor(y, py).write(result)
        if moved is not None:
            count = at.size // mean.size
            for address, new in ((moved, mean), (spread, var * count / (count - 1))):
                old = self._vector(vector, address)
                old[...] = (1 - factor) * old + factor * new
        for address, new in zip(saved, (mean, inverse), strict=True):
            self._vector(vector, address)[...] = new

    def _cudnnBatchNormalizationBackward(self, _: int, *rest: Any) -> None:
        x, px, dy, pdy, dx, pdx, vector, scale, by_scale, by_bias, _, mean, inverse = rest[5:]
        at, gradient = self._tensor(x, px).read(), self._tensor(dy, pdy).read()
        spread = self._column(vector, inverse)
        normal = (at - self._column(vector, mean)) * spread
        sums, products = gradient.sum((0, 2, 3)), (gradient * normal).sum((0, 2, 3))
        self._vector(vector, by_bias)[...] = sums
        self._vector(vector, by_scale)[...] = products
        count = at.size // sums.size
        inner = gradient - (sums[:, None, None] + normal * products[:, None, None]) / count
        self._tensor(dx, pdx).write(inner * spread * self._column(vector, scale))

    def _cudnnDropoutBackward(self, _: int, state: int, *rest: Any) -> None:
        dy, pdy, dx, pdx, reserve, size = rest
        ratio = self._last(state, "cudnnSetDropoutDescriptor")[1]
        gradient = self._tensor(dy, pdy).read()
        mask = np.frombuffer((ctypes.c_char * size).from_address(reserve), np.uint8)
        kept = np.unpackbits(mask, bitorder=self.bitorder)[: gradient.size].reshape(gradient.shape)
        self._tensor(dx, pdx).write(gradient * kept / (1 - ratio))

    def _cudnnOpTensor(self, _: int, kind: int, *rest: Any) -> None:
        _, a, pa, _, b, pb, _, c, pc = rest
        op = self._last(kind, "cudnnSetOpTensorDescriptor")[0]
        one, other = self._tensor(a, pa).read(), self._tensor(b, pb).read()
        add = op == OpTensorOp.CUDNN_OP_TENSOR_ADD
        self._tensor(c, pc).write(one + other if add else one * other)

    def _cudnnAddTensor(self, _: int, *rest: Any) -> None:
        _, a, pa, _, c, pc = rest
        result = self._tensor(c, pc)
        result.write(result.read() + self._tensor(a, pa).read())

    def _cudnnConvolutionBackwardBias(self, _: int, *rest: Any) -> None:
        _, dy, pdy, _, db, pdb = rest
        self._tensor(db, pdb).write(self._tensor(dy, pdy).read().sum((0, 2, 3), keepdims=True))

    def _geometry(self, convolution: int) -> ops.Conv2d:
        told = self._last(convolution, "cudnnSetConvolution2dDescriptor")
        pad, stride, dilation = told[:2], told[2:4], told[4:6]
        groups = [t for name, t in self.told[convolution] if name.endswith("GroupCount")]
        count = groups[-1][0] if groups else 1
        rows, columns = ((p, p) for p in pad)
        return ops.Conv2d(stride, (rows, columns), dilation, count)

    def _cudnnConvolutionForward(self, _: int, one: Any, *rest: Any) -> None:
        x, px, w, pw, convolution, _, _, _, _, y, py = rest
        op = self._geometry(convolution)
        (found,) = op.reference(self._tensor(x, px).read(), self._filter(w, pw).read())
        self._tensor(y, py).write(found)

    def _cudnnConvolutionBackwardData(self, _: int, one: Any, *rest: Any) -> None:
        w, pw, dy, pdy, convolution, _, _, _, _, dx, pdx = rest
        result = self._tensor(dx, pdx)
        op = ops.Conv2dInputGradient(self._geometry(convolution), result.view.shape[2:])
        result.write(op.reference(self._tensor(dy, pdy).read(), self._filter(w, pw).read())[0])

    def _cudnnConvolutionBackwardFilter(self, _: int, one: Any, *rest: Any) -> None:
        x, px, dy, pdy, convolution, _, _, _, _, dw, pdw = rest
        result = self._filter(dw, pdw)
        op = ops.Conv2dWeightGradient(self._geometry(convolution), result.view.shape[2:])
        result.write(op.reference(self._tensor(x, px).read(), self._tensor(dy, pdy).read())[0])
