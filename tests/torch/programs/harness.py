"""Programs, as people write them, run eager and through minidnn, and compared step by step.

A program is a function of a :class:`Run`.  It builds a module, has it compiled, calls it a few
times, and hands over at each step what it would look at itself: results, modules with their
parameters, buffers and gradients, arguments that were written to.

    @program()
    def counter(run):
        net = Counter()
        fast = run.compile(net)
        for x in run.batches(3, 2, 4):
            run.step(fast(x), net)
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from minidnn.errors import MiniDNNWarning
from tests.cases.record import one_thread
from tests.torch.programs import ways
from tests.torch.programs.compare import NO_ERROR, Fault, Leaf, Snapshot, differences, snapshot


class Run:
    """One run of a program, in one way.

    Attributes:
        way: "eager", "optimize", "compile" or "aot_eager".
        device: minidnn's: "reference", "cpu" or "cuda".
        memory: PyTorch's device for tensors and modules.
        steps: what the program has handed over.
        initial: parameters and buffers before the first step, by name.
        error: the type of the exception that ended the program, and its text.
        warned: what minidnn warned of.
    """

    def __init__(self, way: str, device: str) -> None:
        self.way = way
        self.device = device
        self.memory = "cuda" if device == "cuda" else "cpu"
        self.steps: list[Snapshot] = []
        self.initial: dict[str, Leaf] = {}
        self.error: tuple[type[BaseException], str] | None = None
        self.warned: list[str] = []
        self.text = ""
        self._modules: list[Any] = []
        self._random = torch.Generator().manual_seed(1)

    def compile(self, module: Any, **options: Any) -> Any:
        """The module as this run runs it; in an eager run the module itself."""
        if isinstance(module, nn.Module):
            module = module.to(self.memory)
            state = snapshot(module)
            self.initial |= {path.partition("].")[2]: leaf for path, leaf in state.items()}
        made = ways.compiled(self.way, module, self.device, options)
        self._modules.append(made)
        return made

    def step(self, *values: Any) -> None:
        """Hands over what is to be compared at this moment."""
        self.steps.append(snapshot(*values))

    def raises(self, call: Callable[[], Any]) -> None:
        """Hands over whether a call raises, and which type of exception."""
        try:
            call()
        except Exception as error:
            raised = _kind_of_error(error)
        else:
            raised = NO_ERROR
        self.steps.append({"raised": Leaf("raised", raised)})

    def randn(self, *shape: int) -> torch.Tensor:
        """Numbers that are the same in all runs, whatever else draws some."""
        return torch.randn(shape, generator=self._random).to(self.memory)

    def randint(self, high: int, *shape: int) -> torch.Tensor:
        return torch.randint(high, shape, generator=self._random).to(self.memory)

    def batches(self, count: int, *shape: int) -> Iterator[torch.Tensor]:
        return (self.randn(*shape) for _ in range(count))


@dataclass(frozen=True)
class Program:
    """A program with what is demanded of it.

    Attributes:
        name: the function's.
        theme: the file's.
        body: the function.
        share: the part of operations that minidnn must run itself, at least: falling back to
            PyTorch is right and yet no pass.
        looseness: by how much tolerances are wider, where a program magnifies rounding.
        is_quick: whether it is in the sample that CI runs.
    """

    name: str
    theme: str
    body: Callable[[Run], None] = field(repr=False)
    share: float = 0.5
    looseness: float = 1.0
    is_quick: bool = False


PROGRAMS: dict[str, Program] = {}


def program(
    share: float = 0.5, looseness: float = 1.0, quick: bool = False
) -> Callable[[Callable[[Run], None]], Callable[[Run], None]]:
    """Makes a function a program of the bench."""

    def add(body: Callable[[Run], None]) -> Callable[[Run], None]:
        name, theme = body.__name__, body.__module__.rsplit(".", 1)[-1]
        assert name not in PROGRAMS, f"two programs are called {name}"
        PROGRAMS[name] = Program(name, theme, body, share, looseness, quick)
        return body

    return add


def run(program: Program, way: str, device: str) -> Run:
    """Runs a program from a known state of PyTorch's generator."""
    made = Run(way, device)
    before = ways.forget()
    with _recorded(made), one_thread():
        torch.manual_seed(0)
        try:
            program.body(made)
        except Exception as error:
            made.error = type(error), f"{type(error).__name__}: {error}"
    if made.error is None:
        made.text = ways.explanation(way, made._modules).removeprefix(before)
    ways.forget()
    return made


@contextmanager
def _recorded(made: Run) -> Iterator[None]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    made.warned = [str(each.message) for each in caught if _is_ours(each)]


def _is_ours(warning: warnings.WarningMessage) -> bool:
    return issubclass(warning.category, MiniDNNWarning)


def faults(program: Program, found: Run, expected: Run) -> list[Fault]:
    """How a run differs from the eager one, and from what is demanded of minidnn."""
    made = list(_error_faults(found, expected))
    if not made:
        made = list(differences(found.steps, expected.steps, program.looseness, expected.initial))
    if not made and found.way in (ways.OPTIMIZE, ways.COMPILE):
        made = [*_share_faults(program, found), *_warning_faults(found)]
    return made


def _error_faults(found: Run, expected: Run) -> Iterator[Fault]:
    """Exceptions that only one of both raised; a subclass of the expected one will do."""
    if expected.error is None:
        if found.error is not None:
            yield Fault("error", found.error[1])
    elif found.error is None:
        yield Fault("no error", f"eager raises {expected.error[1]}")
    elif not issubclass(found.error[0], expected.error[0]):
        yield Fault("error", f"{found.error[1]} instead of {expected.error[1]}")


def _share_faults(program: Program, found: Run) -> Iterator[Fault]:
    """On the CPU minidnn takes what gains, which is little of a tiny program."""
    share = ways.share(found.text)
    if found.device != "cpu" and share < program.share:
        text = f"minidnn runs {share:.2f} of the operations, {program.share} at least are due"
        yield Fault("share", f"{text}: {found.warned[:2]}\n{found.text[:2000]}")


def _warning_faults(found: Run) -> Iterator[Fault]:
    """The same thing may be said once, for whatever sizes."""
    said = Counter(re.sub(r"\d+", "N", text) for text in found.warned)
    for text, count in said.items():
        if count > 1:
            yield Fault("warned twice", f"{count} times: {text:.300}")


def _kind_of_error(error: BaseException) -> str:
    """The name of the kind of PyTorch or Python that an exception is."""
    plain = (ValueError, TypeError, IndexError, KeyError, AttributeError, ZeroDivisionError)
    for kind in (NotImplementedError, *plain, RuntimeError):
        if isinstance(error, kind):
            return kind.__name__
    return type(error).__name__
