"""Depth-first fusion, free of any device: stacks, steps, patches, cost, kernel plans."""
