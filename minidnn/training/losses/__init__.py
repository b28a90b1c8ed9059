"""Losses: scalar functions of output and target that training minimizes."""

from minidnn.training.losses.classes import *
from minidnn.training.losses.common import *
from minidnn.training.losses.common import Function as Function
from minidnn.training.losses.distances import *
from minidnn.training.losses.pairs import *
