"""Many steps of an optimized module take no more memory than few, and the same."""

from __future__ import annotations

import copy
import gc
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import nn

import minidnn as md
from minidnn.acceleration.part import ALIGNMENT, CompiledPart, EmptyVectors
from minidnn.runtime.program import DonatedLayout
from tests.torch.test_trained import examples, network, program

MOST_BYTES = 1 << 20
"""Less than 200 steps would lose of the kept values, gradients, or results of this network."""


def resident_bytes() -> int:
    fields = Path("/proc/self/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.sampled(3)
@pytest.mark.early
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="no /proc")
@pytest.mark.parametrize("device", ["reference", pytest.param("cpu", marks=pytest.mark.full)])
def test_two_hundred_steps(device: str) -> None:
    net = nn.Sequential(network(), nn.Dropout(0.5))
    fast = md.optimize(net, device=device).train()
    optimizer = torch.optim.Adam(fast.parameters())
    x = torch.randn(16, 3, 6, 6)

    def steps(count: int) -> tuple[int, int]:
        for step in range(count):
            optimizer.zero_grad()
            loss = fast(x).square().mean()
            if step % 3:  # else the graph is dropped
                loss.backward()
                optimizer.step()
        del loss
        gc.collect()
        # By their types: some of PyTorch's objects warn when they are asked for their class.
        kinds = map(type, gc.get_objects())
        return resident_bytes(), sum(issubclass(kind, torch.Tensor) for kind in kinds)

    steps(50)
    before, after = steps(12), steps(201)
    assert after[1] <= before[1]  # fewer where earlier tests left some
    assert after[0] - before[0] < MOST_BYTES
    assert len(program(fast).parts[0].pairs) == 1


def test_statistics_pass_through_the_same_memory_in_every_call() -> None:
    """Also where calls come before their gradients."""
    net = network()
    own, fast = copy.deepcopy(net).train(), md.optimize(net, device="cpu").train()
    x = examples(3, 3, 6, 6)
    for factor in (1, 2, 3):
        for module in (fast, own):
            (module(x * factor) * module(x + factor)).sum().backward()
        for one, other in zip(net.buffers(), own.buffers(), strict=True):
            torch.testing.assert_close(one, other)
    (part,) = program(fast).parts
    (pair,) = part.pairs.values()
    assert [len(each) for each in pair._copied.values()] == [1]


def test_gradients_are_computed_among_what_was_kept_where_nothing_needs_it_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a device whose programs can; the CPU's show what they are told."""
    blocks: list[int] = []
    laid: list[DonatedLayout] = []

    def lie(part: CompiledPart, donated: Sequence[int] = ()) -> DonatedLayout | None:
        if not donated:
            return None
        bytes = sum(part.part.graph.inputs[place].type.bytes for place in donated)
        step = ALIGNMENT * (1 + bytes // ALIGNMENT)
        offsets = tuple(ALIGNMENT + step * number for number, _ in enumerate(donated))
        laid.append(DonatedLayout(offsets[-1] + bytes, offsets))
        return laid[-1]

    def compute(
        part: CompiledPart, inputs: Sequence[int], outputs: Sequence[int], donated: int = 0
    ) -> None:
        blocks.append(donated)
        if donated:
            assert set(inputs) >= {donated + offset for offset in laid[0].offsets}
        inner(part, inputs, outputs)

    inner = CompiledPart.compute
    monkeypatch.setattr(CompiledPart, "use_external_buffers", lie)
    monkeypatch.setattr(CompiledPart, "compute", compute)
    own = network().train()
    fast = md.optimize(copy.deepcopy(own), device="cpu").train()
    x = examples(3, 3, 6, 6)
    for keeps in ((False,), (True, True, False), (False,)):
        one, other = fast(x).square().sum(), own(x).square().sum()
        blocks.clear()
        for retain_graph in keeps:
            one.backward(retain_graph=retain_graph)
            other.backward(retain_graph=retain_graph)
        assert [bool(donated) for donated in blocks] == [not each for each in keeps]
    for first, second in zip(fast.parameters(), own.parameters(), strict=True):
        torch.testing.assert_close(first.grad, second.grad, rtol=1e-4, atol=1e-4)
    assert len(laid) == 1


def test_gradients_of_vectors_lie_in_one_memory() -> None:
    """PyTorch takes them over as they are; to it they are tensors of their own."""
    net = network()
    fast = md.optimize(net, device="cpu").train()
    fast(examples(3, 3, 6, 6)).sum().backward()
    gradients = [p.grad for p in net.parameters() if p.grad is not None and p.dim() == 1]
    assert len(gradients) > 2
    begin = gradients[0].untyped_storage().data_ptr()
    offsets = [gradient.data_ptr() - begin for gradient in gradients]
    assert {gradient.untyped_storage().data_ptr() for gradient in gradients} == {begin}
    assert sorted(offsets) == offsets and not any(offset % ALIGNMENT for offset in offsets)
    first, *others = gradients
    before = [each.clone() for each in others]
    first.fill_(7.0)
    assert all(map(torch.equal, others, before))
    assert (first._version, {each._version for each in others}) == (1, {0})
    assert not any(each._is_view() for each in gradients)


def test_vectors_in_one_memory() -> None:
    device, sizes = torch.device("cpu"), [1, 0, 256, 257, 3]
    vectors = list(EmptyVectors(sizes, torch.bfloat16, device)())
    assert [tuple(each.shape) for each in vectors] == [(size,) for size in sizes]
    assert {each.dtype for each in vectors} == {torch.bfloat16}
    begins = [each.storage_offset() * each.element_size() for each in vectors]
    assert begins == [0, 512, 512, 1024, 2048]
