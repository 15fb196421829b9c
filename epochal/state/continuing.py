"""Declarations continued from a snapshot: the lineage's expiry settings, and columns that do not count all rows."""

from __future__ import annotations

from typing import Any

from epochal.contracts.conditions import as_datetime
from epochal.contracts.configuration import Acceptance
from epochal.state.expiry import Expiry, StateClock
from epochal.state.json_form import to_json
from epochal.state.table import Column, StateKind, StateTable


def added_aggregates(old: StateTable, new: StateTable) -> tuple[str, ...]:
    """Value columns of an aggregate that ``old`` lacks: for existing keys, they count only later rows."""
    if new.kind is not StateKind.AGGREGATE or old.durable != new.durable:
        return ()
    had = {column.name for column in old.value}
    return tuple(column.name for column in new.value if column.name not in had and column.name not in new.hidden)


def partial_columns(
    old: StateTable, new: StateTable, acceptance: Acceptance
) -> tuple[tuple[str, ...], list[str], list[str]]:
    """Added aggregates of existing keys under their author's names, problems of aggregates that are not accepted, and
    notes on accepted ones."""
    names = tuple(dict.fromkeys(map(new.author_column, added_aggregates(old, new))))
    complete = "keys created after the upgrade" if new.windows is None else "windows that open after the upgrade"
    problems, notes = [], []
    for name in names:
        what = f"State table {new.id!r}: the added column {name!r} counts rows"
        if acceptance.accepts_partial(new.operator, name):
            notes.append(f"{what} from the first epoch of the upgrade on; {complete} are complete.")
        else:
            problems.append(
                f"{what} only from the first epoch of the upgrade on, beside columns that count all rows; only "
                f"{complete} are complete. Accept this with --accept-partial {new.operator}.{name}, give the operator "
                "a new name, under which it begins with empty state, or compute the state again from the sources in a "
                "new application."
            )
    return names, problems, notes


def continued(
    declared: StateTable, before: StateTable | None, clock: StateClock | None, first: int | None = None
) -> StateTable:
    """The declaration continued from a snapshot in which it was ``before``, with the lineage's expiry settings and
    columns that do not count all rows. ``first``: the first epoch whose rows the declaration counts.

    Rows that expired under another time to live stay expired. Rows that are older than any time to live count from the
    snapshot's ``clock``. Manifests store the result: readers of the snapshot use it, and later versions inherit it.
    """
    if before is None:
        return declared
    return _counting(_expiring(declared, before, clock), before, first)


def _counting(declared: StateTable, before: StateTable, first: int | None) -> StateTable:
    """Set ``since`` of the columns that an earlier version or this one added."""
    if declared.kind is not StateKind.AGGREGATE or declared.durable != before.durable:
        return declared
    since = {column.name: column.since for column in before.value}
    since |= dict.fromkeys(added_aggregates(before, declared), first)
    if all(column.since == since.get(column.name) for column in declared.value):
        return declared
    value = tuple(column.model_copy(update={"since": since.get(column.name)}) for column in declared.value)
    return declared.model_copy(update={"value": value})


def _expiring(declared: StateTable, before: StateTable, clock: StateClock | None) -> StateTable:
    if declared.expires is None:
        return declared
    update: dict[str, Any] = {}
    floor = before.horizon(clock) if _length(before) != _length(declared) else before.expires and before.expires.floor
    if floor is not None:
        update["expires"] = declared.expires.model_copy(update={"floor": floor})
    known = {column.name: column for column in before.value}
    if declared.hidden - known.keys():
        since = None if clock is None else _since(clock, declared.expires)
        known |= {column.name: _from(column, since) for column in declared.value if column.name in declared.hidden}
    if any(known[name].default is not None for name in declared.hidden):
        update["value"] = tuple(
            column.model_copy(update={"default": known[column.name].default})
            if column.name in declared.hidden
            else column
            for column in declared.value
        )
    return declared.model_copy(update=update) if update else declared


def _since(clock: StateClock, expires: Expiry) -> int:
    """The time assigned to rows without one: the watermark for event-time expiry if it is known, else the epoch time.
    No row of a snapshot without a watermark is later than its epoch time."""
    by_event = expires.clock == "event" and as_datetime(clock.event) is not None
    return clock.event if by_event else clock.processing


def _from(column: Column, since: int | None) -> Column:
    instant = None if since is None else as_datetime(since)
    if instant is None:
        return column
    value = since if column.type == "bigint" else to_json(instant, column.type)
    return column.model_copy(update={"default": value})


def _length(table: StateTable) -> int | None:
    return None if table.expires is None else table.expires.after
