"""The ladder of convolutions, forward, in float32."""
