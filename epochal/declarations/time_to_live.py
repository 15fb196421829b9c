"""Times to live of state: the declared duration, the clock that measures it, and the accesses that renew it."""

from __future__ import annotations

from typing import Any, Final, Literal, get_args

from epochal.declarations.intervals import fixed_interval
from epochal.declarations.names import listed
from epochal.errors import PipelineError
from epochal.state.expiry import Expiry, Refresh
from epochal.state.table import TOUCHED

TtlOn = Literal["processing_time", "event_time"]
"""The clock: the epoch time, or the watermark of the operator."""

_CLOCKS: Final[dict[str, Literal["processing", "event"]]] = {"processing_time": "processing", "event_time": "event"}
_NEEDS_EVENT_TIME: Final = "Call with_watermark(..) on the input first, or leave ttl_on out to use processing time."


def time_to_live(
    what: str, ttl: object, ttl_on: object = "processing_time", refresh: object = "write"
) -> Expiry | None:
    """The expiry of rows with :data:`~epochal.state.table.TOUCHED`; ``None``: rows do not expire.

    ``what``: the declaration, for messages. Raises ``PipelineError`` with the fix.
    """
    clock = _CLOCKS[_one_of(f"{what}: ttl_on", ttl_on, get_args(TtlOn))]
    refreshed: Any = _one_of(f"{what}: refresh", refresh, get_args(Refresh))
    if ttl is not None:
        after = fixed_interval(f"{what}: ttl", ttl, least=1)
        return Expiry(clock=clock, column=TOUCHED.name, after=after, refresh=refreshed)
    if (clock, refreshed) != ("processing", "write"):
        raise PipelineError(
            f"{what} sets ttl_on or refresh but no time to live. Add ttl='7 days', or remove the option."
        )
    return None


def refuse_time_to_live(what: str, ttl: object, instead: str) -> None:
    """Raises ``PipelineError`` for a ``ttl`` of a verb whose state does not expire. ``instead``: the alternative."""
    if ttl is not None:
        raise PipelineError(f"{what} takes no ttl. {instead}")


def check_clock_of_ttl(what: str, expires: Expiry | None, event_time: str | None) -> None:
    """Check that state that expires by event time has an input with event time. ``event_time``: its column.

    Raises ``PipelineError`` with the fix.
    """
    if expires is not None and expires.clock == "event" and event_time is None:
        raise PipelineError(f"{what} has ttl_on='event_time', but its input has no event time. {_NEEDS_EVENT_TIME}")


def _one_of(what: str, value: object, known: tuple[str, ...]) -> str:
    if not isinstance(value, str) or value not in known:
        raise PipelineError(f"{what} is {value!r}; it must be one of {listed(map(repr, known))}.")
    return value
