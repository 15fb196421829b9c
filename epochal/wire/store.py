from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from epochal.contracts.identity import EpochKey
from epochal.wire.bodies import Answer, Body, Open

GraceSeconds = Annotated[float, Field(ge=0, le=10 * 365 * 86400, description="What is younger stays.")]
Folder = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^/\x00]+$")]


class Collect(Body):
    """``grace_seconds`` left out: the control plane's own. ``foreign``: folders of the store that this catalog does not
    know, that have the layout of a snapshot store, and that shall be deleted, too."""

    grace_seconds: GraceSeconds | None = None
    foreign: list[Folder] = Field(default=[], max_length=100)


class AmountAnswer(Answer):
    files: int
    bytes: int


class DoomedFile(Answer):
    path: str
    bytes: int
    why: str


class CollectionPlanAnswer(Answer):
    """``files`` are the first thousand of ``reasons``; ``spared`` is what nobody needs and stays all the same."""

    snapshots: list[EpochKey]
    reasons: dict[str, AmountAnswer]
    total: AmountAnswer
    needed: AmountAnswer
    spared: dict[str, AmountAnswer]
    foreign: dict[str, AmountAnswer]
    files: list[DoomedFile]
    problems: list[str]


class CollectionAnswer(Answer):
    """The result of an operation of kind ``collect``."""

    snapshots: int
    deleted: AmountAnswer
    reasons: dict[str, AmountAnswer]
    needed: AmountAnswer
    spared: dict[str, AmountAnswer]
    foreign: dict[str, AmountAnswer]
    problems: list[str]


class Verify(Body):
    """``application`` left out: every snapshot that is retained. ``quick``: sizes only, no checksums."""

    application: str | None = Field(default=None, max_length=63)
    quick: bool = False
    repair: bool = False


class FindingAnswer(Answer):
    """``harms``: the snapshots that need the file, oldest first, at most a hundred of ``harmed``."""

    path: str
    trouble: Open[Literal["missing", "corrupt", "foreign"]]
    detail: str
    harms: list[EpochKey]
    harmed: int
    repaired: bool
    remedy: str


class VerificationAnswer(Answer):
    """The result of an operation of kind ``verify``. ``sound``: nothing is damaged, or everything was repaired.

    ``intact``: the newest snapshot of each branch that nothing harms. ``unreferenced``: what no snapshot needs, which
    garbage collection looks at.
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
        raise ValueError("it holds a password, which lists of operations would show; set it in the environment")
    if not parts.scheme and not text.startswith("/"):
        raise ValueError("give an absolute path, or a URL")
    return text


Place = Annotated[str, AfterValidator(_place), Field(min_length=1, max_length=1000)]


class Backup(Body):
    """``to``: an absolute path on the control plane's machine, or a URL that fsspec knows; one folder for the backups
    of one installation. What it has already is not copied again."""

    to: Place


class Prune(Body):
    """``place``: where backups are, as ``to`` of a backup. With both limits a backup goes when both say so; the newest
    one stays in any case."""

    place: Place
    keep: int | None = Field(default=None, ge=1, le=100_000, description="So many of the newest stay.")
    older_than_seconds: float | None = Field(
        default=None, ge=0, le=1000 * 365 * 86400, description="What is younger stays."
    )

    @model_validator(mode="after")
    def _has_a_limit(self) -> Self:
        if self.keep is None and self.older_than_seconds is None:
            raise ValueError("say what is to stay: keep, older_than_seconds, or both")
        return self


class BackupAnswer(Answer):
    """The result of an operation of kind ``backup``. ``at``: the moment of the catalog that is backed up. ``problems``:
    what could not be copied, as it was missing or damaged; everything else was."""

    id: str
    to: str
    at: datetime
    rows: int
    files: AmountAnswer
    copied: AmountAnswer
    snapshots: int
    problems: list[str]


class BackupName(Answer):
    """``at``: the moment of the catalog. ``files``: all that it needs, which it may share with others."""

    id: str
    at: datetime
    files: AmountAnswer


class PruningAnswer(Answer):
    """What a pruning would do, or, as the result of an operation of kind ``prune``, did. ``kept``, ``removed``: newest
    first. ``deleted``: files that no kept backup names."""

    kept: list[BackupName]
    removed: list[BackupName]
    deleted: AmountAnswer
