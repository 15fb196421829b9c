"""Evolution of state: permitted changes of a state table between two versions of an application.

Layout is compared by types, keys, windows and expiry; meaning is compared by definitions
(:mod:`epochal.state.meaning`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import timedelta
from typing import Literal

from pydantic import BaseModel, ConfigDict

from epochal.contracts.configuration import NOTHING_ACCEPTED, Acceptance
from epochal.state.continuing import partial_columns
from epochal.state.declared_rows import widens
from epochal.state.table import ANY, SUM_OR_NULL, Column, StateTable
from epochal.state.verdicts import MeaningChange as MeaningChange
from epochal.state.verdicts import Versions

Verdict = Literal["same", "added", "dropped", "evolved", "changed", "refused"]
"""``changed``: an argument, a filter, a key expression or an input differs in meaning from the version that computed
the state. ``refused``: the merge function or the layout differs."""


class TableChange(BaseModel):
    """Effect of an upgrade on one state table. ``problems``: reasons for refusal, with remedies; empty if permitted."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    table: str
    operator: str
    verdict: Verdict
    added: tuple[Column, ...] = ()
    widened: dict[str, tuple[str, str]] = {}
    """Column -> old type, new type."""
    dropped: tuple[str, ...] = ()
    changed: tuple[MeaningChange, ...] = ()
    partial: tuple[str, ...] = ()
    """Added aggregate columns, which count rows only from this upgrade on, next to totals over all rows."""
    code_changed: tuple[str, ...] = ()
    """The author's functions and classes whose syntax tree differs. Reported, never refused."""
    unknown: bool = False
    """True if the older version stored no definition, so that meanings cannot be compared."""
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """Effects on existing rows, for the user's information."""


def compare(
    before: Iterable[StateTable],
    after: Iterable[StateTable],
    may_drop: Collection[str] = (),
    acceptance: Acceptance = NOTHING_ACCEPTED,
) -> tuple[TableChange, ...]:
    """Compare the state tables of two versions, by id. ``may_drop``: tables (``streaks.current``) and columns
    (``streaks.current.note``, ``delays.worst``) that may be dropped. ``acceptance``: changes of meaning and partial
    columns that this upgrade accepts; any other change or partial column is a problem."""
    versions = Versions({table.id: table for table in before}, {table.id: table for table in after})
    ids = sorted({*versions.before, *versions.after})
    return tuple(_compared(id, versions, may_drop, acceptance) for id in ids)


def _compared(id: str, versions: Versions, may_drop: Collection[str], acceptance: Acceptance) -> TableChange:
    old, new = versions.before.get(id), versions.after.get(id)
    if old is None:
        there = {table.operator for table in versions.before.values()}
        assert new is not None  # each id is in at least one of the versions
        problems = tuple(_unseen_changes(new)) if new.changes_of in there else ()
        return TableChange(table=id, operator=new.operator, verdict="added", added=new.value, problems=problems)
    if new is None:
        problem = () if id in may_drop else (_lost(f"State table {id!r}", id),)
        return TableChange(table=id, operator=old.operator, verdict="dropped", problems=problem if old.durable else ())
    if old.durable != new.durable:
        return _otherwise_kept(old, new, may_drop)
    return _meaning(_evolved(old, new, may_drop, acceptance), versions, acceptance)


def _meaning(change: TableChange, versions: Versions, acceptance: Acceptance) -> TableChange:
    """Add the change of a table's meaning to the change of its layout."""
    meanings = versions.meanings(change.table, acceptance)
    verdict: Verdict = "refused" if meanings.refused else "changed" if meanings.changed else change.verdict
    return change.model_copy(
        update={
            "verdict": verdict,
            "changed": meanings.changed,
            "code_changed": meanings.code_changed,
            "unknown": meanings.unknown,
            "problems": (*change.problems, *meanings.problems),
            "notes": (*change.notes, *meanings.notes),
        }
    )


def _otherwise_kept(old: StateTable, new: StateTable, may_drop: Collection[str]) -> TableChange:
    """Change between durable and cached: no rows are carried over, the table begins empty."""
    if new.durable:
        note = f"State table {new.id!r} becomes durable, and begins empty."
        return TableChange(table=new.id, operator=new.operator, verdict="evolved", notes=(note,))
    lost = (
        f"State table {old.id!r} is no longer durable, and would begin empty. Remove durable=False, or allow "
        f"the loss with --allow-dropped-state {old.id}."
    )
    problems = () if new.id in may_drop else (lost,)
    return TableChange(table=new.id, operator=new.operator, verdict="evolved", problems=problems)


def _evolved(old: StateTable, new: StateTable, may_drop: Collection[str], acceptance: Acceptance) -> TableChange:
    problems = [*_other_shape(old, new), *_other_instances(old, new), *_other_expiry(old, new)]
    had = {column.name: column for column in old.value}
    has = {column.name: column for column in new.value}
    widened: dict[str, tuple[str, str]] = {}
    for name in sorted(had.keys() & has.keys()):
        if had[name].default != has[name].default and name not in new.hidden:
            problems.append(
                f"State table {new.id!r}: the default of column {name!r} cannot change, because older rows are read "
                f"with it. Keep {had[name].default!r}, or replace the value when the state is read."
            )
        if had[name].type == has[name].type:
            continue
        if widens(had[name].type, has[name].type):
            widened[name] = (had[name].type, has[name].type)
        else:
            problems.append(
                f"State table {new.id!r}: column {name!r} cannot become {has[name].type} from {had[name].type}: "
                f"existing values may not fit. Keep {had[name].type}, or give the changed column a new name."
            )
    dropped = tuple(name for name in had if name not in has and name not in old.hidden)
    problems += _dropped_columns(old, new, dropped, may_drop)
    added = tuple(column for column in new.value if column.name not in had and column.name not in new.hidden)
    partial, refused, partial_notes = partial_columns(old, new, acceptance)
    problems += refused
    notes = (*_notes_of_expiry(old, new), *partial_notes)
    verdict: Verdict = "evolved" if added or dropped or widened or problems or notes else "same"
    return TableChange(
        table=new.id,
        operator=new.operator,
        verdict=verdict,
        added=added,
        widened=widened,
        dropped=dropped,
        partial=partial,
        problems=tuple(problems),
        notes=notes,
    )


def _dropped_columns(
    old: StateTable, new: StateTable, dropped: Iterable[str], may_drop: Collection[str]
) -> Iterable[str]:
    """Problems of dropped columns, under the author's names. ``may_drop`` accepts these and the stored names."""
    declared = {new.author_column(column.name) for column in new.value}
    kept = (name for name in dropped if f"{new.id}.{name}" not in may_drop)
    for name in dict.fromkeys(map(old.author_column, kept)):
        if f"{new.id}.{name}" in may_drop:
            continue
        what = f"State table {new.id!r}: column {name!r}"
        if name in declared:
            yield (
                f"{what} is computed from other aggregates, which begin empty; its values would be lost. Give it "
                f"another name, or allow the loss with --allow-dropped-state {new.id}.{name}."
            )
        else:
            yield _lost(what, f"{new.id}.{name}")


def _other_expiry(old: StateTable, new: StateTable) -> Iterable[str]:
    was, now = (None if table.expires is None else table.expires.deleted for table in (old, new))
    if was != now:
        yield (
            f"State table {new.id!r}: deleted_when cannot become {now or 'none'} from {was or 'none'}: rows were "
            f"emitted and retracted accordingly. Keep deleted_when, or give the {_named(new)} a new name, together "
            "with operators that read its changes."
        )
        return
    if old.expires is None:
        return
    if new.expires is None:
        yield (
            f"State table {new.id!r}: its time to live cannot be removed: expired rows that are still in files would "
            f"reappear. Use a longer one, or give the {_named(new)} a new name."
        )
    elif (old.expires.clock, old.expires.column) != (new.expires.clock, new.expires.column):
        yield (
            f"State table {new.id!r}: its rows cannot expire by {new.expires.column!r} in {new.expires.clock} time; "
            f"existing rows expire by {old.expires.column!r} in {old.expires.clock} time. Keep the clock, or give the "
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
            f"State table {new.id!r} gets a time to live of {length}. For existing rows it begins at {clock} of the "
            "snapshot that the upgrade starts from."
        )
        return
    if before.after != after.after:
        what = "expired rows do not return"
        if after.after < before.after:
            what = "older rows expire with the first epoch"
        yield (
            f"State table {new.id!r}: the time to live changes from {timedelta(microseconds=before.after)} to "
            f"{length}, also for existing rows; {what}."
        )
    if before.refresh != after.refresh:
        reads = "also reads refresh" if after.refresh == "read_and_write" else "only writes refresh"
        yield f"State table {new.id!r}: from this upgrade on {reads} its rows; existing rows keep their times."


def _unseen_changes(new: StateTable) -> Iterable[str]:
    yield (
        f"State table {new.id!r} begins with empty state over the changes of {new.changes_of!r}, which continues its "
        "state: it would retract rows that it has never counted. Give both new names, so that both begin with empty "
        "state."
    )


def _other_shape(old: StateTable, new: StateTable) -> Iterable[str]:
    if old.scope != new.scope:
        yield (
            f"State table {new.id!r}: {old.scope.value} state cannot become {new.scope.value} state: the "
            "scope determines where existing rows are stored. Keep the scope, or give the state a new name."
        )
        return
    if old.windows != new.windows:
        yield (
            f"State table {new.id!r}: its windows cannot become {_windows(new)} from {_windows(old)}: open "
            "windows are stored by them. Keep the windows, or give the operator a new name; it then begins with empty "
            "state."
        )
        return
    if old.joined != new.joined:
        yield (
            f"State table {new.id!r}: its join cannot become {_joined(new)} from {_joined(old)}: rows that would "
            "match now were deleted, or were emitted without a match. Keep the join unchanged, or give it a new name; "
            "it then begins with empty state."
        )
        return
    if old.changes_of != new.changes_of:
        over = "rows" if new.changes_of is None else f"the changes of {new.changes_of!r}"
        yield (
            f"State table {new.id!r}: its input cannot become {over}: it has counted another kind of input. Give the "
            "operator a new name and, if it reads changes, also the operator that emits them: both then begin with "
            "empty state."
        )
        return
    if old.ranked != new.ranked:
        yield (
            f"State table {new.id!r}: it cannot store {_ranked(new)}, since it has stored {_ranked(old)}: rows that "
            "would be among them now were deleted, and stored ranks would differ. Keep count, by and descending, or "
            "give the operator a new name; it then begins with empty state."
        )
        return
    if (old.time, old.key, old.sub_key) != (new.time, new.key, new.sub_key):
        was = ", ".join(f"{column.name} {column.type}" for column in old.full_key)
        now = ", ".join(f"{column.name} {column.type}" for column in new.full_key)
        yield (
            f"State table {new.id!r}: its key cannot become ({now}) from ({was}): existing rows are stored by it. "
            "Keep the key, or give the operator a new name."
        )
    if old.kind != new.kind:
        yield (
            f"State table {new.id!r}: {old.kind.value} state cannot become {new.kind.value} state. "
            "Give the state a new name."
        )


def _other_instances(old: StateTable, new: StateTable) -> Iterable[str]:
    """Problems of a change in what each instance holds: the whole state, or a part of it."""
    was, now = _function(old), _function(new)
    if (was, now) == (ANY, SUM_OR_NULL):
        what = "each of its instances holds the whole state, and the instances would be added up"
    elif (was, now) == (SUM_OR_NULL, ANY):
        what = "each of its instances holds a part of a sum, which would be taken for the whole state"
    else:
        return
    yield (
        f"State table {new.id!r}: {what}. Write it as in the older version, only by Global or only by adding to any "
        "instance, or give the state element a new name."
    )


def _function(table: StateTable) -> str | None:
    """The merge function of its instances, if all columns share one, as in a program."""
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
        f"{what} is no longer declared, and its contents would be lost. Keep it under the same name, or allow the loss "
        f"with --allow-dropped-state {consent}."
    )
