"""What is raised where ranks cannot train together."""

from minidnn.errors import MiniDNNError


class DistributedError(MiniDNNError, RuntimeError):
    """Processes cannot train together: nobody said how many they are, or one of them is gone."""
