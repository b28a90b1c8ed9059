"""Why a precision was chosen: what ``precision="auto"`` found out, for explain()."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from minidnn.measure import Estimate


@dataclass(frozen=True)
class PrecisionTrial:
    """What was found out about a precision beside float32.

    Attributes:
        precision: its name.
        error: the largest relative error of an output; infinite where results are not finite, None
            where nothing was computed.
        output: which output has that error; "" if there is one alone.
        seconds: a call's median; None where none was timed.
        speed: how many times as fast as float32 it is; None where it was not timed.
        refusal: why it was not tried; "" if it was.
    """

    precision: str
    error: float | None = None
    output: str = ""
    seconds: float | None = None
    speed: Estimate | None = None
    refusal: str = ""

    def facts(self, tolerance: float) -> str:
        """Error and time in words, or why there are none."""
        if self.error is None:
            return self.refusal
        where = f" at output {self.output!r}" if self.output else ""
        said = f"error {percent(self.error)}{where} of {percent(tolerance)} allowed"
        if self.seconds is not None:
            said += f", {self.speed:.2f} times as fast as float32, {milliseconds(self.seconds)}"
        return said


@dataclass(frozen=True)
class AutomaticPrecision:
    """A precision that was chosen, and what was found out about all of them.

    Attributes:
        chosen: the precision.
        tolerance: the relative error that was allowed.
        inputs: what errors were measured on, in words.
        seconds: a call's median in float32; None where there was nothing to compare it with.
        trials: the device's other precisions for inference.
    """

    chosen: str
    tolerance: float
    inputs: str
    seconds: float | None
    trials: Sequence[PrecisionTrial]

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        said = {trial.precision: trial.facts(self.tolerance) for trial in self.trials}
        facts = said.pop(self.chosen, "")
        if self.seconds is not None and not facts:
            facts = milliseconds(self.seconds)
        inputs = f", on {self.inputs}" if any(t.error is not None for t in self.trials) else ""
        only = "" if self.trials else ", as the device has no other for inference"
        yield f"precision auto: {self.chosen}{f' ({facts})' if facts else ''}{only}{inputs}"
        for precision, why in said.items():
            yield f"precision auto: {precision} left out: {why}"


def percent(share: float) -> str:
    """A share in percent, with two digits."""
    return f"{100 * share:.2g} %" if math.isfinite(share) else "infinite"


def milliseconds(seconds: float) -> str:
    """A time in milliseconds, with three digits."""
    return f"{1e3 * seconds:.3g} ms"
