"""The snapshot store: garbage collection, verification, backups."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from epochal.contracts.identity import EpochKey
from epochal.wire.bodies import Answer, Body, Open

GraceSeconds = Annotated[
    float, Field(ge=0, le=10 * 365 * 86400, description="Minimum age in seconds; younger ones are kept.")
]
Folder = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^/\x00]+$")]


class Collect(Body):
    """``grace_seconds``: the default is the control plane's setting. ``foreign``: folders to delete that have the
    layout of a snapshot store and are not in the catalog."""

    grace_seconds: GraceSeconds | None = None
    foreign: list[Folder] = Field(default=[], max_length=100)


class AmountAnswer(Answer):
    files: int
    bytes: int


class DeletableFile(Answer):
    path: str
    bytes: int
    why: str


class CollectionPlanAnswer(Answer):
    """Plan of a collection. ``files``: the first thousand files of ``reasons``; ``spared``: unneeded files that are
    kept. ``grace_seconds``: shorter than requested by the settings if much larger files would wait for its end."""

    snapshots: list[EpochKey]
    reasons: dict[str, AmountAnswer]
    total: AmountAnswer
    needed: AmountAnswer
    spared: dict[str, AmountAnswer]
    foreign: dict[str, AmountAnswer]
    files: list[DeletableFile]
    grace_seconds: float
    problems: list[str]


class CollectionAnswer(Answer):
    """The result of an operation of kind ``collect``. ``grace_seconds``: as in the plan. ``waiting_bytes``: size of the
    files that only wait for the end of the grace period."""

    snapshots: int
    deleted: AmountAnswer
    reasons: dict[str, AmountAnswer]
    needed: AmountAnswer
    spared: dict[str, AmountAnswer]
    foreign: dict[str, AmountAnswer]
    grace_seconds: float
    waiting_bytes: int
    problems: list[str]


class Verify(Body):
    """``application``: the default is all retained snapshots. ``quick``: compare sizes only, not checksums."""

    application: str | None = Field(default=None, max_length=63)
    quick: bool = False
    repair: bool = False


class FindingAnswer(Answer):
    """A damaged file. ``harms``: snapshots that need it, oldest first, at most a hundred of ``harmed``."""

    path: str
    trouble: Open[Literal["missing", "corrupt", "foreign"]]
    detail: str
    harms: list[EpochKey]
    harmed: int
    repaired: bool
    remedy: str


class VerificationAnswer(Answer):
    """The result of an operation of kind ``verify``. ``sound``: nothing is damaged, or everything was repaired.

    ``intact``: newest intact snapshot of each branch. ``unreferenced``: files that no snapshot needs, which garbage
    collection examines.
    """

    sound: bool
    snapshots: int
    files: AmountAnswer
    findings: list[FindingAnswer]
    found: int
    unreferenced: AmountAnswer
    unreferenced_files: list[str]
    intact: list[EpochKey]


def _place(text: str) -> str:
    parts = urlsplit(text)
    if parts.password is not None:
        raise ValueError("contains a password, which lists of operations would show; set it in the environment")
    if not parts.scheme and not text.startswith("/"):
        raise ValueError("give an absolute path, or a URL")
    return text


Place = Annotated[str, AfterValidator(_place), Field(min_length=1, max_length=1000)]


class Backup(Body):
    """``to``: an absolute path on the control plane's machine or a URL (``s3://bucket/backups``); one folder for all
    backups of one installation. Files that it contains are not copied again."""

    to: Place


class Prune(Body):
    """``place``: location of the backups, as ``to`` of a backup. With both limits a backup is removed if both apply.
    The newest backup is always kept."""

    place: Place
    keep: int | None = Field(default=None, ge=1, le=100_000, description="Number of newest backups to keep.")
    older_than_seconds: float | None = Field(
        default=None, ge=0, le=1000 * 365 * 86400, description="Minimum age in seconds; younger ones are kept."
    )

    @model_validator(mode="after")
    def _has_a_limit(self) -> Self:
        if self.keep is None and self.older_than_seconds is None:
            raise ValueError("give keep, older_than_seconds, or both")
        return self


class BackupAnswer(Answer):
    """The result of an operation of kind ``backup``. ``at``: time of the catalog in the backup. ``problems``: missing
    or damaged files, which were not copied."""

    id: str
    to: str
    at: datetime
    rows: int
    files: AmountAnswer
    copied: AmountAnswer
    snapshots: int
    problems: list[str]


class BackupName(Answer):
    """A backup. ``at``: time of the catalog; ``files``: all files that it needs, some of them shared with other
    backups."""

    id: str
    at: datetime
    files: AmountAnswer


class PruningAnswer(Answer):
    """Plan of a pruning, or the result of an operation of kind ``prune``. ``kept``, ``removed``: newest first.
    ``deleted``: files that no kept backup references."""

    kept: list[BackupName]
    removed: list[BackupName]
    deleted: AmountAnswer
