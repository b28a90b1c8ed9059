"""PyTorch modules accelerated in place: subgraphs of theirs run as compiled executables.

Dynamo captures a module as FX graphs; the operations that minidnn knows are converted to its graph
IR and compiled, and PyTorch runs the others between them.
"""
