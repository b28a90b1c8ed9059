"""update_in_place: copies where what a state becomes is not computed over it."""

from __future__ import annotations

from minidnn.passes.in_place import update_in_place
from minidnn.passes.infrastructure import Context
from minidnn.passes.pipeline import optimize
from tests.passes.build import expect
from tests.states.build import graph_of, state, swap


def test_two_states_become_each_other() -> None:
    after = update_in_place(graph_of(swap, (1, 3, 4, 5)), Context())
    expect(
        after,
        """
        g(%x: float32[1, 3, 4, 5]) {
          %add: float32[1, 3, 4, 5] = Add()(%x, $a)
          %sub: float32[1, 3, 4, 5] = Sub()(%add, $b)
          %b.copy: float32[1, 3, 4, 5] = Identity()($b)
          %a.copy: float32[1, 3, 4, 5] = Identity()($a)
          %b.copy.copy: float32[1, 3, 4, 5] = Identity()(%b.copy)
          $a <- %b.copy.copy
          $b <- %a.copy
          return %sub
        }
        """,
    )


def test_what_a_run_gives_of_a_state_is_what_it_was() -> None:
    def build(trace, x):
        w = state(trace, "w", x.shape)
        trace.update(w, w + x)
        return w

    after = update_in_place(graph_of(build, (2, 3)), Context())
    assert [node.name for node in after.nodes] == ["add", "w.copy", "add.copy"]
    assert after.outputs[0].name == "w.copy"


def test_nothing_is_copied_that_is_in_place_or_stays() -> None:
    def build(trace, x):
        w, v = state(trace, "w", x.shape), state(trace, "v", x.shape)
        trace.update(w, w * 0.5 + x)
        trace.update(v, v)
        return x + v

    graph = graph_of(build, (2, 3))
    assert update_in_place(graph, Context()).nodes == graph.nodes
    optimized = optimize(graph, Context(), verify=True)
    assert "Identity" not in str(optimized), "one sequence computes the sum and the update in place"
