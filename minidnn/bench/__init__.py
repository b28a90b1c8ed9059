"""Measuring engines against each other: each in a process of its own, in turn, with intervals."""
