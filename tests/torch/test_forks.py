"""Whatever a parent has computed, PyTorch and minidnn compute in its forked children, too."""

from __future__ import annotations

import os
import sys
import threading

import pytest

from minidnn._forks import ForkLock
from tests.cpu.conftest import run_python
from tests.devices import unavailable

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here"),
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
]

PARENT = """
    import multiprocessing, os, signal, sys, threading, warnings
    import torch
    import minidnn as md
    from minidnn.acceleration import threads
    from minidnn.frontends.torch.capture import CAPTURING
    from tests.torch.test_threads import network
    warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
    torch.set_num_threads(2)
    torch.set_grad_enabled(False)
    x = torch.randn(4, 3, 64, 64)
    net = network()
    whole = md.optimize(net[0], x, device="cpu", threads=2, strict=True)
    parts = md.optimize(net, x, device="cpu", threads=2)

    def large():  # of which all of PyTorch's threads do a part
        return torch.sin(torch.linspace(0, 1, 1 << 20))

    def all_the_same():
        return (
            torch.equal(whole(x), wanted[0])
            and torch.equal(parts(x), wanted[1])
            and torch.equal(large(), wanted[2])
            and torch.equal(whole(x), wanted[0])
        )

    wanted = [whole(x), parts(x), large()]

    def forked(work):
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            signal.alarm(60)
            os._exit(0 if work() else 1)
        return pid

    def ended(pid):
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def child_of_a_child():
        return all_the_same() and ended(forked(all_the_same)) == 0 and all_the_same()

    def compiles():
        fast = md.optimize(network()[0], x, device="cpu", threads=2, strict=True)
        return torch.equal(fast(x), wanted[0])
    """


def run(code: str) -> list[str]:
    if (reason := unavailable("cpu")) is not None:
        pytest.skip(reason)
    child = run_python(code)
    out, err = child.communicate(timeout=180)
    assert child.returncode == 0, err
    return out.splitlines()


def test_children_compute_what_their_parent_computes() -> None:
    found = run(
        PARENT
        + """
    for before in (large, lambda: whole(x), lambda: parts(x)):
        for work in (lambda: torch.equal(whole(x), wanted[0]),
                     lambda: torch.equal(parts(x), wanted[1]),
                     lambda: torch.equal(large(), wanted[2])):
            before()
            print("after one", ended(forked(work)))
    large()
    print("child of a child", ended(forked(child_of_a_child)))
    large()
    print("compiles", ended(forked(compiles)))

    # As a server that has loaded and tried its network before it forks, and goes on itself.
    workers = [forked(child_of_a_child) for _ in range(3)]
    same = all(all_the_same() for _ in range(5))
    print("workers", *map(ended, workers), same)

    # From a thread that has threads of PyTorch's of its own.
    def elsewhere():
        large()
        codes.append(ended(forked(all_the_same)))
    codes = []
    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    print("from a thread", *codes)

    # A thread that ends takes locks of MKL's, which another may have had when this was forked.
    def ends_no_threads():
        threads._pauses = lambda: os._exit(3)
        large()
        return torch.equal(whole(x), wanted[0])

    # While another thread has the lock of whatever is captured.
    held, done = threading.Event(), threading.Event()
    def capturing():
        with CAPTURING:
            held.set()
            done.wait()
    thread = threading.Thread(target=capturing)
    thread.start()
    held.wait()
    code = ended(forked(compiles))
    without = ended(forked(ends_no_threads))
    done.set()
    thread.join()
    print("while another captures", code, without)

    large()
    with multiprocessing.get_context("fork").Pool(2) as pool:
        print("pool", *pool.starmap_async(all_the_same, [()] * 4).get(60))
    assert all_the_same()
    """
    )
    assert found == [
        *["after one 0"] * 9,
        "child of a child 0",
        "compiles 0",
        "workers 0 0 0 True",
        "from a thread 0",
        "while another captures 0 0",
        "pool True True True True",
    ]


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not say who was forked")
def test_a_child_imports_minidnn_when_its_parent_had_pytorch_alone() -> None:
    """PyTorch itself would wait for ever there in its next large operation; ours do not."""
    found = run("""
    import os, signal, warnings
    import torch
    warnings.simplefilter("ignore", DeprecationWarning)
    torch.set_num_threads(2)
    torch.set_grad_enabled(False)
    torch.sin(torch.ones(1 << 20))
    pid = os.fork()
    if pid == 0:
        signal.alarm(30)
        import minidnn as md
        from minidnn.acceleration import threads
        from tests.torch.test_threads import network
        x = torch.randn(4, 3, 64, 64)
        fast = md.optimize(network()[0], x, device="cpu", threads=2, strict=True)
        same = all((fast(x).numpy() == fast(x).numpy()).all() for _ in range(3))
        print(same, threads._thread_without_pool is not None, threads.team_of(2), flush=True)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
    import minidnn as md
    from minidnn.acceleration import threads
    print(threads._thread_without_pool)
    """)
    assert found == ["True True None", "0", "None"]


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_lock_of_another_thread_is_free_in_a_child(reentrant: bool) -> None:
    lock, held, done = ForkLock(reentrant), threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    pid = os.fork()
    if pid == 0:
        with lock:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    done.set()
    thread.join()
    with lock:
        pid = os.fork()
        if pid == 0:  # whoever forks has it in the child, too
            lock.__exit__()
            with lock:
                os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    with lock:
        pass
