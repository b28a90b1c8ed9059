"""Dynamic shapes: one executable for all named sizes in their ranges."""
