"""The pass infrastructure: passes, their context, and the function that runs a list of them.

A pass is a function from graph to graph with a name and a contract: passes that must have run
before it, and facts that hold after it.  Its decisions about layouts and buffers go into
:attr:`Context.annotations`, which the memory plan uses together with the last graph.  Every rewrite
asks :meth:`Context.allow` first, which counts it and stops after ``fuel`` rewrites, so that a wrong
number can be bisected.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from minidnn.errors import GraphError, MiniDNNError, OutOfMemoryError
from minidnn.fusion.collapse import Strategy
from minidnn.fusion.target import Target
from minidnn.graph.checker import check
from minidnn.graph.ir import Graph
from minidnn.memory import Annotations

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Rewrite:
    """One rewrite that a pass has made."""

    number: int
    pass_name: str
    description: str

    def __str__(self) -> str:
        return f"#{self.number} {self.pass_name}: {self.description}"


@dataclass
class Context:
    """What passes read (the target, the fusion strategy, options) and what they write besides the
    graph (rewrites, notes, annotations).  One compilation has one context."""

    target: Target = field(default_factory=Target)
    strategy: Strategy = "model"
    #: How many rewrites may be made; None for any number.
    fuel: int | None = None
    rewrites: list[Rewrite] = field(default_factory=list)
    #: Why a rewrite was not made, by the name of a node, value or operator, for explain().
    notes: dict[str, str] = field(default_factory=dict)
    #: How many bytes weights, states and values may take; None for any.
    memory_limit: int | None = None
    #: Whether a store holds the graph's states, so that none of them may become a constant.
    stored: bool = False
    #: Whether the graph itself says which of its values are in half precision.
    mixed: bool = False
    #: Layouts, buffers and offsets of the graph's values, once passes have chosen them.
    annotations: Annotations = field(default_factory=Annotations)
    #: The name of the pass that is running.
    running: str = ""

    def allow(self, description: str) -> bool:
        """Whether a rewrite may be made; if so, it is recorded."""
        if self.fuel is not None and len(self.rewrites) >= self.fuel:
            return False
        self.rewrites.append(Rewrite(len(self.rewrites) + 1, self.running, description))
        log.debug("%s", self.rewrites[-1])
        return True


#: A fact about a graph: yields a complaint for each place where it does not hold.
Fact = Callable[[Graph], Iterator[str]]


@dataclass(frozen=True)
class Pass:
    """A named pass with its contract.

    ``requires`` names passes that must have run before it; ``ensures`` are facts that hold after it
    if fuel is unlimited.
    """

    name: str
    run: Callable[[Graph, Context], Graph]
    requires: tuple[str, ...] = ()
    ensures: tuple[Fact, ...] = ()


Observer = Callable[[Pass, Graph, Graph], None]


def run_passes(
    graph: Graph,
    passes: Sequence[Pass],
    context: Context,
    observe: Observer | None = None,
    verify: bool = False,
) -> Graph:
    """The graph after all passes.

    ``observe`` is called with each pass and the graphs before and after it (for printing).
    ``verify`` checks the graph, its annotations and the contracts around every pass.  An error
    names the pass.
    """
    done: list[str] = []
    for step in passes:
        missing = [name for name in step.requires if name not in done]
        if missing:
            raise GraphError(f"pass {step.name} requires {', '.join(missing)} to run before it")
        context.running = step.name
        try:
            result = step.run(graph, context)
            if verify:
                check(result)
                context.annotations.check(result)
        except MiniDNNError as error:
            raise type(error)(f"pass {step.name}: {error}") from error
        except MemoryError as error:
            raise OutOfMemoryError(f"pass {step.name}: no memory is left: {error}") from error
        except Exception as error:
            error.add_note(f"in pass {step.name}")
            raise
        if verify and context.fuel is None:
            broken = [complaint for fact in step.ensures for complaint in fact(result)]
            if broken:
                raise GraphError(f"pass {step.name} broke its contract: " + "; ".join(broken))
        if observe is not None:
            observe(step, graph, result)
        done.append(step.name)
        graph = result
    return graph
