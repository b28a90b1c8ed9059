"""Reports: what was fused, what it is predicted to cost, and where time goes."""
