"""Declarations of state tables: derived columns and schemas, and refused declarations."""

from __future__ import annotations

from typing import Any

import pytest

from epochal.state.expiry import Expiry, StateClock
from epochal.state.table import GROUP, Column, StateScope, StateTable
from tests.unit.snapshot_tree import SESSIONS, TOTALS, WINDOWS


def test_a_copy_with_other_columns_has_its_own_schemas() -> None:
    assert SESSIONS.delta_schema.names == ["_kg", "_op", "tail", "airport", "late", "_touched"]
    assert SESSIONS.hidden == {"_touched"}
    plain = SESSIONS.model_copy(update={"value": SESSIONS.value[:1], "expires": None})
    assert plain.delta_schema.names == ["_kg", "_op", "tail", "airport", "late"]
    assert (plain.hidden, SESSIONS.hidden) == (frozenset(), {"_touched"})


def test_an_authors_column_is_visible_although_rows_expire_by_it() -> None:
    columns = (Column(name="_at", type="timestamp"), Column(name="price", type="int"))
    expires = Expiry(clock="event", column="_at", after=3)
    waiting = SESSIONS.model_copy(update={"value": columns, "expires": expires})
    assert (waiting.hidden, waiting.visible) == (frozenset(), columns)


def test_the_time_is_first_in_the_full_key_and_last_in_the_address() -> None:
    assert WINDOWS.key_schema.names == ["at", "city"]
    assert WINDOWS.address_schema.names == ["city", "at"]
    assert [field.nullable for field in WINDOWS.key_schema] == [False, True]
    assert SESSIONS.address_schema == SESSIONS.key_schema


def test_tables_without_time_are_serialised_without_its_fields() -> None:
    assert not {"time", "expires", "scope"} & TOTALS.model_dump().keys()
    for table in (WINDOWS, SESSIONS):
        assert StateTable.model_validate_json(table.model_dump_json()) == table


def test_the_horizon_is_the_last_expired_time() -> None:
    expiry = Expiry(clock="event", column="at", after=3)
    end = 2**63 - 1
    assert [expiry.horizon(StateClock(event, 99)) for event in (-(2**63), 3, 10, end)] == [None, 0, 7, end]
    assert expiry.horizon(None) is None
    floored = expiry.model_copy(update={"floor": 5})
    assert [floored.horizon(StateClock(event, 99)) for event in (-(2**63), 3, 10)] == [5, 5, 7]


@pytest.mark.parametrize(
    ("table", "changes"),
    [
        (WINDOWS, {"time": Column(name="at", type="string")}),
        (WINDOWS, {"scope": StateScope.OPERATOR, "key": (GROUP,)}),
        (SESSIONS, {"expires": Expiry(clock="event", column="late_", after=1)}),
        (SESSIONS, {"expires": Expiry(clock="event", column="airport", after=1)}),
    ],
)
def test_invalid_times_and_expiries_are_refused(table: StateTable, changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=table.id):
        StateTable.model_validate(table.model_dump() | changes)
