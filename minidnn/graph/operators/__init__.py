"""The operators: one frozen dataclass for each kind of node, one file for each family.

Each file lists its operators in ``__all__``, and this package exports all of them.
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
