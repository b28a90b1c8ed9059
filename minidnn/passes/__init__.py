"""Passes: functions from graph to graph; ``pipeline`` lists all of them in order."""
