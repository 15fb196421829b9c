"""Columns that state keeps for the sake of others, such as the sum and the count of an average: people see the others.

Documents (``--json``) have all columns, as REST's answers do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from epochal.cli.session import Session
from epochal.client import StateValue
from epochal.client.models import Blame, DiffRow, KeyChange, KeyHistory, Scan

Values = Mapping[str, Any]
Change = TypeVar("Change", KeyChange, DiffRow)


@dataclass(frozen=True)
class Shown:
    """Answers about one state table without its ``internal`` columns."""

    internal: frozenset[str]

    @classmethod
    def of(cls, session: Session, application: str, table: str) -> Shown:
        """As the application declares the table now; one that it no longer has is shown as it is."""
        tables = session.client.application(application).state_tables()
        columns = [column for each in tables if each.table == table for column in each.value]
        return cls(frozenset(column.name for column in columns if column.internal))

    def lookup(self, answer: StateValue) -> StateValue:
        entries = answer.entries and tuple(self._visible(entry) or {} for entry in answer.entries)
        update = {"value": self._visible(answer.value), "entries": entries, "since": self._visible(answer.since)}
        return answer.model_copy(update=update)

    def scan(self, page: Scan) -> Scan:
        items = tuple(row.model_copy(update={"value": self._visible(row.value)}) for row in page.items)
        return page.model_copy(update={"items": items, "since": self._visible(page.since)})

    def history(self, history: KeyHistory) -> KeyHistory:
        return history.model_copy(update={"items": tuple(map(self._of_epoch, history.items))})

    def blame(self, blame: Blame) -> Blame:
        return blame.model_copy(update={"change": self._of_epoch(blame.change)})

    def rows(self, rows: Sequence[DiffRow]) -> list[DiffRow]:
        return [self._change(row) for row in rows]

    def _of_epoch(self, change: KeyChange) -> KeyChange:
        return self._change(change).model_copy(update={"since": self._visible(change.since)})

    def _change(self, change: Change) -> Change:
        """One that only internal columns have (an average that stayed the same) is shown by them."""
        old, new = self._visible(change.old), self._visible(change.new)
        return change if old == new else change.model_copy(update={"old": old, "new": new})

    def _visible(self, values: Values | None) -> dict[str, Any] | None:
        return None if values is None else {name: value for name, value in values.items() if name not in self.internal}
