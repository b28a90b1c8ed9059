"""Contractions on CUDA: convolutions, linear layers and gradients of convolutions.

:mod:`.problem` describes one as plain data, :mod:`.algorithms` lists what can compute it (cuDNN's
algorithms, and kernels of ours), :mod:`.tune` measures them, and :mod:`.choice` does that for all
contractions of a plan.
"""
