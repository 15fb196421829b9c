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
    """One of ``epoch``, ``savepoint``, ``tag`` and ``at`` says where to."""

    epoch: EpochNumber | None = None
    savepoint: Name | None = None
    tag: Name | None = None
    at: UtcTime | None = Field(default=None, description="To the latest epoch that was committed by then.")
    message: Message | None = None
    dry_run: bool = Field(default=False, description="Answer with the plan, and change nothing.")
    move_aside: bool = Field(
        default=False, description="Files and HDFS sinks hide from readers what they show of epochs left behind."
    )
    acceptance: Acceptance = Field(
        default=NOTHING_ACCEPTED,
        description="Differences between the latest version and the snapshot that are accepted by name. "
        "What was accepted for other snapshots holds no longer.",
    )
    confirm: Digest | None = Field(default=None, description="Needed where sinks show later epochs: from the plan.")


class SnapshotName(Answer):
    branch: str
    epoch: int
    committed_at: datetime | None


class SinkPlan(Answer):
    """What a sink shows of the epochs that are left behind, and what becomes of that."""

    sink: str
    kind: str
    target: str
    epochs: int | None = Field(description="Epochs left behind in which it wrote rows. Null: not known.")
    rows: int | None
    shows: int | None = Field(
        default=None, description="The latest epoch that it shows, where the catalog does not know it (any more)."
    )
    rule: Open[SinkRule]
    explanation: str


class RollbackPlan(Answer):
    """What a rollback would do. ``confirm`` is null where no sink shows anything that is left behind."""

    application: str
    state: Open[ApplicationState]
    now: SnapshotName | None = Field(description="The latest committed epoch.")
    to: SnapshotName
    version: int = Field(description="The version that goes on from there: the latest.")
    version_then: int | None = Field(description="The version that made the snapshot.")
    epochs: int = Field(description="Committed epochs that are left behind; they can be read until retention.")
    first: int | None
    last: int | None
    uncounted: int = Field(
        default=0,
        description="So many of these have no manifest that can be read: they have expired, or are damaged. What sinks "
        "show of them is in no count.",
    )
    lost: int | None = Field(
        default=None,
        description="After a restore: sinks show epochs up to this one, of which the catalog knows nothing. Numbers go "
        "on behind it.",
    )
    restarts: bool = Field(description="It runs: it is stopped, and started again. Epochs until then are left too.")
    move_aside: bool
    sinks: list[SinkPlan]
    confirm: str | None
