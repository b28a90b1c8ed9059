"""Contractions on CUDA: convolutions, linear layers and gradients of convolutions.

:mod:`.problem` describes one as plain data, :mod:`.forms` lists the algorithms that can compute it
(cuDNN's, and kernels of ours), :mod:`.tune` measures them, and :mod:`.choice` does that for all
contractions of a plan.
"""
