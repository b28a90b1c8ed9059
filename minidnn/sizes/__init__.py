"""Graphs for all sizes in the ranges of named sizes, with polynomials in place of integers."""
