"""Times to live as authors declare them: how long rows of a state are kept, by which clock, and what refreshes them."""

from __future__ import annotations

from typing import Any, Final, Literal, get_args

from epochal.declarations.intervals import fixed_interval
from epochal.declarations.names import listed
from epochal.errors import PipelineError
from epochal.state.expiry import Expiry, Refresh
from epochal.state.table import TOUCHED

TtlOn = Literal["processing_time", "event_time"]
"""By which clock: the epoch time, or the watermark of the operator."""

_CLOCKS: Final[dict[str, Literal["processing", "event"]]] = {"processing_time": "processing", "event_time": "event"}
_NEEDS_EVENT_TIME: Final = (
    "Say with_watermark(..) of its input first, or leave ttl_on out, to count in processing time."
)


def time_to_live(
    what: str, ttl: object, ttl_on: object = "processing_time", refresh: object = "write"
) -> Expiry | None:
    """The expiry of rows that have :data:`~epochal.state.table.TOUCHED`; ``None``: they are kept for ever.

    ``what`` is declared, for messages. Raises ``PipelineError`` with the fix.
    """
    clock = _CLOCKS[_one_of(f"{what}: ttl_on", ttl_on, get_args(TtlOn))]
    refreshed: Any = _one_of(f"{what}: refresh", refresh, get_args(Refresh))
    if ttl is not None:
        after = fixed_interval(f"{what}: ttl", ttl, least=1)
        return Expiry(clock=clock, column=TOUCHED.name, after=after, refresh=refreshed)
    if (clock, refreshed) != ("processing", "write"):
        raise PipelineError(f"{what} says how a time to live counts, and has none: add ttl='7 days', or remove that.")
    return None


def refuse_time_to_live(what: str, ttl: object, instead: str) -> None:
    """Of a verb whose state does not go by itself. Raises ``PipelineError`` that says what to do ``instead``."""
    if ttl is not None:
        raise PipelineError(f"{what} takes no ttl. {instead}")


def check_clock_of_ttl(what: str, expires: Expiry | None, event_time: str | None) -> None:
    """Is there a watermark that rows can expire by? ``event_time``: the column of the operator's input.

    Raises ``PipelineError`` with the fix.
    """
    if expires is not None and expires.clock == "event" and event_time is None:
        raise PipelineError(f"{what} has ttl_on='event_time', and its input has no event time. {_NEEDS_EVENT_TIME}")


def _one_of(what: str, value: object, known: tuple[str, ...]) -> str:
    if not isinstance(value, str) or value not in known:
        raise PipelineError(f"{what} is {value!r}: it is one of {listed(map(repr, known))}.")
    return value
