"""What an author's function may know beside its rows and its state: where it runs, what time it is, its timers."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from epochal.errors import PipelineError

TimeDomain = Literal["event", "processing"]


@dataclass(frozen=True, slots=True)
class Context:
    """What an author's function may know besides its rows and its state.

    ``epoch_time``: when the epoch was opened, in UTC: the same however often it is computed, unlike the clock.
    ``watermark``: rows before it have come; ``None`` before any is known, or without event time. In ``process`` it is
    the one that rows are late by, in ``on_timer`` the one that timers fire by; the last moment of the year 9999 when no
    more rows can come. ``hop``: of the records that come out of a loop in rounds (``aligned``), how often they have
    been round; 0 in other epochs. ``converged``: such a loop has come to rest; this epoch follows its last round.

    A timer is known by its time and its name (and whether that is event time or processing time): setting one that is
    set already changes nothing, and a key may have any number of them. Times without a zone are UTC.
    """

    epoch: int
    operator: str
    subtask: int
    epoch_time: datetime
    watermark: datetime | None
    hop: int
    converged: bool

    @property
    def timer_name(self) -> str:
        """In ``on_timer``: the name that the timer was set with."""
        raise self._no_timers("timer_name")

    @property
    def time_domain(self) -> TimeDomain:
        """In ``on_timer``: whether the timer was set in ``"event"`` or in ``"processing"`` time."""
        raise self._no_timers("time_domain")

    def timer(self, at: datetime, name: str = "") -> None:
        """Have ``on_timer`` called for this key when the watermark reaches ``at``.

        If it has already: in this epoch, after the rows; in the next, which opens at once, where a timer of the key at
        this time or a later one has fired in this epoch.
        """
        raise self._no_timers("timer()")

    def processing_timer(self, at: datetime, name: str = "") -> None:
        """As :meth:`timer`, when the epoch time reaches ``at``."""
        raise self._no_timers("processing_timer()")

    def delete_timer(self, at: datetime, name: str = "") -> None:
        """Take back :meth:`timer`; without effect when there is no such timer any more."""
        raise self._no_timers("delete_timer()")

    def delete_processing_timer(self, at: datetime, name: str = "") -> None:
        """Take back :meth:`processing_timer`; without effect when there is no such timer any more."""
        raise self._no_timers("delete_processing_timer()")

    def _no_timers(self, what: str) -> PipelineError:
        return PipelineError(
            f"Operator {self.operator!r}: ctx.{what} is only where there are timers: in a KeyedProcess that defines "
            "on_timer(self, key, at, ctx), called by key_by(..).process(..)."
        )
