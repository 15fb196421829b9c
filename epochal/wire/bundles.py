"""Exports, uploads and imports of bundles."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import BaseModel, Field

from epochal.contracts.configuration import NOTHING_ACCEPTED, Acceptance, Parameters
from epochal.contracts.identity import EpochKey
from epochal.wire.bodies import Answer, Body, EpochNumber, Message, Name, Sha256, UtcTime


class CreateExport(Body):
    """``epoch``, ``savepoint`` or ``tag`` selects the snapshot; the default is the latest committed epoch."""

    epoch: EpochNumber | None = None
    savepoint: Name | None = None
    tag: Name | None = None
    since: EpochNumber | None = Field(
        default=None, description="Export only changes after this epoch, an ancestor that the importer already has."
    )
    message: Message | None = None


class ExportArguments(BaseModel):
    """Arguments of an operation of kind ``export``: the snapshot, and the one that the importer has."""

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
    left_out: tuple[str, ...] = Field(
        default=(), description="State tables that are not durable and therefore start empty."
    )


class CreateImport(Body):
    """Announce a bundle by its SHA-256 and its size in bytes, as returned by the export."""

    sha256: Sha256
    bytes: int = Field(gt=0)


class UploadAnswer(Answer):
    """An upload. ``received`` is the offset of the next part; the upload is complete when it equals ``bytes``."""

    id: str
    sha256: str
    bytes: int
    received: int
    created_at: datetime
    created_by: str


class SourceMove(Body):
    """Position of a Kafka source with other brokers, where the recorded offsets are invalid."""

    at: UtcTime = Field(description="Continue with the first record at or after this time in each partition.")


class ImportApplication(Body):
    """Create an application from an uploaded bundle. ``parameters`` and ``configuration`` are merged over the
    bundle's."""

    name: Name | None = Field(
        default=None, description="Name of the application; the default is its name in the bundle."
    )
    parameters: Parameters = Field(default_factory=dict)
    map: dict[str, str] = Field(
        default_factory=dict, description="Replacements of parameter values: paths, topics, tables, brokers."
    )
    keep: list[str] = Field(
        default_factory=list, description="Sinks that write to the same target as the exported application."
    )
    sources: dict[str, SourceMove] = Field(default_factory=dict)
    configuration: dict[str, Any] = Field(default_factory=dict)
    acceptance: Acceptance = Field(
        default=NOTHING_ACCEPTED,
        description="Accepted differences from the snapshot that result from other parameters.",
    )
    shadow: bool = False
    start: bool = Field(default=False, description="Start the application. Refused for a drained snapshot.")
    message: Message | None = None
    dry_run: bool = Field(default=False, description="Return the plan without changes.")


class ImportArguments(BaseModel):
    """Arguments of an operation of kind ``import``: the upload, its snapshot, and the new application."""

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
    """The result of an operation of kind ``import``. ``operation``: the requested start."""

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
    at: datetime | None = Field(description="Time at which it continues; null: at the positions of the snapshot.")
    needs_mapping: bool


class ImportPlan(Answer):
    """Plan of an import, and the mappings that it requires."""

    application: str
    origin: dict[str, Any]
    parameters: Parameters
    sinks: list[SinkMove]
    sources: list[SourcePosition]
    needs: list[str] = Field(description="Missing mappings; if empty, the bundle can be imported.")
