"""Optimizers, as scalar formulas over states, and schedules of the learning rate."""

from minidnn.training.optim.adaptive import *
from minidnn.training.optim.descent import *
from minidnn.training.optim.layerwise import *
from minidnn.training.optim.optimizer import *
from minidnn.training.optim.plateau import *
from minidnn.training.optim.schedules import *
