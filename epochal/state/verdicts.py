"""Verdicts on changes of meaning in an upgrade: refused differences, and differences that can be accepted.

A changed merge function is refused: the state holds partial values of the old function. A changed argument, filter, key
expression or input can be accepted by name; the state then holds rows of both meanings. Changed code of the author is
reported. If the older version stored no definition, meanings cannot be compared, and a note reports this.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict

from epochal.contracts.configuration import Acceptance
from epochal.state.definition import changed_code
from epochal.state.table import StateTable

if TYPE_CHECKING:
    from epochal.state.meaning import Definitions, Difference


class MeaningChange(BaseModel):
    """One difference in meaning between the version that computed the state and the version that continues it.

    ``column``: the value column, the key or the column of an input; ``None``: the rows of an input. ``before`` and
    ``after`` are texts for display. ``accepted``: true if the upgrade accepts the difference by name.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    column: str | None
    what: Literal["function", "argument", "filter", "key", "input"]
    before: str
    after: str
    accepted: bool = False


@dataclass(frozen=True)
class Meanings:
    """Comparison of the meanings of one state table."""

    changed: tuple[MeaningChange, ...] = ()
    code_changed: tuple[str, ...] = ()
    unknown: bool = False
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def refused(self) -> bool:
        """True if a difference cannot be accepted."""
        return any(change.what == "function" for change in self.changed)


SAME_MEANING = Meanings()


@dataclass(frozen=True)
class Versions:
    """The state tables of two versions by id, for comparisons that include upstream operators."""

    before: Mapping[str, StateTable]
    after: Mapping[str, StateTable]

    @cached_property
    def _all_equal(self) -> bool:
        return all(
            table.definition == self.after[id].definition for id, table in self.before.items() if id in self.after
        ) and {table.operator for table in self.before.values()} <= {table.operator for table in self.after.values()}

    @cached_property
    def _definitions(self) -> tuple[Definitions, Definitions]:
        from epochal.state.meaning import Definitions  # loads a SQL parser, which most comparisons do not need

        before, after = (
            Definitions.of((table.operator, table.definition) for table in side.values())
            for side in (self.before, self.after)
        )
        return before, after

    def meanings(self, id: str, acceptance: Acceptance) -> Meanings:
        """Compare the meanings of a table that exists in both versions."""
        old, new = self.before[id], self.after[id]
        if old.definition is None or new.definition is None:
            return _not_known(old) if old.definition is None and new.definition is not None else SAME_MEANING
        if self._all_equal:
            return SAME_MEANING
        from epochal.state.meaning import differences

        found = tuple(differences(old.definition, new.definition, self._definitions))
        changed = tuple(_change(new, each, acceptance) for each in found)
        code = tuple(changed_code(old.definition, new.definition))
        return Meanings(
            changed=changed,
            code_changed=code,
            problems=tuple(_problems(new, changed)),
            notes=tuple(
                f"Operator {new.operator!r}: the code of {name} has changed. Its state stays as the earlier code left "
                "it; whether that fits is for its author to know."
                for name in code
            ),
        )


def _not_known(old: StateTable) -> Meanings:
    note = (
        f"State table {old.id!r}: the snapshot has no definition of it, so that its meaning cannot be compared. Make "
        "sure that its aggregates, keys and inputs are as before."
    )
    return Meanings(unknown=True, notes=(note,))


def _change(table: StateTable, difference: Difference, acceptance: Acceptance) -> MeaningChange:
    can_be = difference.what != "function" and table.changes_of is None
    return MeaningChange(
        column=difference.column,
        what=difference.what,
        before=difference.before,
        after=difference.after,
        accepted=can_be and acceptance.accepts_changed(table.operator, difference.column),
    )


def _problems(table: StateTable, changed: Iterable[MeaningChange]) -> Iterator[str]:
    for change in changed:
        where = f"State table {table.id!r}" if change.column is None else f"State table {table.id!r}: {_what(change)}"
        now = f"{where} was computed from {change.before}, and would continue with {change.after}."
        if change.column is None:
            now = f"{where}: the rows that reach it were {change.before}, and would be {change.after}."
            if change.what == "filter":
                now = f"{where}: its rows have passed {change.before}, and would pass {change.after}."
        if change.what == "function":
            yield (
                f"{now} Partial values of one function cannot be continued by another. {_instead(table, change)} to "
                "compute it from all rows."
            )
        elif table.changes_of is not None:
            yield (
                f"{now} It retracts rows of {table.changes_of!r} as they were counted, so that this difference cannot "
                f"be accepted. Give it and operator {table.changes_of!r} new names: both begin with empty state."
            )
        elif not change.accepted:
            name = table.operator if change.column is None else f"{table.operator}.{change.column}"
            instead = _instead(table, change)
            yield (
                f"{now} The state would hold both meanings. Accept that with --accept-changed {name}, or "
                f"{instead[0].lower()}{instead[1:]} to compute it from all rows."
            )


def _what(change: MeaningChange) -> str:
    match change.what:
        case "key":
            return f"key {change.column!r}"
        case "input":
            return f"input column {change.column!r}"
        case _:
            return f"column {change.column!r}"


def _instead(table: StateTable, change: MeaningChange) -> str:
    """The alternative to acceptance. An aggregate's columns are independent; keys and inputs concern the operator."""
    of_column = change.what in ("function", "argument") and table.id == table.operator
    what = "the column" if of_column else f"operator {table.operator!r}"
    name = f" {table.id}.{change.column}" if of_column else f" {table.id}" if table.id == table.operator else ""
    return f"Give {what} another name, dropping its state with --allow-dropped-state{name}, or submit a new application"
