"""What is raised where predictions cannot be made or kept."""

from minidnn.errors import MiniDNNError


class BatchError(MiniDNNError, RuntimeError):
    """Predictions for files cannot be made or kept: a folder of another run, a damaged manifest, a
    full disk.

    >>> try:
    ...     raise md.batch.BatchError("--output out: another process writes there")
    ... except md.MiniDNNError as error:
    ...     print(error)
    """
