"""Independent oracles that tests compare minidnn with."""
