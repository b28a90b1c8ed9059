"""Contestants in turn."""

from __future__ import annotations

from itertools import islice

from minidnn.measure import interleaved, orders


def test_every_round_begins_with_another() -> None:
    assert list(islice(orders("abc"), 4)) == [list("abc"), list("bca"), list("cab"), list("abc")]
    assert next(orders("abc", first=4)) == list("bca")


def test_all_are_taken_once_a_round() -> None:
    taken: list[str] = []

    def take(name: str) -> int:
        taken.append(name)
        return len(taken)

    found = interleaved({"a": lambda: take("a"), "b": lambda: take("b")}, 3)
    assert "".join(taken) == "abbaab"
    assert found == {"a": [1, 4, 5], "b": [2, 3, 6]}
