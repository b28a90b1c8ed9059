"""Plans whose engines compile, kept on disk as cuDNN writes them, with their code.

Compiling one takes about a second of a core; what was compiled is read in a few milliseconds.
"""

from __future__ import annotations

import logging

from minidnn.cache import CacheStore, digest
from minidnn.cudnn import machine
from minidnn.cudnn.errors import CuDNNError
from minidnn.cudnn.graph import engines, lower
from minidnn.cudnn.graph.attributes import Attribute as A
from minidnn.cudnn.graph.descriptor import BackendDescriptor
from minidnn.cudnn.graph.device import Target
from minidnn.cudnn.graph.engines import EngineConfig
from minidnn.cudnn.graph.enums import AttributeType as T
from minidnn.cudnn.graph.enums import DescriptorType as D
from minidnn.cudnn.graph.spec import GraphSpec

log = logging.getLogger(__name__)

FORMAT = 1
_store = CacheStore("cudnn_plan", ".json", 256 << 20)


def build(spec: GraphSpec, target: Target, config: EngineConfig) -> BackendDescriptor:
    """The finalized plan of a configuration: read from disk if it is there, else built, and kept
    if its engine compiles.

    Raises:
        CuDNNError: the configuration does not support the graph.
    """
    found = _restored(spec, target, config)
    if found is not None:
        return found
    graph = lower.operation_graph(spec, target.handle)
    descriptor = engines.execution_plan(graph, target, config)
    if engines.compiles(graph, target, config):
        keep(descriptor, spec, target, config)
    return descriptor


def keep(
    descriptor: BackendDescriptor, spec: GraphSpec, target: Target, config: EngineConfig
) -> None:
    """Writes a plan for :func:`build`.  One that cuDNN cannot write down is not kept."""
    if target.handle is None:
        return  # of a device that is not there, whose plans do not run
    try:
        text = descriptor.get_text(A.CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION)
    except CuDNNError as error:
        log.debug("%s of %s is not kept: %s", config, spec.describe(), error)
        return
    _store.put(_key(spec, target, config), text.encode(), label="compiled plan")


def _restored(spec: GraphSpec, target: Target, config: EngineConfig) -> BackendDescriptor | None:
    data = None if target.handle is None else _store.read(_key(spec, target, config))
    if data is None:
        return None
    made = BackendDescriptor(D.CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR)
    try:
        made.set(A.CUDNN_ATTR_EXECUTION_PLAN_HANDLE, T.CUDNN_TYPE_HANDLE, target.handle)
        made.set_text(A.CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, data.decode())
        return made.finalize()
    except (CuDNNError, UnicodeDecodeError) as error:
        log.info("%s of %s is built again: %s", config, spec.describe(), error)
        made.close()
        return None


def _key(spec: GraphSpec, target: Target, config: EngineConfig) -> str:
    return digest("cudnn plan", FORMAT, spec, config, target.name, machine.library_name())
