"""What every ATen operation that is taken is called with at its special points.

An operation's kinks are found in its formula: all constants of it, their opposites, and the numbers
beside both.  What a schema does not say (shapes, windows, bounds) stands in :data:`ARGUMENTS`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from minidnn.graph.expression import linearize
from minidnn.graph.operator import Elementwise
from tests.torch.one_call import OneCall, overload
from tests.torch.special_points import (
    INF,
    NAN,
    Make,
    bools,
    indices,
    mask_of,
    plain,
    points,
    rows,
    vector,
    whole,
)

CallerArray = Mapping[str, Any]

#: Along the second axis of rows, of one element, and of three.
_ROWS = [rows(3), rows(1)]
_ALL = [
    vector(*each)
    for each in (
        (0.0, 0.0, 0.0),
        (-0.0, 0.0),
        (2.5, 2.5, 2.5, 2.5),
        (1.0, 3.0, 3.0, -3.0),
        (7.0,),
        (0.0,),
        (NAN, 1.0, 2.0),
        (INF, 1.0, INF),
        (-INF, -INF),
        (INF, -INF),
        (1e30, 1e30),
        (1e-30, 1e-30),
        (0.0, 3.0, 0.0),
        (0.0, 3.0, 5.0),
    )
]


def _along(**more: Any) -> list[CallerArray]:
    return [{"self": x, "dim": 1, **more} for x in _ROWS]


def _axes(**more: Any) -> list[CallerArray]:
    return [
        *({"self": x, "dim": [1], **more} for x in _ROWS),
        {"self": rows(3), "dim": [1], "keepdim": True, **more},
        *({"self": x, "dim": None if "mean" not in more else [0], **more} for x in _ALL[:0]),
    ]


def _each(values: list[Make], **more: Any) -> list[CallerArray]:
    return [{"self": x, **more} for x in values]


_PAIRS = points(2)
_TRIPLES = points(3)
_IMAGE = whole(2, 4, 5, 6)
_LINE = whole(2, 4, 7)
_NORMS = (2.0, 1.0, 0.0, 3.0, 0.5, 2.5, -1.0, INF, -INF)


def _scalars(*numbers: float) -> list[CallerArray]:
    return [{"other": each} for each in numbers]


def _moved(**arguments: Any) -> list[CallerArray]:
    return [{"self": _IMAGE, **arguments}]


def _resized(x: Make, size: list[int], **more: Any) -> list[CallerArray]:
    return [{"input": x, "output_size": size, "scale_factors": None, **more}]


_CORNERS = (False, True)
_OTHERS = _scalars(2.0, 0.0, -0.5, INF)

#: For what the schema does not say enough of, the sets of arguments that it is called with; those
#: that are missing are as the schema has them, and tensors points of an element-wise operation.
ARGUMENTS: dict[str, list[CallerArray]] = {
    "hardtanh": [{}, {"min_val": -0.5, "max_val": 0.25}, {"min_val": 0, "max_val": 6}],
    "clamp": [{"min": -0.5, "max": 0.7}, {"min": -0.5}, {"max": 0.5}, {"min": 1.0, "max": -1.0}],
    "clamp_min": [{"min": 0.0}, {"min": 1.5}],
    "clamp_max": [{"max": 0.0}, {"max": 1.5}],
    "clamp.Tensor": [
        {"self": _TRIPLES[0], "min": _TRIPLES[1], "max": _TRIPLES[2]},
        {"self": _PAIRS[0], "min": _PAIRS[1]},
        {"self": _PAIRS[0], "max": _PAIRS[1]},
    ],
    "leaky_relu": [{}, {"negative_slope": 0.0}],
    "elu": [{}, {"alpha": 0.4}],
    "celu": [{}, {"alpha": 0.4}],
    "gelu": [{}, {"approximate": "tanh"}],
    "softplus": [{}, {"beta": 2.0, "threshold": 5.0}],
    "hardshrink": [{}, {"lambd": 0.0}],
    "softshrink": [{}, {"lambd": 0.0}],
    "threshold": [{"threshold": 0.1, "value": 7.0}, {"threshold": 0.0, "value": 0.0}],
    "prelu": [
        {"self": plain(2, 3, 4), "weight": vector(0.25, 0.0, -1.0)},
        {"self": points(1)[0], "weight": vector(0.25)},
    ],
    "glu": [{"self": lambda d: torch.stack([m(d) for m in _PAIRS]), "dim": 0}],
    **{
        f"{name}.Scalar": _OTHERS
        for name in (
            *("add", "sub", "subtract", "mul", "multiply", "div", "divide", "true_divide", "rsub"),
            *("gt", "greater", "ge", "greater_equal", "lt", "less", "le", "less_equal"),
            *("eq", "ne", "not_equal"),
        )
    },
    **{
        name: [{"self": bools(4), "other": lambda d: torch.tensor([True, True, False, False])}]
        for name in (
            *("logical_and", "logical_or", "logical_xor", "__and__", "__or__", "__xor__"),
            *("bitwise_and", "bitwise_or", "bitwise_xor"),
        )
    },
    "logical_not": [{"self": bools(4)}],
    "bitwise_not": [{"self": bools(4)}],
    "addcmul": [{}, {"value": 0.5}],
    "addcdiv": [{}, {"value": -2.0}],
    "lerp.Scalar": [{"weight": each} for each in (0.25, 0.5, 0.75, 0.0, 1.0)],
    "pow.Tensor_Scalar": [
        {"exponent": each}
        for each in (0, 1, 2, 3, 4, 5, -1, -2, -3, -4, 0.5, -0.5, 2.5, -1.5, 0.75, 0.0, 1.5, 1 / 3)
    ],
    "pow.Scalar": [{"self": each} for each in (2.0, 0.5, 1.0, 0.0, -2.0, INF)],
    "where.self": [{"condition": mask_of(_PAIRS[0]), "self": _PAIRS[0], "other": _PAIRS[1]}],
    "where.ScalarOther": [{"condition": mask_of(_PAIRS[0]), "self": _PAIRS[0], "other": 0.5}],
    "where.ScalarSelf": [{"condition": mask_of(_PAIRS[0]), "self": 0.5, "other": _PAIRS[0]}],
    "masked_fill.Scalar": [{"self": _PAIRS[0], "mask": mask_of(_PAIRS[0]), "value": -INF}],
    "masked_fill.Tensor": [
        {
            "self": _PAIRS[0],
            "mask": mask_of(_PAIRS[0]),
            "value": lambda d: torch.tensor(2.0, dtype=d),
        }
    ],
    # Reductions.
    **{
        f"{name}.default": _each(_ALL)
        for name in ("sum", "mean", "prod", "max", "min", "any", "all")
    },
    **{f"{name}.default": _each(_ALL) for name in ("argmax", "argmin")},
    **{f"{name}.dim": _along() for name in ("max", "min", "any", "all")},
    **{f"{name}.other": [{}] for name in ("max", "min")},
    **{f"{name}.dims": _axes() for name in ("any", "all")},
    "sum.dim_IntList": _axes(),
    "mean.dim": _axes(),
    "prod.dim_int": _along(),
    "amax": [*_axes(), *_each(_ALL)],
    "amin": [*_axes(), *_each(_ALL)],
    "logsumexp": _axes(),
    "_softmax": _along(half_to_float=False),
    "_log_softmax": _along(half_to_float=False),
    "softmax": _along(),
    "log_softmax": _along(),
    **{f"{name}.default": _each(_ALL) for name in ("var", "std", "var_mean", "std_mean")},
    **{f"{name}.dim": _axes() for name in ("var", "std", "var_mean", "std_mean")},
    **{
        f"{name}.correction": [*_axes(), *_axes(correction=0.0), *_axes(correction=2)[::2]]
        for name in ("var", "std", "var_mean", "std_mean")
    },
    "linalg_vector_norm": [each for order in _NORMS for each in _axes(ord=order)],
    "linalg_norm": [*_each(_ALL), *(each for order in (2.0, 3.0) for each in _axes(ord=order))],
    "norm.Scalar": [each for order in _NORMS for each in _each(_ALL, p=order)],
    "norm.ScalarOpt_dim": [each for order in _NORMS for each in _axes(p=order)],
    "cosine_similarity": [
        {"x1": rows(2), "x2": lambda d: rows(2)(d).flip(0)},
        {
            "x1": rows(2, finite=True),
            "x2": lambda d: rows(2, finite=True)(d).roll(3, 0),
            "eps": 1.0,
        },
    ],
    # Normalizations: groups of zeros and of equal numbers.
    "layer_norm": [{"input": rows(3), "normalized_shape": [3]}],
    "native_layer_norm": [
        {"input": rows(3), "normalized_shape": [3], "weight": None, "bias": None, "eps": 1e-5}
    ],
    "rms_norm": [{"input": rows(3), "normalized_shape": [3]}],
    "group_norm": [{"input": lambda d: rows(4, finite=True)(d).view(-1, 4, 1), "num_groups": 2}],
    "instance_norm": [
        {
            **dict.fromkeys(("weight", "bias", "running_mean", "running_var")),
            **{"input": lambda d: rows(4, finite=True)(d).round().view(-1, 1, 4)},
            **{"use_input_stats": True},
            **{"momentum": 0.1, "eps": 1e-5, "cudnn_enabled": False},
        }
    ],
    "batch_norm": [
        {
            **{"input": x, "weight": vector(1.0, -2.0, 0.0), "bias": vector(0.0, 1.0, -0.0)},
            **{"running_mean": None, "running_var": None, "training": True, "momentum": 0.1},
            **{"eps": 1e-5, "cudnn_enabled": False},
        }
        for x in (lambda d: torch.zeros(4, 3, 2, dtype=d), whole(4, 3, 2, special=False))
    ],
    "_native_batch_norm_legit_no_training": [
        {
            **{"input": whole(4, 3, 2), "weight": vector(1.0, -2.0, 0.0)},
            **{"bias": vector(0.0, 1.0, -0.0), "running_mean": vector(0.0, 1.0, 2.0)},
            **{"running_var": vector(1.0, 2.0, 0.0), "momentum": 0.1, "eps": 1e-5},
        }
    ],
    "_native_batch_norm_legit_functional": [
        {
            **{"input": whole(4, 3, 2), "weight": vector(1.0, -2.0, 0.0)},
            **{"bias": vector(0.0, 1.0, -0.0), "running_mean": vector(0.0, 1.0, 2.0)},
            **{"running_var": vector(1.0, 2.0, 0.0), "training": False, "momentum": 0.1},
            **{"eps": 1e-5},
        }
    ],
    # Windows: planes of many ties.
    "max_pool2d": [{"self": _IMAGE, "kernel_size": [3], "stride": [2], "padding": [1]}],
    "max_pool2d_with_indices": [{"self": _IMAGE, "kernel_size": [2], "stride": [1]}],
    "max_pool1d": [{"self": _LINE, "kernel_size": [3], "stride": [1]}],
    "avg_pool2d": [
        {"self": _IMAGE, "kernel_size": [3], "stride": [2], "padding": [1]},
        {"self": _IMAGE, "kernel_size": [2], "count_include_pad": False},
    ],
    "avg_pool3d": [{"self": plain(1, 2, 4, 5, 6), "kernel_size": [2, 3, 2], "stride": [1, 2, 2]}],
    "avg_pool1d": [{"self": _LINE, "kernel_size": [3], "stride": [1]}],
    "adaptive_avg_pool2d": _moved(output_size=[2, 4]),
    "_adaptive_avg_pool2d": _moved(output_size=[2, 4]),
    "adaptive_max_pool2d": _moved(output_size=[2, 4]),
    "adaptive_avg_pool1d": [{"self": _LINE, "output_size": [3]}],
    "adaptive_max_pool1d": [{"self": _LINE, "output_size": [3]}],
    # Products.
    "linear": [{"input": whole(3, 4), "weight": plain(5, 4), "bias": plain(5)}],
    "addmm": [{"self": plain(5), "mat1": whole(3, 4), "mat2": plain(4, 5)}],
    "mm": [{"self": whole(3, 4), "mat2": plain(4, 5)}],
    "bmm": [{"self": whole(2, 3, 4), "mat2": plain(2, 4, 5)}],
    "matmul": [{"self": whole(2, 3, 4), "other": plain(4)}],
    "mv": [{"self": whole(3, 4), "vec": plain(4)}],
    "dot": [{"self": whole(9), "tensor": plain(9)}],
    "baddbmm": [{"self": plain(2, 3, 5), "batch1": whole(2, 3, 4), "batch2": plain(2, 4, 5)}],
    "einsum": [{"equation": "bij,bjk->bik", "tensors": [whole(2, 3, 4), plain(2, 4, 5)]}],
    "conv1d": [{"input": _LINE, "weight": plain(3, 4, 3), "bias": plain(3)}],
    "conv2d": [{"input": _IMAGE, "weight": plain(3, 4, 3, 3), "bias": plain(3)}],
    "convolution": [
        {
            **{"input": _IMAGE, "weight": plain(3, 4, 3, 3), "bias": plain(3), "stride": [1, 1]},
            **{"padding": [1, 1], "dilation": [1, 1], "transposed": False},
            **{"output_padding": [0, 0], "groups": 1},
        }
    ],
    "conv_transpose1d": [{"input": _LINE, "weight": plain(4, 3, 3), "bias": plain(3)}],
    "conv_transpose2d": [{"input": _IMAGE, "weight": plain(4, 3, 3, 3), "bias": plain(3)}],
    "scaled_dot_product_attention": [
        {"query": plain(2, 3, 4), "key": plain(2, 5, 4), "value": plain(2, 5, 3)},
    ],
    # What only moves elements.
    "_unsafe_view": _moved(size=[8, 30]),
    "view": _moved(size=[8, 30]),
    "reshape": _moved(shape=[8, 30]),
    "reshape_as": _moved(other=plain(8, 30)),
    "view_as": _moved(other=plain(8, 30)),
    "broadcast_to": [{"self": whole(4, 1, 6), "size": [2, 4, 5, 6]}],
    "expand": [{"self": whole(4, 1, 6), "size": [2, 4, 5, 6]}],
    "expand_as": [{"self": whole(4, 1, 6), "other": plain(2, 4, 5, 6)}],
    "flatten": _moved(start_dim=1),
    "unflatten": _moved(dim=1, sizes=[2, 2]),
    "squeeze": [{"self": whole(4, 1, 6)}],
    "squeeze.dim": [{"self": whole(4, 1, 6), "dim": 1}],
    "squeeze.dims": [{"self": whole(4, 1, 6), "dim": [1]}],
    "unsqueeze": _moved(dim=1),
    "permute": _moved(dims=[0, 3, 1, 2]),
    "transpose": _moved(dim0=1, dim1=2),
    "swapaxes": _moved(axis0=1, axis1=2),
    "swapdims": _moved(dim0=1, dim1=2),
    "movedim.int": _moved(source=1, destination=3),
    "moveaxis.int": _moved(source=1, destination=3),
    "movedim.intlist": _moved(source=[1], destination=[3]),
    "moveaxis.intlist": _moved(source=[1], destination=[3]),
    "t": [{"self": whole(4, 6)}],
    "numpy_T": [{"self": whole(4, 6)}],
    "mT": _moved(),
    "slice_scatter": [
        {"self": whole(4, 6), "src": whole(4, 2), "dim": 1, "start": 1, "end": 3, "step": 1}
    ],
    "select_scatter": [{"self": whole(4, 6), "src": whole(6), "dim": 0, "index": -1}],
    "slice": _moved(dim=2, start=1, end=4, step=2),
    "narrow": _moved(dim=2, start=1, length=3),
    "select": _moved(dim=1, index=-1),
    "chunk": _moved(chunks=3, dim=1),
    "unsafe_chunk": _moved(chunks=3, dim=1),
    "split": _moved(split_size=3, dim=1),
    "unsafe_split": _moved(split_size=3, dim=1),
    "split_with_sizes": _moved(split_sizes=[1, 3], dim=1),
    "tensor_split": _moved(sections=3, dim=1),
    "unbind": _moved(dim=1),
    **{
        name: [{"tensors": [_IMAGE, plain(2, 4, 5, 6)], "dim": 1}]
        for name in ("cat", "concat", "concatenate", "stack")
    },
    "pad": [
        {"self": _IMAGE, "pad": [1, 2, 2, 1], "mode": mode}
        for mode in ("constant", "reflect", "replicate", "circular")
    ],
    "constant_pad_nd": _moved(pad=[1, 2], value=NAN),
    "reflection_pad1d": [{"self": _LINE, "padding": [1, 2]}],
    "replication_pad1d": [{"self": _LINE, "padding": [1, 2]}],
    "reflection_pad2d": _moved(padding=[1, 2, 3, 0]),
    "replication_pad2d": _moved(padding=[1, 2, 3, 0]),
    "pixel_shuffle": _moved(upscale_factor=2),
    "pixel_unshuffle": [{"self": whole(2, 3, 4, 6), "downscale_factor": 2}],
    "channel_shuffle": _moved(groups=2),
    "flip": _moved(dims=[1, -1]),
    "roll": _moved(shifts=[1, 2], dims=[1, 2]),
    "repeat": _moved(repeats=[1, 2, 1, 2]),
    "tile": _moved(dims=[2, 2]),
    "repeat_interleave": _moved(repeats=2, dim=1),
    "index_select": _moved(dim=1, index=indices(2, 0, 2)),
    "unfold": _moved(dimension=2, size=3, step=1),
    "im2col": _moved(kernel_size=[3, 2], dilation=[1, 1], padding=[1, 1], stride=[1, 2]),
    "col2im": [
        {
            **{"self": whole(2, 8, 6), "output_size": [4, 6], "kernel_size": [2, 2]},
            **{"dilation": [1, 1], "padding": [0, 0], "stride": [2, 2]},
        },
        {
            **{"self": whole(2, 8, 15), "output_size": [4, 6], "kernel_size": [2, 2]},
            **{"dilation": [1, 1], "padding": [0, 0], "stride": [1, 1]},
        },
    ],
    "tril": _moved(),
    "triu": _moved(diagonal=1),
    "upsample_nearest1d": _resized(_LINE, [11]),
    "_upsample_nearest_exact1d": _resized(_LINE, [11]),
    "upsample_nearest2d": _resized(_IMAGE, [7, 4]),
    "_upsample_nearest_exact2d": _resized(_IMAGE, [7, 4]),
    "upsample_nearest3d": _resized(whole(1, 2, 3, 4, 5), [4, 3, 7]),
    "_upsample_nearest_exact3d": _resized(whole(1, 2, 3, 4, 5), [4, 3, 7]),
    "upsample_linear1d": [
        each for c in _CORNERS for each in _resized(plain(2, 4, 7), [11], align_corners=c)
    ],
    **{
        name: [
            each for c in _CORNERS for each in _resized(plain(2, 4, 5, 6), [7, 4], align_corners=c)
        ]
        for name in ("upsample_bilinear2d", "upsample_bicubic2d")
    },
    "upsample_trilinear3d": _resized(plain(1, 2, 3, 4, 5), [4, 3, 7], align_corners=False),
    **{
        name: [
            {
                **{"input": plain(2, 4, 5, 6), "grid": plain(2, 3, 7, 2), "padding_mode": padding},
                **{"interpolation_mode": mode, "align_corners": corners},
            }
            for mode in (0, 1, 2)
            for padding, corners in ((0, False), (1, True), (2, False))
        ]
        for name in ("grid_sampler", "grid_sampler_2d")
    },
    "grid_sampler_3d": [
        {
            **{"input": plain(1, 2, 3, 4, 5), "grid": plain(1, 3, 2, 2, 3), "padding_mode": 1},
            **{"interpolation_mode": 0, "align_corners": False},
        }
    ],
    "affine_grid_generator": [
        {"theta": plain(2, 2, 3), "size": [2, 3, 5, 7], "align_corners": False}
    ],
    "dropout": [{"input": points(1)[0], "p": 0.5, "train": False}],
    "feature_dropout": [{"input": _IMAGE, "p": 0.5, "train": False}],
    "alpha_dropout": [{"input": points(1)[0], "p": 0.5, "train": False}],
    "feature_alpha_dropout": [{"input": _IMAGE, "p": 0.5, "train": False}],
    "to.dtype": [{"dtype": None}],
    "to.device": [{"device": torch.device("cpu"), "dtype": None}],
}


def calls(name: str, dtype: torch.dtype) -> Iterator[OneCall]:
    """Calls of an operation at its special points."""
    short = name.split(".")[0]
    sets = ARGUMENTS.get(name, ARGUMENTS.get(short, ARGUMENTS.get(f"{short}.default", [{}])))
    for given in sets:
        yield from _calls(name, dtype, given)


def _calls(name: str, dtype: torch.dtype, given: CallerArray) -> Iterator[OneCall]:
    made = {key: _made(value, dtype) for key, value in given.items()}
    missing = []
    for argument in overload(name)._schema.arguments:
        if argument.name in given or argument.has_default_value():
            continue
        if str(argument.type) != "Tensor":
            raise AssertionError(
                f"{name} has no default for {argument.name} ({argument.type}); say in ARGUMENTS "
                "what it is called with"
            )
        missing.append(argument.name)
    if "dtype" in made:
        made["dtype"] = dtype
    for argument, make in zip(missing, points(len(missing)) if missing else (), strict=True):
        made[argument] = make(dtype)
    call = OneCall(name, made)
    if len(missing) == 1:
        kinks = _constants(call)
        call = OneCall(name, {**made, missing[0]: points(1, kinks)[0](dtype)})
    yield call


def _made(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, list):
        return [_made(each, dtype) for each in value]
    return value(dtype) if callable(value) and not isinstance(value, torch.dtype) else value


def _constants(call: OneCall) -> list[float]:
    """The finite constants of the formulas that an operation is translated to."""
    graph, _, _ = call.graph()
    found = {
        float(line.value)
        for node in graph.nodes
        if isinstance(node.op, Elementwise)
        for line in linearize(node.op.expression())
        if line.op == "constant" and line.value is not None and math.isfinite(line.value)
    }
    return sorted(found)
