"""The epoch protocol as one pure transition table (design/epochs.md; thesis 4.1.3).

========  ====================  =========================================================================
step      where                 what
========  ====================  =========================================================================
E1 open   driver                slices chosen, row ``started``
E2 run    executors             T1 view and start, T2 process, T3 pre-commit
E3        driver                collect: exactly one handle per (operator or sink, subtask)
E4        driver                manifest durable, then ``started -> prepared``: the commit decision
E5        driver, background    every sink's commit, in epoch order
E6        driver, background    ``prepared -> committed``; sources acknowledge
E7        background            compaction, retention, sweep
R1..R5    driver                attempt+1; latest prepared; finish E5, E6; abort started; continue at E1
========  ====================  =========================================================================

After E4 a prepared epoch is always committed; its commit is repeated until it succeeds.
"""

from __future__ import annotations

from enum import StrEnum

from epochal.errors import EpochalError


class State(StrEnum):
    """States of an epoch in the catalog."""

    STARTED = "started"
    PREPARED = "prepared"
    COMMITTED = "committed"
    ABORTED = "aborted"


class Event(StrEnum):
    """Events of an epoch, named after the protocol step that causes them."""

    OPEN = "E1 open"
    PREPARE = "E4 prepare"
    PUBLISH = "E6 publish"
    ABORT = "abort"


class IllegalTransition(EpochalError):
    """The epoch protocol does not allow this step in this state."""

    slug = "illegal-transition"


TRANSITIONS: dict[tuple[State | None, Event], State] = {
    (None, Event.OPEN): State.STARTED,
    (State.STARTED, Event.PREPARE): State.PREPARED,
    (State.STARTED, Event.ABORT): State.ABORTED,
    (State.PREPARED, Event.PUBLISH): State.COMMITTED,
    # A step that is repeated after a lost answer has no further effect.
    (State.STARTED, Event.OPEN): State.STARTED,
    (State.PREPARED, Event.PREPARE): State.PREPARED,
    (State.COMMITTED, Event.PUBLISH): State.COMMITTED,
    (State.ABORTED, Event.ABORT): State.ABORTED,
}

FINAL = frozenset({State.COMMITTED, State.ABORTED})


def advance(state: State | None, event: Event) -> State:
    """The state after ``event``. Raises :class:`IllegalTransition`."""
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise IllegalTransition(f"An epoch that is {state or 'not open'} cannot take step {event.value!r}.") from None
