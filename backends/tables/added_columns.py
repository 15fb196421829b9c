"""Columns of a stream that its table lacks, added in R1, before the first epoch of an attempt (``add_columns=True``).

The commit that adds them has neither rows nor a marker, so that it is not part of the protocol of epochs. It can be
repeated: a driver reads the columns of the table, and adds those that are missing on top of the version that it read,
or of the columns that it read. After a conflict, or an error, the columns are read again. So two drivers add a column
once, and the late request of a dead driver lands only while no other change has.

A column that is added stays, also if the attempt fails, or an upgrade is reverted: a table may have more columns than
the rows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from epochal.backends.tables.commit_protocol import MOST_CONFLICTS, HeadMoved
from epochal.errors import OutcomeUnknown, SchemaError, SinkUnavailable
from epochal.faults import declare

log = logging.getLogger(__name__)

READ: Final = declare("R1.table.columns-read", "columns that the table lacks are known, and not added yet")
ADDED: Final = declare("R1.table.columns-added", "the version with the added columns is committed")


@dataclass(frozen=True)
class ColumnAddition:
    """The columns that a table lacks at one version. ``columns``: their types by name, for people; ``commit``: adds
    them in one version without rows. It raises ``HeadMoved``, ``OutcomeUnknown`` and ``SinkError``."""

    columns: Mapping[str, str]
    commit: Callable[[], None]

    def __str__(self) -> str:
        return ", ".join(f"{name} ({type})" for name, type in self.columns.items())


def add_missing_columns(subject: str, missing: Callable[[], ColumnAddition | None]) -> None:
    """Add columns until none is missing. Idempotent, also in several processes at the same time.

    ``missing``: reads the table and returns the columns that it lacks, or ``None``. Raises ``SinkUnavailable``, and
    what ``missing`` raises. The call can be repeated after each of them.
    """
    for _ in range(MOST_CONFLICTS):
        addition = missing()
        if addition is None:
            return
        READ.hit()
        try:
            addition.commit()
        except HeadMoved as moved:
            log.info("%s: %s; the columns are read again", subject, moved)
            continue
        except OutcomeUnknown as error:
            if missing() is None:
                return
            raise SinkUnavailable(error.message) from error
        ADDED.hit()
        log.info("%s: added the columns %s to the table", subject, addition)
    raise SinkUnavailable(
        f"{subject} could not add columns to the table: other writers have committed {MOST_CONFLICTS} versions "
        "meanwhile. The step is retried; reduce the rate of the other writers if this persists."
    )


def check_names(subject: str, added: Iterable[str], existing: Collection[str]) -> None:
    """Raises ``SchemaError`` for a column that differs from one of the table in upper and lower case only."""
    by_fold = {name.casefold(): name for name in existing}
    for name in added:
        other = by_fold.get(name.casefold())
        if other is not None:
            raise SchemaError(
                f"{subject} cannot add column {name!r}: it differs from the table's column {other!r} in upper and "
                f"lower case only. Name the column {other!r} with select."
            )


def hint(missing: Sequence[str], add_columns: bool) -> str:
    """The end of a refusal of rows with columns that the table does not have."""
    if not missing or add_columns:
        return ""
    return f" Or set add_columns=True, which adds {', '.join(missing)} to the table."


def note(subject: str, addition: ColumnAddition) -> str:
    """The warning of ``epochal check``."""
    return f"{subject}: the table lacks columns, which the start of this version adds: {addition}."
