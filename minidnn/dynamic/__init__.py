"""Networks of named sizes: one executable for all sizes in their ranges."""
