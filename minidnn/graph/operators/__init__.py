"""The operators: one frozen dataclass per kind of node, one file per family.

Each family lists in its ``__all__`` what it offers; nothing is listed a second time here.
"""

from minidnn.graph.operators.activations import *
from minidnn.graph.operators.arithmetic import *
from minidnn.graph.operators.attention import *
from minidnn.graph.operators.contraction import *
from minidnn.graph.operators.convolution_gradients import *
from minidnn.graph.operators.indexing import *
from minidnn.graph.operators.movement import *
from minidnn.graph.operators.normalization import *
from minidnn.graph.operators.pooling import *
from minidnn.graph.operators.random import *
from minidnn.graph.operators.ranks import *
from minidnn.graph.operators.reduction import *
