"""How everything is measured: in turn, undisturbed, told as medians with intervals, and kept.

``turns`` runs contestants one after another, ``load`` tells and waits out what else the machine
does, ``statistics`` estimates, ``figures`` writes files.  What a GPU does is timed by
``minidnn.cudnn.graph.timing`` (kernels, on CuPy's streams) and by ``minidnn.bench.gpu_timing``
(whole networks beside PyTorch's).
"""
