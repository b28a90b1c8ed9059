"""Training: losses, optimizers, the graph of a step, and the trainer that runs it.

A step is a graph like any other: layers in training, a loss, its gradients, and what parameters
become, as updates of states (:mod:`.step`).  Whatever a device can run of graphs it can train.
"""
