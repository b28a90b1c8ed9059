"""What both engines print source text with: lines, scalar expressions, functions, sums."""
