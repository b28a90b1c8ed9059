"""Contractions of values in bfloat16 by sums of products of pairs, in float32."""
