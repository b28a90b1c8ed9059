"""The ladder of matrix products, in float32."""
