"""Programs that nobody wrote: modules of writes, views, branches and hooks, as text.

Hypothesis draws numbers; :func:`source` makes a module and a loop of them that a person can read
and run.  What is small in numbers is short as text, so that shrinking gives a short program.
"""

from __future__ import annotations

import linecache
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

from hypothesis import strategies as st

from tests.torch.programs.harness import Program, Run

#: Makes a new value of one before (a) and of another one (b).
COMPUTES = (
    "{a}.tanh()",
    "{a}.relu()",
    "{a} * 0.5",
    "{a} + {b}",
    "{a} * {b}.sigmoid()",
    "self.one({a})",
    "self.two({a})",
    "self.norm({a})",
    "{a} @ self.one.weight.t()",
    "{a} * self.scale",
    "{a} + self.n",
    "{a} * self.m.mean()",
    "{a} - {b}.mean(0)",
    "{a}.detach() + {b}",
    "{a}.clone()",
    "{a}[:, :2].repeat(1, 2)",
    "torch.cat([{a}[:, 2:], {b}[:, :2]], 1)",
    "{a}.flip(1)",
    "{a}.view(2, 6).reshape(3, 4) + 1",
    "torch.where({a} > 0, {a}, {b})",
    "{a}.softmax(1)",
    "{a} + self.h",
    "{a} + {b}.data.exp()",
    "{a} + ({b}.relu() - {a}).data",
)
#: Makes a view, which later writes may go through.
VIEWS = (
    *("{a}[:, :2]", "{a}.view(-1)[2:10]", "{a}.t()", "{a}[1]", "{a}.unsqueeze(0)", "self.n[1:3]"),
    *("{a}.detach()[1]", "{a}.data[:, :1]"),
)
#: Writes to a value in between, an argument, or a view.
LOCAL_WRITES = (
    "{a}.mul_(0.5)",
    "{a}.add_(1)",
    "{a}.clamp_(-1, 1)",
    "{a}[:, :1].fill_(0.25)",
    "{a}[0] += 1",
    "{a}.view(-1)[3:5].neg_()",
    "{v}.add_(0.5)",
    "{v}.mul_(-1)",
    "{v}.zero_()",
    "{a}.detach().mul_(0.5)",
    "{a}.data.add_(1)",
)
#: Writes to the module's state.
STATE_WRITES = (
    "self.n.add_(1)",
    "self.n += 0.5",
    "self.n = self.n + 1",
    "self.n.mul_(0.5).add_({a}.detach().mean(0))",
    "self.n.copy_({a}.detach()[0])",
    "self.n.lerp_({a}.detach().mean(0), 0.25)",
    "self.n[0:1].add_(1)",
    "self.n[-1] = 2.0",
    "torch.mul(self.n, 0.5, out=self.n)",
    "self.n.data.add_(1)",
    "self.m.clamp_(max=0.5)",
    "self.m[0].copy_(self.n)",
    "self.count += 1",
    "self.h = {a}.detach()",
    "self.h = self.h * 0.5",
    "self.one.weight.mul_(0.9)",
    "self.scale.data.mul_(0.9)",
    "self.two.weight.data.clamp_(-0.2, 0.2)",
    "self.n.data.lerp_({a}.data.mean(0), 0.25)",
)
HOOKS = (
    "if {a}.requires_grad: {a}.register_hook(lambda gradient: gradient * 0.5)",
    "if {a}.requires_grad: {a}.register_hook(lambda gradient: gradient.clamp(-1, 1))",
)
BLOCKS = ("", "with torch.no_grad():", "if self.training:", "with torch.enable_grad():")
RESULTS = ("{a}", "({a}, {b})", "({a}, x * 2)", "{{'y': {a}, 'n': self.n}}", "({a}, {v})", "[{a}]")
#: What happens between calls.
BETWEEN = (
    "",
    "descend(net)",
    "net.one.weight.data.mul_(0.8)",
    "net.two.weight = net.one.weight",
    "net.two = torch.nn.Linear(4, 4).to(run.memory)",
    "net.one.requires_grad_(not net.one.weight.requires_grad)",
    "net.n.zero_()",
)

HEAD = """
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
        self.norm = torch.nn.BatchNorm1d(4, eps=0.1)
        self.scale = torch.nn.Parameter(torch.tensor(0.75))
        self.register_buffer("n", torch.zeros(4))
        self.register_buffer("m", torch.ones(2, 4))
        self.register_buffer("count", torch.tensor(0))
        self.h = torch.ones(4)

    def forward(self, x):
"""
LOOP = """
def program(run):
    net = Net()
    net.h = net.h.to(run.memory)
    fast = run.compile(net)
"""
CALL = """
    x = run.randn(3, 4){required}
    fast.train({training})
    with torch.set_grad_enabled({grad}):
        found = fast(x{copied})
    backward(found)
    run.step(found, x, net, net.h)
"""
HELPERS = """
import torch
from torch.utils._pytree import tree_leaves

def backward(found):
    leaves = [each for each in tree_leaves(found) if each.requires_grad]
    if leaves:
        sum(each.square().mean() for each in leaves).backward()

def descend(net):
    with torch.no_grad():
        for parameter in net.parameters():
            if parameter.grad is not None:
                parameter.sub_(0.1 * parameter.grad)
                parameter.grad = None
"""


@dataclass(frozen=True)
class Statement:
    """A line of forward: which kind, which template of it, its operands, the block around it."""

    templates: tuple[str, ...]
    which: int
    a: int
    b: int
    block: str


@dataclass(frozen=True)
class Step:
    """A call of the module, and what is done before it."""

    between: str
    training: bool
    grad: bool
    is_required: bool


Drawn = tuple[list[Statement], str, list[Step]]


def drawn() -> st.SearchStrategy[Drawn]:
    """What a program is made of."""
    kinds = (COMPUTES, STATE_WRITES, LOCAL_WRITES, COMPUTES, VIEWS, HOOKS)
    small = st.integers(0, 3)
    statement = st.builds(
        Statement,
        st.sampled_from(kinds),
        st.integers(0, 1000),
        small,
        small,
        st.sampled_from(BLOCKS),
    )
    step = st.builds(Step, st.sampled_from(BETWEEN), st.booleans(), st.booleans(), st.booleans())
    return st.tuples(
        st.lists(statement, min_size=1, max_size=7),
        st.sampled_from(RESULTS),
        st.lists(step, min_size=2, max_size=4),
    )


def source(found: Drawn) -> str:
    """The text of a program: a class Net, and a function of a Run."""
    statements, result, steps = found
    lines = [HEAD.strip("\n"), *("        " + each for each in _forward(statements, result))]
    lines.append(LOOP.rstrip("\n"))
    for step in steps:
        if step.between:
            lines.append(f"    with torch.no_grad():\n        {step.between}")
        required = ".requires_grad_()" if step.is_required else ""
        copied = ".clone()" if step.is_required else ""
        filled = CALL.format(
            required=required, copied=copied, training=step.training, grad=step.grad
        )
        lines.append(filled.strip("\n"))
    return "\n".join(lines) + "\n"


def _forward(statements: list[Statement], result: str) -> Iterator[str]:
    values, views = ["x"], ["self.n[:2]"]
    for number, each in enumerate(statements):
        named = {
            "a": values[-1 - each.a % len(values)],
            "b": values[-1 - each.b % len(values)],
            "v": views[-1 - each.b % len(views)],
        }
        line = each.templates[each.which % len(each.templates)].format(**named)
        block = each.block
        if each.templates is COMPUTES:
            line, block = f"y{number} = {line}", "" if block.startswith("if") else block
            values.append(f"y{number}")
        elif each.templates is VIEWS:
            line, block = f"v{number} = {line}", ""
            views.append(f"v{number}")
        if "weight.mul_" in line and not block:
            block = "with torch.no_grad():"  # autograd refuses it otherwise
        yield from (block, f"    {line}") if block else (line,)
    names = {"a": values[-1], "b": values[len(values) // 2], "v": views[-1]}
    yield "return " + result.format(**names)


_numbers = count()


def made(text: str, looseness: float = 10.0) -> Program:
    """The program that a text is."""
    file = f"<generated program {next(_numbers)}>"
    whole = HELPERS + text
    linecache.cache[file] = (len(whole), None, whole.splitlines(keepends=True), file)
    names: dict[str, Any] = {"__name__": "generated"}
    exec(compile(whole, file, "exec"), names)

    def body(run: Run) -> None:
        names["program"](run)

    return Program("generated", "generated", body, share=0.0, looseness=looseness)
