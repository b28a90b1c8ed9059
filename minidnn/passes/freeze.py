"""freeze: states become constants.

Handles: every state that the graph does not update, which becomes a constant of its initial array;
all passes after it see what they would see had the network been recorded without states.  It is
no optimization, and takes no fuel.
Refuses: states that the graph updates, and all of them if a store holds them
(``Context.stored``).
"""

from __future__ import annotations

from functools import partial

import numpy as np

from minidnn.graph.ir import Constant, Graph, Rewriter, State
from minidnn.passes.infrastructure import Context, Pass


def freeze(graph: Graph, context: Context) -> Graph:
    """See the module."""
    frozen = [state for state in graph.states if state not in graph.updates]
    if context.stored or not frozen:
        return graph
    rewriter = Rewriter(graph)
    for state in frozen:
        rewriter.replace(state, Constant(state.type, state.name, partial(_data, state)))
    for node in graph.nodes:
        rewriter.keep(node)
    return rewriter.finish()


def _data(state: State) -> np.ndarray:
    return state.data


FREEZE = Pass("freeze", freeze)
