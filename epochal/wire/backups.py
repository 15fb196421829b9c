from __future__ import annotations

from datetime import datetime
from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from epochal.wire.bodies import Answer, Body
from epochal.wire.collections import AmountAnswer


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


class PruneAnswer(Answer):
    """What a pruning would do, or, as the result of an operation of kind ``prune``, did. ``kept``, ``removed``: newest
    first. ``deleted``: files that no kept backup names."""

    kept: list[BackupName]
    removed: list[BackupName]
    deleted: AmountAnswer
