"""The graph IR: values, nodes, operators and scalar expressions; how users and layers record
graphs, and how graphs are checked, evaluated, saved and drawn."""
