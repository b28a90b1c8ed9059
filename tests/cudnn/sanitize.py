"""One pass through every function of the binding, small, for compute-sanitizer.

    compute-sanitizer --tool memcheck --error-exitcode 9 python tests/cudnn/sanitize.py [N]

N random convolutions in each direction (default 10).  CuPy's pool is off, so that each array is
an allocation of its own and one byte beyond it is an error.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent))


def load(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, HERE / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def main() -> None:
    import cupy
    import numpy as np

    from minidnn import cudnn
    from minidnn.cudnn import enums
    from minidnn.cudnn.errors import CuDNNError, NoAlgorithmError

    cupy.cuda.set_allocator(None)
    oracles, tests = load("oracles"), load("test_gpu_convolution")
    rng = np.random.default_rng(1)
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    done = 0
    for direction in ("forward", "backward_data", "backward_filter"):
        for _ in range(count):
            case = oracles.random_case(rng)
            options = {"algorithm": "heuristic", "math": enums.MathType.CUDNN_FMA_MATH}
            try:
                ratio, _, name = tests.one_case(
                    cupy, oracles, rng, case, direction, options, 1.0, 0.0
                )
            except (CuDNNError, NoAlgorithmError) as error:
                print("refused:", str(error).splitlines()[0])
                continue
            assert ratio <= 1, (ratio, name, case)
            done += 1
    x, w = cupy.random.randn(2, 8, 9, 7).astype("f"), cupy.random.randn(8, 8, 3, 3).astype("f")
    c = cupy.ones(8, "f")
    y = cudnn.convolution.bias_activation_forward(x, w, c, padding=1)
    cudnn.convolution.backward_bias(y)
    tanh = enums.ActivationMode.CUDNN_ACTIVATION_TANH
    cudnn.activation.backward(y, x, x, mode=tanh)
    cudnn.pooling.backward(cudnn.pooling.forward(x, window=2), x[:, :, :4, :3].copy(), x, window=2)
    cudnn.softmax.backward(cudnn.softmax.forward(x), x)
    with cudnn.lrn.LRNDescriptor.of() as lrn:
        cudnn.lrn.backward(cudnn.lrn.forward(x, descriptor=lrn), x, x, descriptor=lrn)
    trained = cudnn.batch_norm.forward_training(x, c, c)
    cudnn.batch_norm.backward(x, x, c, trained)
    cudnn.batch_norm.forward_inference(x, c, c, c, c)
    with cudnn.dropout.Dropout(0.5) as drop:
        kept, reserve = drop.forward(x)
        drop.backward(kept, reserve)
        drop.restore(drop.save())
    largest = enums.ReduceTensorOp.CUDNN_REDUCE_TENSOR_MAX
    cudnn.reduction.reduce(largest, x, axes=(2, 3), indices=True)
    cudnn.op_tensor.apply(enums.OpTensorOp.CUDNN_OP_TENSOR_MUL, x, c.reshape(1, 8, 1, 1))
    cudnn.op_tensor.add(c.reshape(1, 8, 1, 1), x)
    cudnn.op_tensor.scale(cudnn.op_tensor.fill(y, 2.0), 0.5)
    cudnn.transform.transform(x, cupy.empty((2, 9, 7, 8), "f").transpose(0, 3, 1, 2))
    graphs(cupy)
    cupy.cuda.runtime.deviceSynchronize()
    print(f"{done} convolutions, every other function and the graph API: done")


def graphs(cupy: Any) -> None:
    """Every operation of the graph API once, and one convolution by every plan."""
    from minidnn.cudnn.graph import Graph

    def array(*shape: int) -> Any:  # NCHW order, channels innermost in memory
        n, c, h, w = shape
        return cupy.random.randn(n, h, w, c).astype("e").transpose(0, 3, 1, 2)

    x, w, y, bias = array(2, 16, 9, 7), array(8, 16, 3, 3), array(2, 8, 9, 7), array(1, 8, 1, 1)
    g = Graph()
    xt, wt, bt, zt = g.tensors(x, w, bias, y)
    g.relu(g.convolution(xt, wt, padding=1) + bt + zt)
    g.build(choose="heuristic")(x, w, bias, y)
    for name, arrays in (
        ("matmul", [cupy.random.randn(2, 16, 24).astype("e"), cupy.ones((2, 24, 8), "e")]),
        ("pool", [x]),
        ("reduce", [y]),
    ):
        g = Graph()
        given = g.tensors(*arrays)
        if name == "matmul":
            g.matmul(*given)
        elif name == "pool":
            g.pool("max", given[0], 3, stride=2, padding=1)
        else:
            g.output(g.reduce("add", given[0], (0, 2, 3)), "float32")
        g.build(choose="heuristic")(*arrays)
    xs, ws = (cupy.ascontiguousarray(a).astype("f") for a in (x, w))
    g = Graph()
    g.convolution(*g.tensors(xs, ws), padding=1)
    for plan in g.plans():
        plan(xs, ws)
        cupy.cuda.runtime.deviceSynchronize()


if __name__ == "__main__":
    main()
