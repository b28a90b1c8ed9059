"""Garbage collection is paused while networks are compiled."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator

import pytest

import minidnn as md
from minidnn import layers as L
from minidnn._garbage_collection import garbage_collection_paused


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    enabled = gc.isenabled()
    yield
    (gc.enable if enabled else gc.disable)()


def test_the_last_that_leaves_turns_it_on() -> None:
    gc.enable()
    inside, leave = threading.Event(), threading.Event()

    def other() -> None:
        with garbage_collection_paused():
            inside.set()
            leave.wait()

    thread = threading.Thread(target=other)
    with garbage_collection_paused():
        thread.start()
        inside.wait()
        with garbage_collection_paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert not gc.isenabled()  # for the other thread
    leave.set()
    thread.join()
    assert gc.isenabled()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_child_knows_that_other_threads_are_gone() -> None:
    gc.enable()
    inside, leave = threading.Event(), threading.Event()

    def other() -> None:
        with garbage_collection_paused():
            inside.set()
            leave.wait()

    thread = threading.Thread(target=other)
    thread.start()
    inside.wait()
    child = os.fork()
    if not child:
        os._exit(0 if gc.isenabled() else 1)
    _, status = os.waitpid(child, 0)
    leave.set()
    thread.join()
    assert os.waitstatus_to_exitcode(status) == 0


def test_errors_turn_it_on() -> None:
    gc.enable()
    with pytest.raises(ZeroDivisionError), garbage_collection_paused():
        raise ZeroDivisionError
    assert gc.isenabled()


def test_what_the_user_turned_off_stays_off() -> None:
    gc.disable()
    with garbage_collection_paused():
        pass
    assert not gc.isenabled()


def test_it_is_off_while_a_network_is_compiled() -> None:
    gc.enable()
    seen: list[bool] = []
    network = L.Sequential(L.Conv2d(3, 4, 3), L.ReLU())
    md.compile(
        network, (1, 3, 8, 8), device="reference", observe=lambda *_: seen.append(gc.isenabled())
    )
    assert seen and not any(seen)
    assert gc.isenabled()
