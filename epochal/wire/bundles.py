from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import BaseModel, Field

from epochal.contracts.configuration import NOTHING_ACCEPTED, Acceptance, Parameters
from epochal.contracts.identity import EpochKey
from epochal.wire.bodies import Answer, Body, EpochNumber, Message, Name, Sha256, UtcTime


class CreateExport(Body):
    """Of a snapshot: ``epoch``, ``savepoint`` or ``tag``; without, of the latest committed epoch."""

    epoch: EpochNumber | None = None
    savepoint: Name | None = None
    tag: Name | None = None
    since: EpochNumber | None = Field(
        default=None, description="Only what came after this epoch, an ancestor that the importer has already."
    )
    message: Message | None = None


class ExportArguments(BaseModel):
    """Of an operation of kind ``export``: the snapshot, and the one that the importer has."""

    branch: str
    epoch: int
    since_branch: str | None = None
    since_epoch: int | None = None
    message: str | None = None


class ExportResult(Answer):
    """The result of an operation of kind ``export``."""

    branch: str
    epoch: int
    since: EpochKey | None
    filename: str
    bytes: int
    sha256: str
    expires_at: str
    left_out: tuple[str, ...] = Field(default=(), description="State tables that are not durable: they begin empty.")


class CreateImport(Body):
    """Announce a bundle: its sha256 and its size in bytes, as `epochal export` says them."""

    sha256: Sha256
    bytes: int = Field(gt=0)


class UploadAnswer(Answer):
    """An upload. The next part goes to ``received``; it is whole when that is ``bytes``."""

    id: str
    sha256: str
    bytes: int
    received: int
    created_at: datetime
    created_by: str


class SourceMove(Body):
    """Where a Kafka source goes on with other brokers, on which the recorded offsets mean nothing."""

    at: UtcTime = Field(description="With the first records of this time or later, in each partition.")


class ImportApplication(Body):
    """Make an application of an uploaded bundle. ``parameters`` and ``configuration`` go over the bundle's."""

    name: Name | None = Field(default=None, description="Without: as the application was called.")
    parameters: Parameters = Field(default_factory=dict)
    map: dict[str, str] = Field(
        default_factory=dict, description="Old to new: paths, topics, tables, brokers that are values of parameters."
    )
    keep: list[str] = Field(
        default_factory=list, description="Sinks that shall write to the same place as the exported application did."
    )
    sources: dict[str, SourceMove] = Field(default_factory=dict)
    configuration: dict[str, Any] = Field(default_factory=dict)
    acceptance: Acceptance = Field(
        default=NOTHING_ACCEPTED,
        description="Differences from the snapshot that other parameters make and that are accepted by name.",
    )
    shadow: bool = False
    start: bool = Field(default=False, description="Start it at once. Refused of a snapshot that is drained.")
    message: Message | None = None
    dry_run: bool = Field(default=False, description="Answer with the plan, and change nothing.")


class ImportArguments(BaseModel):
    """Of an operation of kind ``import``: the upload, its snapshot, and the application that is made of it."""

    branch: str
    epoch: int
    upload: str
    sha256: str
    name: str
    parameters: Parameters
    configuration: dict[str, Any]
    graph: dict[str, Any]
    shadow: bool
    start: bool
    message: str | None = None
    sources: dict[str, Any]
    acceptance: Acceptance = NOTHING_ACCEPTED


class ImportResult(Answer):
    """The result of an operation of kind ``import``. ``operation``: the start that was asked for with it."""

    application: str
    branch: str
    parent: EpochKey
    files: int
    operation: str | None = None


class SinkMove(Answer):
    sink: str
    was: str
    becomes: str
    needs_mapping: bool


class SourcePosition(Answer):
    source: str
    was: dict[str, Any]
    becomes: dict[str, Any]
    at: datetime | None = Field(description="Where it goes on; null: at the positions of the snapshot.")
    needs_mapping: bool


class ImportPlan(Answer):
    """What an import would make, and what has to be mapped before it can."""

    application: str
    origin: dict[str, Any]
    parameters: Parameters
    sinks: list[SinkMove]
    sources: list[SourcePosition]
    needs: list[str] = Field(description="What is missing; empty: it can be imported.")
