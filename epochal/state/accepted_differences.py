"""Differences of an upgrade that need acceptance by name: lists them, checks the accepted names, and describes accepted
differences for the lineage."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from epochal.contracts.configuration import Acceptance
from epochal.errors import InvalidInput
from epochal.state.evolution import MeaningChange, TableChange
from epochal.state.table import StateTable


def differences(changes: Iterable[TableChange]) -> tuple[str, ...]:
    """The names that an upgrade can accept: ``OPERATOR`` or ``OPERATOR.COLUMN`` for each difference."""
    found: dict[str, None] = {}
    for change in changes:
        found |= dict.fromkeys(_name(change, each) for each in change.changed if each.what != "function")
        found |= dict.fromkeys(f"{change.operator}.{name}" for name in change.partial)
    return tuple(found)


def unused_acceptance(changes: Iterable[TableChange], acceptance: Acceptance) -> tuple[str, ...]:
    """A problem for each accepted name that matches no difference. A changed function cannot be accepted and has a
    separate problem, so its name is not reported here."""
    changes = tuple(changes)
    names = differences(changes)
    refused = [_name(change, each) for change in changes for each in change.changed if each.what == "function"]
    there = f"The differences are: {', '.join(names)}." if names else "There is no difference to accept."
    return tuple(
        f"{name!r} is accepted, but is not a difference between this version and the snapshot. {there}"
        for name in dict.fromkeys(acceptance.unused((*names, *refused)))
    )


def check_acceptance(changes: Iterable[TableChange], acceptance: Acceptance) -> None:
    """Check the accepted names. Raises ``InvalidInput``, listing the differences, if an accepted name is not a
    difference. For orders from a control plane, this check takes place when the version is created: a later attempt may
    continue from the version's own first epoch."""
    if problems := unused_acceptance(changes, acceptance):
        raise InvalidInput(" ".join(problems))


def accepted_differences(changes: Iterable[TableChange], tables: Iterable[StateTable]) -> list[dict[str, Any]]:
    """The accepted differences between the version and the snapshot: changed meanings, old and new, and added columns
    with the first epoch whose rows they count."""
    by_id = {table.id: table for table in tables}
    found: list[dict[str, Any]] = []
    for change in changes:
        for meaning in (meaning for meaning in change.changed if meaning.accepted):
            found.append(
                {"name": _name(change, meaning), "what": meaning.what, "before": meaning.before, "after": meaning.after}
            )
        found += [
            {"name": f"{change.operator}.{name}", "what": "partial", "since": by_id[change.table].since(name)}
            for name in change.partial
        ]
    return found


def _name(change: TableChange, meaning: MeaningChange) -> str:
    return change.operator if meaning.column is None else f"{change.operator}.{meaning.column}"
