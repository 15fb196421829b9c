"""Conversion of rows, of mapped classes or statements, to the records of the contracts."""

from __future__ import annotations

from typing import Any, Final, cast

from sqlalchemy import Row

from epochal.contracts.catalog import (
    Change,
    EpochCounts,
    EpochRecord,
    EpochState,
    EpochTerms,
    Failure,
    ManifestReference,
    ShownDue,
)
from epochal.contracts.identity import EpochKey
from epochal.service.catalog.models import Branch, Epoch, Json
from epochal.snapshots.bundle_format import BundleEpoch

SKIPPED_COUNTS: Final = {"late": "late_rows", "rejected": "rejected_rows", "dropped": "dropped_timers"}
"""Columns of an epoch that count what it skipped, by kind in ``skipped_totals``."""


def key_of(branch: str | None, epoch: int | None) -> EpochKey | None:
    return None if branch is None or epoch is None else EpochKey(branch, epoch)


def head_of(branch: Branch | Row[Any]) -> EpochKey | None:
    return key_of(branch.head_branch, branch.head_epoch)


def is_drained(row: Epoch) -> bool:
    """Return whether the epoch ended its lineage: all input had ended."""
    return "drain" in (row.opened_for or ())


def scaled_as(node: Json) -> str:
    """The name under which the number of subtasks of an operator is configured. ``node``: of a stored graph."""
    name: str = node["description"].get("scaled_as", node["name"])
    return name


def manifest_of(row: Epoch | Row[Any]) -> ManifestReference | None:
    if row.manifest_path is None or row.manifest_sha256 is None:
        return None
    return ManifestReference(branch=row.branch, epoch=row.epoch, path=row.manifest_path, sha256=row.manifest_sha256)


def failure_of(value: Json | None) -> Failure | None:
    return None if value is None else Failure.model_validate(value)


def json_of(failure: Failure | None) -> Json | None:
    return None if failure is None else failure.model_dump(exclude_none=True)


def changes_of(row: Epoch | Row[Any]) -> tuple[Change, ...]:
    """The reconfigurations that took effect with the epoch."""
    return tuple(Change.model_validate(change) for change in row.changes or ())


def due_of(row: Epoch | Row[Any]) -> ShownDue | None:
    return None if row.next_due is None else ShownDue.model_validate(row.next_due)


def terms_of(terms: EpochTerms | BundleEpoch) -> dict[str, Any]:
    """Columns of the conditions under which an epoch ran, except its version."""
    return {
        "changes": [change.model_dump(mode="json") for change in terms.changes] or None,
        "opened_for": list(terms.opened_for) or None,
        "watermarks": {name: marks.model_dump(mode="json") for name, marks in terms.watermarks.items()} or None,
        "next_due": None if terms.next_due is None else terms.next_due.model_dump(mode="json"),
        "calls_through": terms.calls_through if isinstance(terms, EpochTerms) else None,
    }


def columns_of(counts: EpochCounts) -> dict[str, Any]:
    """Columns of an epoch's counts: rows read and written, state, and skipped rows."""
    return {**counts.model_dump(), **{name: getattr(counts, name) or None for name in SKIPPED_COUNTS.values()}}


def epoch_record(row: Epoch | Row[Any]) -> EpochRecord:
    return EpochRecord(
        branch=row.branch,
        epoch=row.epoch,
        attempt=row.attempt,
        state=cast(EpochState, row.state),
        parent=key_of(row.parent_branch, row.parent_epoch),
        manifest=manifest_of(row),
        failure=failure_of(row.failure),
        rows_in=row.rows_in,
        rows_out=row.rows_out,
        state_rows=row.state_rows,
        state_bytes=row.state_bytes,
        version=row.version,
        changes=changes_of(row),
        opened_for=tuple(row.opened_for or ()),
        late_rows=row.late_rows or {},
        rejected_rows=row.rejected_rows or {},
        dropped_timers=row.dropped_timers or {},
        watermarks=row.watermarks or {},
        next_due=due_of(row),
        durations=row.durations,
        collected_at=row.collected_at,
        started_at=row.started_at,
        prepared_at=row.prepared_at,
        committed_at=row.committed_at,
    )
