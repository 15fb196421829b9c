from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from pydantic import BaseModel, Field

from epochal.contracts.catalog import Failure
from epochal.contracts.configuration import NOTHING_ACCEPTED, Acceptance, Parameters
from epochal.contracts.stream_kind import StreamKind
from epochal.wire.bodies import Answer, Body, Message, Sha256
from epochal.wire.configuration import ApplicationConfiguration, ConfigurationAnswer


def accepted(changed: Sequence[str], partial: Sequence[str]) -> dict[str, Any]:
    """The field ``acceptance`` of a body; each name is ``OPERATOR`` or ``OPERATOR.COLUMN``."""
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
    Spark type) are known after an analysis only. ``stream``: the kind of stream that it gives; ``null`` for tables and
    sinks, and in versions from before there were kinds."""

    id: int
    name: str
    type: str
    inputs: tuple[int, ...] = ()
    description: dict[str, Any] = Field(default_factory=dict)
    columns: dict[str, str] | None = None
    stream: StreamKind | None = None


class GraphAnswer(Answer):
    """``sinks``: name -> where it writes. ``tables``: the declarations of the state tables, as in manifests; ``null``
    before an analysis.

    ``warnings``: what is valid and probably not meant, or costs more than it looks, with what to do. ``notes``: which
    operators' states grow with the keys that come.
    """

    name: str
    nodes: tuple[GraphNodeAnswer, ...]
    sinks: dict[str, str]
    tables: tuple[dict[str, Any], ...] | None = None
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class CreateVersion(Body):
    """What is left out stays as in the latest version; what is given replaces it."""

    artifact: Sha256 | None = None
    parameters: Parameters | None = None
    configuration: ApplicationConfiguration | None = None
    message: Message | None = None
    acceptance: Acceptance = Field(
        default=NOTHING_ACCEPTED,
        description="Differences from the state of the latest snapshot that this version accepts by name. "
        "It holds for this upgrade only; a name that is no difference is refused.",
    )


class VersionAnswer(Answer):
    """``operation`` puts the version in place of the one that runs; without it, the next start uses the version.

    ``failure``: it was given up, and will not be used.
    """

    number: int
    artifact: str
    parameters: Parameters
    configuration: ConfigurationAnswer
    graph: GraphAnswer | None
    message: str | None
    acceptance: Acceptance = Field(
        default=NOTHING_ACCEPTED, description="What the version accepted of the snapshot that it goes on from."
    )
    failure: Failure | None
    operation: str | None = None
    created_at: datetime
    created_by: str


class Rescale(Body):
    parallelism: int = Field(ge=1, description="Subtasks per operator, at most max_parallelism.")
    message: Message | None = None


class Rekey(Body):
    """Other key groups for an application that does not run."""

    max_parallelism: int = Field(ge=1, le=32768, description="Key groups from now on.")
    parallelism: int | None = Field(None, ge=1, description="Left out: as it is, at most max_parallelism.")
    message: Message | None = None
    acceptance: Acceptance = Field(
        default=NOTHING_ACCEPTED,
        description="Differences between the latest version and the snapshot, where this version has not committed an "
        "epoch. They have to be accepted again.",
    )


class RekeyArguments(BaseModel):
    """Of an operation of kind ``rekey``. ``branches``: those that its tries have written, by name."""

    request: Rekey
    branches: list[str] = []


class RekeyResult(Answer):
    """The result of an operation of kind ``rekey``."""

    version: int
    branch: str
    epoch: int
