"""Self-contained HTML pages: their frame, their style, and charts without any script."""
