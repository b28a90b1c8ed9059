"""Which precision a network is computed in, where ``precision="auto"`` leaves that open."""
