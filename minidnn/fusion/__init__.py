"""Depth-first fusion: stacks, steps and sequences, patch geometry, cost, and the kernel plan."""
