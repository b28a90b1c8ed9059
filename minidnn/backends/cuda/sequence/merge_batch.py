"""Plans without windows over small images, described as one image: a batch of rows for example.

What is computed element after element needs to know of images only where an operand has a number
for each of them.  So images that lie behind each other become channels of one, or its pixels, and
blocks are as full as those of large images.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ....fusion.plan import Binding, KernelPlan, Plane
from ..tensor import Tensor

SMALL = 16384
"""Elements of an image from which on blocks of its own are no worse: 8 packs of halves a thread."""

Described = tuple[KernelPlan, Binding, Sequence[Tensor]]


def merge_batch(plan: KernelPlan, binding: Binding, tensors: Sequence[Tensor]) -> Described:
    """The plan, what it is bound to and how tensors lie, of one image; as given where no
    description of one image says the same, or images are large."""
    same = plan, binding, tensors
    operations = plan.operations
    if binding.batch == 1 or len(plan.steps) != 1 or any(o.window for o in operations):
        return same
    if len(binding.segments) != 1 or any(slot.channel for slot in binding.slots):
        return same
    (_, channels), rows, columns = binding.segments[0], *plan.anchor
    inputs = {plane.input: plane for plane in plan.planes}
    planes = [inputs[i] if i < len(binding.inputs) else None for i, _ in enumerate(tensors)]
    kinds = [_kind(plane, plan.anchor, channels) for plane in planes]
    shape = channels, rows, columns
    if None in kinds or not all(
        _follow(tensor, kind, shape) for tensor, kind in zip(tensors, kinds, strict=True)
    ):
        return same
    found = set(kinds)
    if found <= {"full", "image"} and rows * columns == 1 and not binding.vectors:
        if found == {"full"}:
            return same if channels >= SMALL else _rows(plan, binding, tensors, kinds, 1, channels)
        return _rows(plan, binding, tensors, kinds, binding.batch, channels)
    if channels * rows * columns >= SMALL:
        return same
    last = all(t.channel == 1 for t, kind in zip(tensors, kinds, strict=True) if kind == "full")
    if found <= {"full", "channel"} and (last or channels == 1):
        return _pixels(plan, binding, tensors, kinds, shape)
    if found <= {"full", "plane"} and not last and not binding.vectors:
        return _planes(plan, binding, tensors, shape)
    return same


def _kind(plane: Plane | None, anchor: tuple[int, int], channels: int) -> str | None:
    """What a tensor has an element for; None: for something else."""
    if plane is None:
        return "full"
    if plane.one_image:
        return "channel" if anchor == (1, 1) and not plane.one_channel else None
    if plane.one_channel and channels > 1:
        return "image" if anchor == (1, 1) else None
    if plane.extent == anchor:
        return "full"
    return "plane" if plane.extent == (1, 1) else None


def _follow(tensor: Tensor, kind: str | None, shape: tuple[int, int, int]) -> bool:
    """Whether a tensor's images lie behind each other, with nothing in between."""
    channels, rows, columns = shape
    area = rows * columns
    if tensor.offset:
        return False
    if kind in ("channel", "image"):
        return True
    if kind == "plane":
        return tensor.image == channels and (tensor.channel == 1 or channels == 1)
    if tensor.image != channels * area:
        return False
    if area == 1:
        return tensor.channel == 1 or channels == 1
    if tensor.channel == 1 and channels > 1:
        return tensor.pixel == channels and tensor.row == columns * channels
    return tensor.pixel == 1 and tensor.row == columns and tensor.channel == area


def _rows(
    plan: KernelPlan,
    binding: Binding,
    tensors: Sequence[Tensor],
    kinds: Sequence[str | None],
    count: int,
    channels: int,
) -> Described:
    """Images of one pixel become so many channels, and their channels pixels: where there is a
    channel for each image, numbers of images are numbers of channels."""
    length = binding.batch * channels // count
    anchor = (1, length)
    lies = []
    for tensor, kind in zip(tensors, kinds, strict=True):
        if kind == "image":
            lies.append(Tensor(tensor.dtype, count, 1, 1, 0, tensor.image, 1, 1))
        else:
            lies.append(Tensor(tensor.dtype, count, 1, length, count * length, length, length, 1))
    planes = tuple(
        replace(plane, one_channel=False)
        if plane.input is not None and kinds[plane.input] == "image"
        else replace(plane, extent=anchor)
        for plane in plan.planes
    )
    return replace(plan, anchor=anchor, planes=planes), _bound(binding, count), lies


def _pixels(
    plan: KernelPlan,
    binding: Binding,
    tensors: Sequence[Tensor],
    kinds: Sequence[str | None],
    shape: tuple[int, int, int],
) -> Described:
    """Images become rows of one whose channels lie last."""
    channels, area = shape[0], binding.batch * shape[1] * shape[2]
    anchor = (1, area)
    lies = [
        tensor
        if kind == "channel"
        else Tensor(tensor.dtype, channels, 1, area, channels * area, 1, channels * area, channels)
        for tensor, kind in zip(tensors, kinds, strict=True)
    ]
    planes = tuple(
        plane
        if plane.input is not None and kinds[plane.input] == "channel"
        else replace(plane, extent=anchor)
        for plane in plan.planes
    )
    return replace(plan, anchor=anchor, planes=planes), _bound(binding, channels), lies


def _planes(
    plan: KernelPlan, binding: Binding, tensors: Sequence[Tensor], shape: tuple[int, int, int]
) -> Described:
    """The channels of all images become those of one."""
    count = binding.batch * shape[0]
    lies = [replace(tensor, channels=count, image=count * tensor.channel) for tensor in tensors]
    return plan, _bound(binding, count), lies


def _bound(binding: Binding, channels: int) -> Binding:
    return replace(binding, batch=1, segments=((0, channels),))
