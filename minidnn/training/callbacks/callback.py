"""What a callback is."""

from __future__ import annotations

from typing import Any

__all__ = ["Callback"]


class Callback:
    """What :meth:`Trainer.fit` calls; a subclass defines what it needs.

    >>> class Rates(md.callbacks.Callback):
    ...     def after_epoch(self, trainer, record):
    ...         print(record["rate"])
    """

    def begin(self, trainer: Any, epochs: int) -> None:
        """Before the first step."""

    def after_step(self, trainer: Any) -> None:
        """After each batch; ``trainer.last`` has the loss and the measures."""

    def after_epoch(self, trainer: Any, record: dict[str, Any]) -> None:
        """After each epoch, with what it measured; ``trainer.stop = True`` ends training."""

    def interrupted(self, trainer: Any) -> None:
        """After Ctrl-C, or when ``trainer.halt`` was set."""

    def finished(self, trainer: Any) -> None:
        """After the last epoch, unless training was interrupted or failed."""

    def end(self, trainer: Any) -> None:
        """At the end, whatever it was."""
