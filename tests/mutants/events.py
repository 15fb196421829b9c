"""Wrong ways to store events."""

from __future__ import annotations

from sqlalchemy import text

from tests.mutants.mutant import change, mutant

TESTS = "tests/service/test_events.py"


@mutant("events: numbers are not in the order of events", TESTS)
def _out_of_order() -> None:
    from epochal.service.catalog import events

    backwards = str(events._ASSIGN).replace("since, application, number", "since DESC, application, number DESC")
    events._ASSIGN = text(backwards)


@mutant("events: expired events leave a gap without an error", TESTS)
def _a_silent_gap() -> None:
    from epochal.service.catalog.events import EventRepository

    change(EventRepository, "_check", lambda check: lambda *_: None)
