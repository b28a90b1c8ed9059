"""Layers: PyTorch's names and arguments.  Each family lists in ``__all__`` what it offers."""

from minidnn.layers.activations import *
from minidnn.layers.attention import *
from minidnn.layers.containers import *
from minidnn.layers.contraction import *
from minidnn.layers.elementwise import *
from minidnn.layers.functional import *
from minidnn.layers.layer import *
from minidnn.layers.normalization import *
from minidnn.layers.padding import *
from minidnn.layers.parameter import *
from minidnn.layers.pooling import *
from minidnn.layers.preprocess import *
from minidnn.layers.shape import *
from minidnn.layers.symbol import *
from minidnn.layers.transposed import *
