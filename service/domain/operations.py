"""Operations as one pure table: what may happen to them in which state, and whose claim may be taken over.

==========  ==========================================================================================
kinds       who carries them out
==========  ==========================================================================================
background  the control plane that holds the claim: begun again from the beginning by the next one, and
            cancellable until the transaction that decides them
by driver   the drivers' answers end them
==========  ==========================================================================================

A claim is for a while, by the database's clock, and is renewed. It only prevents that two do the same at once: what an
operation decides is decided in a transaction that looks whether the claim is still held.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from enum import StrEnum
from typing import get_args

from epochal.errors import Conflict, EpochalError
from epochal.wire.operations import OperationKind

LEASE_SECONDS = 30.0
"""A claim that was not renewed for so long may be taken over."""
RENEW_SECONDS = 3.0
MARGIN_SECONDS = 1.0
"""So long before its claim may be taken over, a holder that could not renew it has stopped."""


class State(StrEnum):
    """In the catalog, and to clients, an operation that is being cancelled is ``running`` until all is swept."""

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
    """Somebody asks for it."""
    SWEEP = "sweep"
    """Nothing is left of what was cancelled."""


class IllegalTransition(EpochalError):
    """This cannot happen to an operation in this state."""

    slug = "illegal-transition"


TRANSITIONS: Mapping[tuple[State | None, Event], State] = {
    (None, Event.BEGIN): State.RUNNING,
    (State.RUNNING, Event.SUCCEED): State.SUCCEEDED,
    (State.RUNNING, Event.FAIL): State.FAILED,
    (State.RUNNING, Event.CANCEL): State.CANCELLING,
    (State.CANCELLING, Event.SWEEP): State.CANCELLED,
    (State.CANCELLING, Event.FAIL): State.FAILED,  # sweeping did
    # A cancel that is repeated after a lost answer lands where it had landed.
    (State.CANCELLING, Event.CANCEL): State.CANCELLING,
    (State.CANCELLED, Event.CANCEL): State.CANCELLED,
}

FINAL = frozenset({State.SUCCEEDED, State.FAILED, State.CANCELLED})

BACKGROUND: frozenset[OperationKind] = frozenset(
    {"export", "import", "trial", "rekey", "collect", "verify", "backup", "prune"}
)
BY_DRIVER: frozenset[OperationKind] = frozenset(get_args(OperationKind)) - BACKGROUND
OF_THE_STORE: frozenset[OperationKind] = frozenset({"collect", "verify", "backup", "prune"})
"""Kinds that concern no application."""
ONE_AT_A_TIME: frozenset[OperationKind] = frozenset({"import"})
"""Kinds of which all control planes together carry out one at a time: what one has found in the store, and leaves as it
is, another one may be about to take back."""


class Interrupted(Exception):
    """The work ends here and is begun again: the control plane closes, or does not hold the claim any more."""


def advance(state: State | None, event: Event) -> State:
    """The state after ``event``. Raises :class:`IllegalTransition`."""
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise IllegalTransition(f"An operation that is {state or 'not begun'} cannot {event.value}.") from None


def cancelled(kind: OperationKind, id: str, state: State) -> State:
    """The state after somebody has asked for a cancel. Raises ``Conflict``, saying what can be done instead."""
    if kind in BY_DRIVER and state not in FINAL:
        raise Conflict(
            f"Operation {kind} {id} is ended by the application's driver, and cannot be cancelled; to end what the "
            "driver does, stop the application."
        )
    try:
        return advance(state, Event.CANCEL)
    except IllegalTransition:
        raise Conflict(f"Operation {kind} {id} has {state.value} already; there is nothing to cancel.") from None


def is_free(
    holder: str | None, until: datetime | None, moment: datetime, claimant: str, is_gone: Callable[[str], bool]
) -> bool:
    """May ``claimant`` claim it at ``moment``? Its own claim is one of a try that has ended without a word."""
    if holder is None or until is None or holder == claimant:
        return True
    return until <= moment or is_gone(holder)
