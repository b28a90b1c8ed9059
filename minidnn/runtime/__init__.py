"""Compiled networks: the plan, the program that a backend makes of it, arrays and states."""
