"""Schema evolution (design/state.md): what may change in a state table between two versions of an application.

Files are never rewritten for it. Rows of older files are read as the newer declaration has them: an added column is
null or its default there, a widened one is cast, a dropped one is left out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import timedelta
from typing import Any, Literal

import pyarrow as pa
from pydantic import BaseModel, ConfigDict

from epochal.contracts.conditions import as_datetime
from epochal.state.column_bytes import Columns, column
from epochal.state.decimals import decimal_of
from epochal.state.expiry import Expiry, StateClock
from epochal.state.json_form import from_json, to_json
from epochal.state.table import ANY, SUM_OR_NULL, Column, StateTable
from epochal.state.type_names import NestedType, nested_type
from epochal.state.types import INTEGER_BITS, arrow_type

Verdict = Literal["same", "added", "dropped", "evolved"]


class TableChange(BaseModel):
    """What becomes of one state table. ``problems`` say why it cannot be, and what to do; none: it can."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    table: str
    verdict: Verdict
    added: tuple[Column, ...] = ()
    widened: dict[str, tuple[str, str]] = {}
    """Column -> type before, type now."""
    dropped: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """What becomes of rows that are there, and is to be known."""


def compare(
    before: Iterable[StateTable], after: Iterable[StateTable], may_drop: Collection[str] = ()
) -> tuple[TableChange, ...]:
    """Every state table of the two versions, by id. ``may_drop``: tables (``streaks.current``) and columns
    (``streaks.current.note``, ``delays.worst``) that may be dropped."""
    old = {table.id: table for table in before}
    new = {table.id: table for table in after}
    there = {table.operator for table in old.values()}
    return tuple(_compared(id, old.get(id), new.get(id), there, may_drop) for id in sorted({*old, *new}))


def _compared(
    id: str, old: StateTable | None, new: StateTable | None, there: Collection[str], may_drop: Collection[str]
) -> TableChange:
    """``there``: the operators that have had state."""
    if old is None:
        assert new is not None  # it is in one of the two
        problems = tuple(_unseen_changes(new)) if new.changes_of in there else ()
        return TableChange(table=id, verdict="added", added=new.value, problems=problems)
    if new is None:
        problem = () if id in may_drop else (_lost(f"State table {id!r}", id),)
        return TableChange(table=id, verdict="dropped", problems=problem if old.durable else ())
    if old.durable != new.durable:
        return _otherwise_kept(old, new, may_drop)
    return _evolved(old, new, may_drop)


def _otherwise_kept(old: StateTable, new: StateTable, may_drop: Collection[str]) -> TableChange:
    """Between snapshots and caches nothing is carried over: it begins empty."""
    if new.durable:
        note = f"State table {new.id!r} becomes durable, and begins empty."
        return TableChange(table=new.id, verdict="evolved", notes=(note,))
    lost = (
        f"State table {old.id!r} is not durable any more, and would begin empty. Leave durable=False out, or allow "
        f"that: configuration.allow_dropped_state = [{old.id!r}]."
    )
    return TableChange(table=new.id, verdict="evolved", problems=() if new.id in may_drop else (lost,))


def _evolved(old: StateTable, new: StateTable, may_drop: Collection[str]) -> TableChange:
    problems = [*_other_shape(old, new), *_other_instances(old, new), *_other_expiry(old, new)]
    had = {column.name: column for column in old.value}
    has = {column.name: column for column in new.value}
    widened: dict[str, tuple[str, str]] = {}
    for name in sorted(had.keys() & has.keys()):
        if had[name].default != has[name].default and name not in new.hidden:
            problems.append(
                f"State table {new.id!r}: the default of column {name!r} cannot change once the column is there: older "
                f"rows are read with it. Keep {had[name].default!r}, or change the value when the state is read."
            )
        if had[name].type == has[name].type:
            continue
        if widens(had[name].type, has[name].type):
            widened[name] = (had[name].type, has[name].type)
        else:
            problems.append(
                f"State table {new.id!r}: column {name!r} cannot become {has[name].type} from {had[name].type}, which "
                f"may hold what does not fit. Keep {had[name].type}, or give the changed column a new name."
            )
    dropped = tuple(name for name in had if name not in has and name not in old.hidden)
    for name in dropped:
        if f"{new.id}.{name}" not in may_drop:
            problems.append(_lost(f"State table {new.id!r}: column {name!r}", f"{new.id}.{name}"))
    added = tuple(column for column in new.value if column.name not in had and column.name not in new.hidden)
    notes = tuple(_notes_of_expiry(old, new))
    verdict: Verdict = "evolved" if added or dropped or widened or problems or notes else "same"
    return TableChange(
        table=new.id,
        verdict=verdict,
        added=added,
        widened=widened,
        dropped=dropped,
        problems=tuple(problems),
        notes=notes,
    )


def continued(declared: StateTable, before: StateTable | None, clock: StateClock | None) -> StateTable:
    """A declaration as it goes on from a snapshot, where it was ``before``: with what the lineage knows of expiry.

    Rows that were gone under another time to live stay gone; rows from before there was any count from the snapshot's
    ``clock``. Manifests keep this, so that it holds for everyone who reads them, and for all that follow.
    """
    if declared.expires is None or before is None:
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
    """When rows that have no time count from. Where no watermark is known, nothing of the snapshot is later than it."""
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


def _other_expiry(old: StateTable, new: StateTable) -> Iterable[str]:
    was, now = (None if table.expires is None else table.expires.deleted for table in (old, new))
    if was != now:
        yield (
            f"State table {new.id!r}: its deleted keys cannot be those of {now or 'no column'} that were those of "
            f"{was or 'no column'}: rows of such keys were given, or taken back, by that. Keep deleted_when, or give "
            f"the {_named(new)} a new name, together with operators that read its changes."
        )
        return
    if old.expires is None:
        return
    if new.expires is None:
        yield (
            f"State table {new.id!r}: its time to live cannot be taken away: rows that have expired, and are still in "
            f"files, would be there again. Give it a longer one, or the {_named(new)} a new name."
        )
    elif (old.expires.clock, old.expires.column) != (new.expires.clock, new.expires.column):
        yield (
            f"State table {new.id!r}: its rows cannot expire by {new.expires.column!r} in {new.expires.clock} time; "
            f"those that are there do by {old.expires.column!r} in {old.expires.clock} time. Keep that, or give the "
            f"{_named(new)} a new name."
        )


def _named(table: StateTable) -> str:
    return "operator" if table.id == table.operator else "state"


def _notes_of_expiry(old: StateTable, new: StateTable) -> Iterable[str]:
    before, after = old.expires, new.expires
    if after is None or not new.hidden:
        return
    length = timedelta(microseconds=after.after)
    if before is None:
        clock = "the epoch time" if after.clock == "processing" else "the watermark, or else the epoch time,"
        yield (
            f"State table {new.id!r} gets a time to live of {length}: the rows that are there count from {clock} of "
            "the snapshot that is gone on from."
        )
        return
    if before.after != after.after:
        what = "what has expired stays gone"
        if after.after < before.after:
            what = "those that were not touched for so long go with the first epoch"
        yield (
            f"State table {new.id!r}: the time to live becomes {length} from {timedelta(microseconds=before.after)}, "
            f"also of the rows that are there; {what}."
        )
    if before.refresh != after.refresh:
        reads = "also reads refresh" if after.refresh == "read_and_write" else "only writes refresh"
        yield f"State table {new.id!r}: from now on {reads} its rows; those that are there keep their times."


def _unseen_changes(new: StateTable) -> Iterable[str]:
    yield (
        f"State table {new.id!r} begins anew over the changes of {new.changes_of!r}, which goes on: what it gave "
        "before would be taken back where it was never counted. Give both new names, so that they begin anew together."
    )


def _other_shape(old: StateTable, new: StateTable) -> Iterable[str]:
    if old.scope != new.scope:
        yield (
            f"State table {new.id!r}: {old.scope.value} state cannot become {new.scope.value} state: the "
            "rows that are there lie by it. Keep the scope, or give the state a new name."
        )
        return
    if old.windows != new.windows:
        yield (
            f"State table {new.id!r}: its windows cannot become {_windows(new)} from {_windows(old)}: those that are "
            "open lie by them. Keep the windows, or give the operator a new name, under which it begins anew."
        )
        return
    if old.joined != new.joined:
        yield (
            f"State table {new.id!r}: its rows cannot be joined by {_joined(new)} that were joined by {_joined(old)}: "
            "some are gone that would have a partner now, some have come out without one. Keep the join as it was, or "
            "give it a new name, under which it begins anew."
        )
        return
    if old.changes_of != new.changes_of:
        over = "rows" if new.changes_of is None else f"the changes of {new.changes_of!r}"
        yield (
            f"State table {new.id!r}: it cannot go on over {over}: what it has counted was of something else. Give the "
            "operator a new name and, where it reads changes, the one that gives them, too: they begin anew together."
        )
        return
    if old.ranked != new.ranked:
        yield (
            f"State table {new.id!r}: it cannot keep {_ranked(new)} where it has kept {_ranked(old)}: rows are gone "
            "that would be among them now, and ranks are there that would not. Keep count, by and descending, or give "
            "the operator a new name, under which it begins anew."
        )
        return
    if old.taken_back != new.taken_back:
        was, now = ("; ".join(table.taken_back or ()) for table in (old, new))
        yield (
            f"State table {new.id!r}: what it has counted by ({was}) would be taken back by ({now}), as something "
            f"else. Keep the way to it, or give it and operator {new.changes_of!r} new names, so that they begin anew "
            "together."
        )
        return
    if (old.time, old.key, old.sub_key) != (new.time, new.key, new.sub_key):
        was = ", ".join(f"{column.name} {column.type}" for column in old.full_key)
        now = ", ".join(f"{column.name} {column.type}" for column in new.full_key)
        yield (
            f"State table {new.id!r}: its key cannot become ({now}) from ({was}): the rows that are there lie by it. "
            "Keep the key, or give the operator a new name."
        )
    if old.kind != new.kind:
        yield (
            f"State table {new.id!r}: {old.kind.value} state cannot become {new.kind.value} state. "
            "Give the state a new name."
        )


def _other_instances(old: StateTable, new: StateTable) -> Iterable[str]:
    """What each instance holds of the whole: all of it, or a part."""
    was, now = _function(old), _function(new)
    if (was, now) == (ANY, SUM_OR_NULL):
        what = "each of its instances holds all of it, and they would be added up"
    elif (was, now) == (SUM_OR_NULL, ANY):
        what = "each of its instances holds a part of a sum, and would be taken for all of it"
    else:
        return
    yield (
        f"State table {new.id!r}: {what}. Write it as before, only by Global or only by adding to any instance, or "
        "give the state element a new name."
    )


def _function(table: StateTable) -> str | None:
    """How its instances merge, where all columns do so alike, as those of a program."""
    functions = {each.function for each in table.reconcile or () if not isinstance(each, str)}
    return functions.pop() if len(functions) == 1 else None


def _windows(table: StateTable) -> str:
    """``tumbling (size 1 hour), allowed_lateness 5 minutes``."""
    if table.windows is None:
        return "none"
    said = dict(table.windows)
    window = dict(said.pop("window"))
    kind, lengths = window.pop("kind"), ", ".join(f"{name} {value}" for name, value in window.items())
    return ", ".join([f"{kind} ({lengths})", *(f"{name} {value}" for name, value in said.items())])


def _joined(table: StateTable) -> str:
    """``how left, within -5 minutes to 10 minutes``."""
    return ", ".join(f"{name} {value}" for name, value in (table.joined or {"nothing": ""}).items()).strip()


def _ranked(table: StateTable) -> str:
    """``the first 5 by price descending``."""
    if table.ranked is None:
        return "all rows"
    return f"the first {table.ranked['count']} by {', '.join(table.ranked['by'])} {table.ranked['order']}"


def _lost(what: str, consent: str) -> str:
    return (
        f"{what} is not declared any more; what it holds would be lost. Keep it under the same name, or allow that: "
        f"configuration.allow_dropped_state = [{consent!r}]."
    )


def widens(before: str, after: str) -> bool:
    """Whether every value of the one type is, exactly, one of the other: the numbers that Spark widens without loss."""
    if before in INTEGER_BITS and after in INTEGER_BITS:
        return INTEGER_BITS[before] < INTEGER_BITS[after]
    if (before, after) == ("float", "double"):
        return True
    if after == "double" and before in INTEGER_BITS:
        return INTEGER_BITS[before] <= 32
    inner, outer = nested_type(before), nested_type(after)
    if inner is not None and outer is not None:
        return _nested_widens(inner, outer)
    old, new = decimal_of(before), decimal_of(after)
    if old is None or new is None:
        return False
    return old != new and new[1] >= old[1] and new[0] - new[1] >= old[0] - old[1]


def _nested_widens(before: NestedType, after: NestedType) -> bool:
    """An element, a map's value or a field may widen; the fields stay, in their order, and a map's key as it is."""
    if (before.kind, before.names) != (after.kind, after.names):
        return False
    pairs = list(zip(before.types, after.types, strict=True))
    if before.kind == "map" and pairs[0][0] != pairs[0][1]:
        return False
    return before != after and all(old == new or widens(old, new) for old, new in pairs)


def as_declared(rows: Columns, fields: Iterable[pa.Field], table: StateTable, *, in_one_chunk: bool = True) -> pa.Table:
    """Rows of a file, maybe of an earlier declaration, as exactly ``fields`` of ``table``'s present one.
    ``in_one_chunk``: each column; otherwise what has the type of its field stays as it is.

    Raises ``KeyError`` when a column that is no value column of the table is missing: no evolution explains that.
    """
    defaults = {column.name: column for column in table.value}
    there = set(rows.schema.names)
    declared = list(fields)
    arrays = [
        _typed(rows, field, in_one_chunk) if field.name in there else _absent(defaults[field.name], rows.num_rows)
        for field in declared
    ]
    return pa.table(arrays, schema=pa.schema(declared))


def _typed(rows: Columns, field: pa.Field, in_one_chunk: bool) -> pa.Array | pa.ChunkedArray:
    held = rows.column(field.name)
    return held if held.type == field.type and not in_one_chunk else column(rows, field)


def _absent(column: Column, rows: int) -> pa.Array:
    return pa.repeat(pa.scalar(from_json(column.default, column), arrow_type(column.type)), rows)
