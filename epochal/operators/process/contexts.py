"""The ``ctx`` argument of authors' functions, created from the subtask."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from epochal.contracts.conditions import BEGINNING, as_datetime, microseconds
from epochal.declarations.author_classes import NO_EVENT_TIME, Context, TimeDomain
from epochal.errors import PipelineError, SchemaError
from epochal.operators.process.timers import DOMAINS, EVENT, PROCESSING, Timer, Timers
from epochal.tasks.operator import Subtask

_LAST_MOMENT = datetime.max.replace(tzinfo=UTC)
_FIRST_MOMENT = datetime.min.replace(tzinfo=UTC)


def context_of(subtask: Subtask) -> Context:
    """The context of a function without timers."""
    return Context(*_known(subtask), moment(subtask.watermarks.late), *_rounds(subtask))


def timer_contexts(subtask: Subtask, timers: Timers, has_event_time: bool) -> tuple[TimerContext, TimerContext]:
    """The contexts of ``process`` and of ``on_timer``."""
    late, fire = (moment(mark) for mark in (subtask.watermarks.late, subtask.watermarks.fire))
    known, rest = _known(subtask), (*_rounds(subtask), timers, has_event_time)
    return TimerContext(*known, late, *rest), TimerContext(*known, fire, *rest)


def moment(time: int) -> datetime | None:
    """A watermark or an epoch time as a datetime: ``None`` before all times, the last datetime after all times."""
    if time == BEGINNING:
        return None
    return as_datetime(time) or (_LAST_MOMENT if time > 0 else _FIRST_MOMENT)


@dataclass(frozen=True, slots=True)
class TimerContext(Context):
    """The context of a function with timers, at its current key."""

    _timers: Timers
    _has_event_time: bool

    @property
    def timer_name(self) -> str:
        return self._fired("timer_name")[2]

    @property
    def time_domain(self) -> TimeDomain:
        return DOMAINS[self._fired("time_domain")[0]]

    def timer(self, at: datetime, name: str = "") -> None:
        self._timers.set(EVENT, *self._checked("timer", at, name))

    def processing_timer(self, at: datetime, name: str = "") -> None:
        self._timers.set(PROCESSING, *_time_and_name("processing_timer", at, name))

    def delete_timer(self, at: datetime, name: str = "") -> None:
        self._timers.delete(EVENT, *self._checked("delete_timer", at, name))

    def delete_processing_timer(self, at: datetime, name: str = "") -> None:
        self._timers.delete(PROCESSING, *_time_and_name("delete_processing_timer", at, name))

    def _fired(self, what: str) -> Timer:
        if not self._timers.firing or self._timers.fired is None:
            raise PipelineError(f"Operator {self.operator!r}: ctx.{what} is available only in on_timer.")
        return self._timers.fired

    def _checked(self, call: str, at: datetime, name: str) -> tuple[int, str]:
        if not self._has_event_time:
            raise PipelineError(
                f"Operator {self.operator!r}: ctx.{call}(..) uses event time, but its input has none. {NO_EVENT_TIME}"
            )
        return _time_and_name(call, at, name)


def _known(subtask: Subtask) -> tuple[int, str, int, datetime]:
    epoch_time = moment(subtask.epoch_time) or _FIRST_MOMENT
    return subtask.epoch.epoch, subtask.operator, subtask.subtask, epoch_time


def _rounds(subtask: Subtask) -> tuple[int, bool]:
    return subtask.conditions.hop, subtask.conditions.converged


def _time_and_name(call: str, at: datetime, name: str) -> tuple[int, str]:
    if not isinstance(at, datetime):
        raise SchemaError(f"ctx.{call}(..) takes a datetime.datetime, not {at!r} ({type(at).__name__}).")
    if not isinstance(name, str):
        raise SchemaError(f"ctx.{call}(..): the name of a timer must be a str, not {name!r} ({type(name).__name__}).")
    return microseconds(at if at.tzinfo is not None else at.replace(tzinfo=UTC)), name
