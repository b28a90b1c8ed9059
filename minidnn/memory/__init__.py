"""Where the values of a graph lie in memory, and how long they are needed there."""
