"""Versions of an application: code, graph, upgrades, rescaling, rekeying."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, model_validator

from epochal.contracts.catalog import Failure
from epochal.contracts.configuration import NOTHING_ACCEPTED, Acceptance, Parameters
from epochal.contracts.stream_kind import StreamKind
from epochal.wire.bodies import Answer, Body, Message, Sha256
from epochal.wire.configuration import ApplicationConfiguration, ConfigurationAnswer


def accepted(changed: Sequence[str], partial: Sequence[str]) -> dict[str, Any]:
    """Value of the field ``acceptance``; each name is ``OPERATOR`` or ``OPERATOR.COLUMN``."""
    return {"changed": list(changed), "partial": list(partial)}


class ArtifactAnswer(Answer):
    """Registered code: a Python file or a zip, addressed by the SHA-256 of its bytes."""

    sha256: str
    filename: str
    bytes: int
    created_at: datetime


class GraphNodeAnswer(Answer):
    """``type`` is ``source``, ``static``, ``transform``, ``watermark``, ``sink``, an operator's kind, such as
    ``aggregate``, or, of the two ends of a loop, which have one name, ``feedback`` and ``close``. ``columns`` (name ->
    Spark type) are set after an analysis. ``stream``: kind of the resulting stream; ``null`` for tables and sinks."""

    id: int
    name: str
    type: str
    inputs: tuple[int, ...] = ()
    description: dict[str, Any] = Field(default_factory=dict)
    columns: dict[str, str] | None = None
    stream: StreamKind | None = None


class SourceFile(Answer):
    """A file of an artifact."""

    path: str = Field(description="Path within the zip; the file name of an artifact that is one Python file.")
    bytes: int = Field(description="Size of the file; without `text`, as the zip declares it.")
    text: str | None = Field(default=None, description="Null if it is omitted.")
    omitted: Literal["not_text", "too_large", "unreadable"] | None = Field(
        default=None,
        description="Why the text is omitted. `not_text`: the file is not UTF-8. `too_large`: it has more than 1 MiB, "
        "or the texts of the answer more than 2 MiB; name such a file with `file`. `unreadable`: it is damaged, or "
        "compressed in another way than by deflate.",
    )


class ArtifactSource(Answer):
    """The files of an artifact, Python files first."""

    sha256: str
    filename: str
    files: tuple[SourceFile, ...]


class CodeLineAnswer(Answer):
    """A line of an artifact."""

    file: str | None = Field(default=None, description="Path within a zip; null if the artifact is one Python file.")
    line: int = Field(description="Counted from 1.")


class GraphAnswer(Answer):
    """A graph. ``sinks``: name -> target. ``tables``: declarations of state tables, as in manifests; ``null`` before an
    analysis.

    ``warnings``: valid but probably unintended or expensive constructs, with remedies. ``notes``: operators whose state
    grows with the number of keys. ``lines``: for each of ``nodes``, the line of the artifact that defines it; empty if
    the artifact was analysed by version 0.1.0, and null for nodes that no line defines.
    """

    name: str
    nodes: tuple[GraphNodeAnswer, ...]
    sinks: dict[str, str]
    tables: tuple[dict[str, Any], ...] | None = None
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    lines: tuple[CodeLineAnswer | None, ...] = ()


class CreateVersion(Body):
    """A new version. Omitted fields are taken from the latest version."""

    artifact: Sha256 | None = None
    parameters: Parameters | None = None
    configuration: ApplicationConfiguration | None = None
    message: Message | None = None
    acceptance: Acceptance = Field(
        default=NOTHING_ACCEPTED,
        description="Accepted differences from the state of the latest snapshot, for this upgrade only. A "
        "name without a "
        "difference is refused.",
    )


class VersionAnswer(Answer):
    """A version. ``operation``: the upgrade of the running application; without it, the next start uses the version.

    ``failure``: the upgrade failed, and the version is not used.
    """

    number: int
    artifact: str
    parameters: Parameters
    configuration: ConfigurationAnswer
    graph: GraphAnswer | None
    message: str | None
    acceptance: Acceptance = Field(
        default=NOTHING_ACCEPTED, description="Differences from its initial snapshot that the version accepted."
    )
    failure: Failure | None
    operation: str | None = None
    created_at: datetime
    created_by: str


class Rescale(Body):
    """New numbers of subtasks, at least one. Those that are not given do not change."""

    parallelism: int | None = Field(None, ge=1, description="Subtasks per operator, at most max_parallelism.")
    parallelisms: dict[str, Annotated[int, Field(ge=1)] | None] = Field(
        default_factory=dict,
        description="Subtasks of single operators, by name. Null removes the number of an operator, which then has the "
        "one that the pipeline declares, or `parallelism`.",
    )
    message: Message | None = None

    @model_validator(mode="after")
    def _some_number(self) -> Rescale:
        if self.parallelism is None and not self.parallelisms:
            raise ValueError("give parallelism, parallelisms, or both")
        return self

    @property
    def changes(self) -> dict[str, Any]:
        """Changes of the configuration."""
        usual = {} if self.parallelism is None else {"parallelism": self.parallelism}
        return {**usual, "parallelisms": self.parallelisms}


class Rekey(Body):
    """A new number of key groups for a stopped application."""

    max_parallelism: int = Field(ge=1, le=32768, description="New number of key groups.")
    parallelism: int | None = Field(
        None, ge=1, description="The default is the current parallelism, at most max_parallelism."
    )
    message: Message | None = None
    acceptance: Acceptance = Field(
        default=NOTHING_ACCEPTED,
        description="Accepted differences between the latest version and the snapshot. They have to be "
        "accepted again if "
        "the version has not committed an epoch.",
    )


class RekeyArguments(BaseModel):
    """Arguments of an operation of kind ``rekey``. ``branches``: names of the branches that its attempts have
    written."""

    request: Rekey
    branches: list[str] = []


class RekeyResult(Answer):
    """The result of an operation of kind ``rekey``."""

    version: int
    branch: str
    epoch: int
