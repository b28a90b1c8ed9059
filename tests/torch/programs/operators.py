"""PyTorch's own samples of operators (OpInfo), forwards and backwards through the bridge.

    python -m tests.torch.programs.operators --write
    python -m tools.pytorch_operations_page > docs/reference/pytorch-operations.md

A sample is a call of an operator.  Its first tensor is an argument of a module, its other tensors
are the module's parameters and buffers, as weights are; numbers are constants.
"""

from __future__ import annotations

import argparse
import copy
import json
import logging
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from minidnn.frontends.torch.aten.call import known
from tests.torch.programs import ways
from tests.torch.programs.harness import Program, Run, faults, run
from tests.torch.programs.ways import EAGER, OPTIMIZE

RECORD = Path(__file__).with_name("opinfo.json")
MOST = 12
"""So many samples of an operator are looked at, the first ones."""

#: Operators of op_db whose names are not those of the ATen operations that they call.
OTHERS = {
    *("nn.functional.interpolate", "nn.functional.grid_sample", "nn.functional.normalize"),
    *("nn.functional.upsample_bilinear", "nn.functional.upsample_nearest", "nn.functional.fold"),
}
#: Draw random numbers, with masks that are minidnn's own.
RANDOM = ("dropout", "rrelu")
PREFIXES = ("", "nn.functional.", "linalg.")


class Call(nn.Module):
    """A sample as a module, to be called with its first tensor."""

    def __init__(self, function: Any, sample: Any) -> None:
        super().__init__()
        self.function = function
        leaves, self.spec = tree_flatten((sample.input, sample.args, sample.kwargs))
        self.leaves: list[Any] = []
        self.first: torch.Tensor | None = None
        for place, leaf in enumerate(leaves):
            if isinstance(leaf, torch.Tensor) and self.first is None:
                self.first, leaf = leaf.detach().clone().requires_grad_(leaf.requires_grad), INPUT
            elif isinstance(leaf, torch.Tensor):
                self._hold(f"held_{place}", leaf)
                leaf = Held(f"held_{place}")
            self.leaves.append(leaf)

    def _hold(self, name: str, tensor: torch.Tensor) -> None:
        if tensor.requires_grad:
            self.register_parameter(name, nn.Parameter(tensor.detach().clone()))
        else:
            self.register_buffer(name, tensor.detach().clone())

    def forward(self, x: torch.Tensor) -> Any:
        leaves = [self._found(leaf, x) for leaf in self.leaves]
        given, args, kwargs = tree_unflatten(leaves, self.spec)
        return self.function(given, *args, **kwargs)

    def _found(self, leaf: Any, x: torch.Tensor) -> Any:
        if not isinstance(leaf, Held):
            return leaf
        return getattr(self, leaf.name) if leaf.name else x


@dataclass(frozen=True)
class Held:
    """Stands for a tensor that a module holds under this name; without one, for its argument."""

    name: str


INPUT = Held("")


def in_scope() -> list[Any]:
    """The OpInfos of operators that minidnn takes, by name."""
    from torch.testing._internal.common_methods_invocations import op_db

    names = {name.split(".")[0] for name in known()}
    found = {}
    for each in op_db:
        own = {each.aten_name, *(alias.name for alias in each.aliases)}
        own |= {each.name.removeprefix(prefix) for prefix in PREFIXES}
        is_random = any(word in each.name for word in RANDOM)
        if (own & names or each.name in OTHERS) and not is_random:
            found[name_of(each)] = each
    return [found[name] for name in sorted(found)]


def name_of(info: Any) -> str:
    return f"{info.name} ({info.variant_test_name})" if info.variant_test_name else str(info.name)


@cache
def scope() -> dict[str, Any]:
    return {name_of(info): info for info in in_scope()}


def programs(info: Any) -> Iterator[Program]:
    """A program of each sample: a call and its gradients, in training."""
    torch.manual_seed(0)
    dtype = torch.float32 if torch.float32 in info.dtypes else torch.bool
    learns = info.supports_autograd and dtype is torch.float32
    for sample in info.sample_inputs("cpu", dtype, requires_grad=learns):
        try:
            net = Call(info.op, sample)
        except (RuntimeError, NotImplementedError):  # of a tensor that has no memory of its own
            continue
        if net.first is not None and net.first.layout is torch.strided and not _draws(sample):
            yield Program(name_of(info), "operators", _body(net), share=0.0, looseness=10.0)


def _draws(sample: Any) -> bool:
    return bool(sample.kwargs.get("dropout_p"))


def _body(net: Call) -> Any:
    def body(run: Run) -> None:
        own = copy.deepcopy(net)
        assert net.first is not None
        x = net.first.detach().clone().requires_grad_(net.first.requires_grad)
        found = run.compile(own)(x)
        leaves = [each for each in tree_flatten(found)[0] if isinstance(each, torch.Tensor)]
        sums = [_weighed(each) for each in leaves if each.requires_grad]
        if sums:
            sum(sums[1:], sums[0]).backward()
        run.step(found, x.grad, own)

    return body


def _weighed(tensor: torch.Tensor) -> torch.Tensor:
    """A sum that is not the same whatever the order of elements is."""
    weights = torch.linspace(0.5, 1.5, tensor.numel()).reshape(tensor.shape)
    return (tensor.abs() if tensor.is_complex() else tensor).mul(weights).sum()


@dataclass(frozen=True)
class Record:
    """What was found of an operator.

    Attributes:
        samples: how many PyTorch has of which eager PyTorch takes the gradient.
        right: for how many of them all numbers and gradients are PyTorch's.
        taken: of how many minidnn computes something.
        fault: the kind of the first difference; "" without any.
    """

    samples: int
    right: int
    taken: int
    fault: str


def record(info: Any, way: str = OPTIMIZE, most: int = MOST) -> tuple[Record, str]:
    """What is found of an operator, and the text of the first fault."""
    samples = right = taken = 0
    fault = text = ""
    for program in programs(info):
        expected = run(program, EAGER, "reference")
        if expected.error is not None:
            continue
        found = run(program, way, "reference")
        differing = faults(program, found, expected)
        samples += 1
        right += not differing
        taken += ways.share(found.text) > 0
        if differing and not fault:
            fault, text = differing[0].kind, str(differing[0])
        if samples == most:
            break
    return Record(samples, right, taken, fault), text


def recorded() -> dict[str, Record]:
    """What was found of all operators when it was last written."""
    found = json.loads(RECORD.read_text(encoding="utf-8"))
    return {name: Record(**each) for name, each in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--only", nargs="+")
    parser.add_argument("--most", type=int, default=MOST, help="samples of an operator")
    parser.add_argument("--way", default=OPTIMIZE)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    logging.getLogger("torch").setLevel(logging.ERROR)
    found = {}
    for name, info in scope().items():
        if given.only is None or name in given.only:
            begin = time.process_time()
            found[name], text = record(info, given.way, given.most)
            seconds = time.process_time() - begin
            print(f"{name}: {found[name]} {seconds:.1f} s {text[:300]}", flush=True)
    if given.write:
        if given.only is not None:
            found = dict(sorted((recorded() | found).items()))
        lines = [f'"{name}": {json.dumps(asdict(each))}' for name, each in found.items()]
        RECORD.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
