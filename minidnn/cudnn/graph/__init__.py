"""cuDNN's graph API: describe operations, choose an engine, execute the plan.

::

    from minidnn.cudnn.graph import Graph

    g = Graph()
    x, w, b, z = g.tensors(x_array, w_array, b_array, z_array)
    g.relu(g.convolution(x, w, padding=1) + b + z)
    plan = g.build()
    y_array = plan(x_array, w_array, b_array, z_array)
"""

from minidnn.cudnn.graph.builder import Graph
from minidnn.cudnn.graph.device import described, properties_json
from minidnn.cudnn.graph.engines import EngineConfig, Proposal
from minidnn.cudnn.graph.execution import Bound
from minidnn.cudnn.graph.plan import Plan
from minidnn.cudnn.graph.spec import Constraints
from minidnn.cudnn.graph.tensor import Tensor

__all__ = [
    "Bound",
    "Constraints",
    "EngineConfig",
    "Graph",
    "Plan",
    "Proposal",
    "Tensor",
    "described",
    "properties_json",
]
