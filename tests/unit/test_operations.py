"""Operations as a pure table: every state with every event, and the leases that may be taken over."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import product
from typing import get_args

import pytest

from epochal.errors import Conflict
from epochal.service.domain.operations import (
    BACKGROUND,
    BY_DRIVER,
    FINAL,
    TRANSITIONS,
    Event,
    IllegalTransition,
    State,
    advance,
    cancelled,
    is_free,
)
from epochal.wire.operations import OperationKind, OperationState

NOW = datetime(2030, 1, 1, tzinfo=UTC)
ALLOWED = {
    "begin": {None: "running"},
    "succeed": {"running": "succeeded"},
    "fail": {"running": "failed", "cancelling": "failed"},
    "cancel": {"running": "cancelling", "cancelling": "cancelling", "cancelled": "cancelled"},
    "sweep": {"cancelling": "cancelled"},
}


@pytest.mark.parametrize(("state", "event"), list(product((None, *State), Event)))
def test_each_event_is_allowed_in_the_listed_states_only(state: State | None, event: Event) -> None:
    expected = ALLOWED[event.value].get(state)
    if expected is not None:
        assert advance(state, event) == expected
        return
    with pytest.raises(IllegalTransition, match=event.value):
        advance(state, event)


def test_cancelling_operations_never_succeed_and_final_states_stay() -> None:
    assert (State.CANCELLING, Event.SUCCEED) not in TRANSITIONS
    assert all(after is state for (state, _), after in TRANSITIONS.items() if state in FINAL)
    assert FINAL | {State.RUNNING, State.CANCELLING} == set(State)
    assert {state.value for state in State} - {"cancelling"} == set(get_args(OperationState))


def test_each_kind_runs_in_the_background_or_in_the_driver() -> None:
    assert set(get_args(OperationKind)) == BACKGROUND | BY_DRIVER and not BACKGROUND & BY_DRIVER


@pytest.mark.parametrize("kind", sorted(get_args(OperationKind)))
def test_cancel_is_refused_for_driver_operations_and_after_the_end(kind: OperationKind) -> None:
    if kind in BACKGROUND:
        assert cancelled(kind, "7", State.RUNNING) is State.CANCELLING
    else:
        with pytest.raises(Conflict, match=f"{kind} 7 is ended by the application's driver.*stop the application"):
            cancelled(kind, "7", State.RUNNING)
    for ended in (State.SUCCEEDED, State.FAILED):
        with pytest.raises(Conflict, match=f"{kind} 7 has already {ended.value}"):
            cancelled(kind, "7", ended)


@pytest.mark.parametrize(
    ("holder", "seconds_left", "holder_terminated", "free"),
    [
        (None, None, False, True),
        ("other", 5, False, False),
        ("other", 0, False, True),
        ("other", -5, False, True),
        ("other", 5, True, True),
        ("me", 5, False, True),
    ],
)
def test_claims_are_free_after_expiry_or_when_the_holder_has_terminated(
    holder: str | None, seconds_left: int | None, holder_terminated: bool, free: bool
) -> None:
    until = None if seconds_left is None else NOW + timedelta(seconds=seconds_left)
    assert is_free(holder, until, NOW, "me", lambda holder: holder_terminated) is free
