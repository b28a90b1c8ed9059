"""Passes: functions from graph to graph, one file each, listed in ``pipeline``."""
