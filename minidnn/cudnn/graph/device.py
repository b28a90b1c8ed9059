"""Targets for which graphs are planned: the current GPU, or a GPU that is only described."""

from __future__ import annotations

from dataclasses import dataclass

from minidnn.cudnn import library, machine
from minidnn.cudnn.graph.attributes import Attribute as A
from minidnn.cudnn.graph.descriptor import BackendDescriptor
from minidnn.cudnn.graph.enums import DescriptorType as D
from minidnn.cudnn.handle import current_handle
from minidnn.errors import DeviceError
from minidnn.gpu import cupy


@dataclass(frozen=True)
class Target:
    """A handle of the current device, or a descriptor of the properties of an absent one.

    ``name`` identifies the kind of device in cache keys, ``index`` is its number in CUDA.
    """

    name: str
    handle: int | None = None
    index: int | None = None
    properties: BackendDescriptor | None = None


def current() -> Target:
    """The current device of this thread.

    Raises:
        DeviceError: no CuPy, GPU or cuDNN.
    """
    index = cupy().cuda.runtime.getDevice()
    return Target(machine.device_name(index), current_handle(), index)


def described(json: str) -> Target:
    """A device that may be absent, from the JSON of :func:`properties_json`.

    Plans can be proposed and built for it, not executed.

    Raises:
        DeviceError: the library is older than 9.8.
        CuDNNError: the text does not describe a device.
    """
    if library.load().version < 90800:
        raise DeviceError("planning without a device needs cuDNN 9.8 or newer")
    properties = BackendDescriptor(D.CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR)
    properties.set_text(A.CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, json)
    return Target(f"described: {json}", properties=properties.finalize())


def properties_json() -> str:
    """The current device, as text that :func:`described` understands elsewhere."""
    from minidnn.cudnn.graph.enums import AttributeType as T

    with BackendDescriptor(D.CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR) as properties:
        properties.set(A.CUDNN_ATTR_DEVICEPROP_HANDLE, T.CUDNN_TYPE_HANDLE, current_handle())
        properties.finalize()
        return properties.get_text(A.CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION)
