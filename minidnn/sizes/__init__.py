"""Graphs for all sizes in ranges, and the numbers in them that follow from sizes."""
