"""Rollback plans and requests."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from epochal.contracts.configuration import NOTHING_ACCEPTED, Acceptance
from epochal.wire.applications import ApplicationState
from epochal.wire.bodies import Answer, Body, EpochNumber, Message, Name, Open, UtcTime

Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{16}$"), Field(description="`confirm` of a plan.")]

SinkRule = Literal["stays", "moved-aside", "new-marker", "unknown"]


class RollBack(Body):
    """``epoch``, ``savepoint``, ``tag`` or ``at`` selects the snapshot."""

    epoch: EpochNumber | None = None
    savepoint: Name | None = None
    tag: Name | None = None
    at: UtcTime | None = Field(default=None, description="Select the latest epoch committed at this time.")
    message: Message | None = None
    dry_run: bool = Field(default=False, description="Return the plan without changes.")
    move_aside: bool = Field(
        default=False, description="Files and HDFS sinks hide the output of discarded epochs from readers."
    )
    acceptance: Acceptance = Field(
        default=NOTHING_ACCEPTED,
        description="Accepted differences between the latest version and the snapshot. Differences accepted for other "
        "snapshots are not included.",
    )
    confirm: Digest | None = Field(
        default=None, description="The plan's `confirm`; required if sinks show later epochs."
    )


class SnapshotName(Answer):
    branch: str
    epoch: int
    committed_at: datetime | None


class SinkPlan(Answer):
    """Output of discarded epochs in a sink, and its treatment."""

    sink: str
    kind: str
    target: str
    epochs: int | None = Field(description="Number of discarded epochs in which it wrote rows; null if unknown.")
    rows: int | None
    shows: int | None = Field(
        default=None, description="The latest epoch that it shows, if the catalog does not contain it."
    )
    rule: Open[SinkRule]
    explanation: str
    restore_to: str | None = Field(
        default=None,
        description="Of a table: the latest version (Delta) or snapshot id (Iceberg) without the discarded epochs. "
        "Null for other sinks, if no such version exists, and if it could not be determined.",
    )
    restore: str | None = Field(
        default=None, description="Of a table: how to restore it, or why it cannot be restored; null for other sinks."
    )


class RollbackPlan(Answer):
    """Plan of a rollback. ``confirm`` is null if no sink shows output of discarded epochs."""

    application: str
    state: Open[ApplicationState]
    now: SnapshotName | None = Field(description="The latest committed epoch.")
    to: SnapshotName
    version: int = Field(description="The version that continues from the snapshot: the latest one.")
    version_then: int | None = Field(description="The version that created the snapshot.")
    epochs: int = Field(description="Number of discarded committed epochs. They can be read until they expire.")
    first: int | None
    last: int | None
    uncounted: int = Field(
        default=0,
        description="Number of discarded epochs without a readable manifest, because it expired or is damaged. Their "
        "output is not counted.",
    )
    lost: int | None = Field(
        default=None,
        description="After a restore: sinks show epochs up to this one that the catalog does not contain. Epoch "
        "numbers continue after it.",
    )
    restarts: bool = Field(
        description="The application is running: it is stopped and started again. Epochs until then are discarded."
    )
    move_aside: bool
    sinks: list[SinkPlan]
    confirm: str | None
