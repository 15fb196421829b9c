"""State transitions of operations, and the rule for taking over a claim. Pure.

==========  ==========================================================================================
kinds       carried out by
==========  ==========================================================================================
background  the control plane that holds the claim; the next one restarts them from the beginning. They can
            be cancelled until the transaction that decides them.
by driver   the driver, whose answers end them
==========  ==========================================================================================

A claim is valid for a limited time (database clock) and is renewed. It avoids duplicate work only: an operation takes
effect in a transaction that checks whether the claim is still held.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from enum import StrEnum
from typing import get_args

from epochal.errors import Conflict, EpochalError
from epochal.wire.operations import OperationKind

LEASE_SECONDS = 30.0
"""Time after which a claim that was not renewed can be taken over."""
RENEW_SECONDS = 3.0
MARGIN_SECONDS = 1.0
"""Time before the end of its claim at which a holder that could not renew it stops."""


class State(StrEnum):
    """In the catalog and in answers, an operation that is being cancelled is ``running`` until it is cleaned up."""

    RUNNING = "running"
    CANCELLING = "cancelling"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Event(StrEnum):
    BEGIN = "begin"
    SUCCEED = "succeed"
    FAIL = "fail"
    CANCEL = "cancel"
    """Cancellation was requested."""
    SWEEP = "sweep"
    """The cancelled operation is cleaned up."""


class IllegalTransition(EpochalError):
    """The operation cannot make this transition in its current state."""

    slug = "illegal-transition"


TRANSITIONS: Mapping[tuple[State | None, Event], State] = {
    (None, Event.BEGIN): State.RUNNING,
    (State.RUNNING, Event.SUCCEED): State.SUCCEEDED,
    (State.RUNNING, Event.FAIL): State.FAILED,
    (State.RUNNING, Event.CANCEL): State.CANCELLING,
    (State.CANCELLING, Event.SWEEP): State.CANCELLED,
    (State.CANCELLING, Event.FAIL): State.FAILED,  # the clean-up recorded it
    # A repeated cancellation, after a lost answer, has no effect.
    (State.CANCELLING, Event.CANCEL): State.CANCELLING,
    (State.CANCELLED, Event.CANCEL): State.CANCELLED,
}

FINAL = frozenset({State.SUCCEEDED, State.FAILED, State.CANCELLED})

BACKGROUND: frozenset[OperationKind] = frozenset(
    {"export", "import", "trial", "rekey", "collect", "verify", "backup", "prune"}
)
BY_DRIVER: frozenset[OperationKind] = frozenset(get_args(OperationKind)) - BACKGROUND
OF_THE_STORE: frozenset[OperationKind] = frozenset({"collect", "verify", "backup", "prune"})
"""Kinds without application."""
ONE_AT_A_TIME: frozenset[OperationKind] = frozenset({"import"})
"""Kinds of operations that run one at a time across all control planes: a concurrent operation might delete files that
another one relies on."""


class Interrupted(Exception):
    """The work stops here and is restarted by another process: the control plane is closing, or lost its claim."""


def advance(state: State | None, event: Event) -> State:
    """The state after ``event``. Raises :class:`IllegalTransition`."""
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise IllegalTransition(f"An operation that is {state or 'not begun'} cannot {event.value}.") from None


def cancelled(kind: OperationKind, id: str, state: State) -> State:
    """The state after a cancellation was requested. Raises ``Conflict`` with an alternative."""
    if kind in BY_DRIVER and state not in FINAL:
        raise Conflict(
            f"Operation {kind} {id} is ended by the application's driver and cannot be cancelled; stop the "
            "application instead."
        )
    try:
        return advance(state, Event.CANCEL)
    except IllegalTransition:
        raise Conflict(f"Operation {kind} {id} has already {state.value}.") from None


def is_free(
    holder: str | None, until: datetime | None, moment: datetime, claimant: str, has_terminated: Callable[[str], bool]
) -> bool:
    """Return whether ``claimant`` may claim the operation at ``moment``. It may claim its own, from an interrupted
    try."""
    if holder is None or until is None or holder == claimant:
        return True
    return until <= moment or has_terminated(holder)
