from __future__ import annotations

from datetime import datetime
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from epochal.wire.bodies import Answer, Body
from epochal.wire.collections import AmountAnswer


def _place(text: str) -> str:
    parts = urlsplit(text)
    if parts.password is not None:
        raise ValueError("it holds a password, which lists of operations would show; set it in the environment")
    if not parts.scheme and not text.startswith("/"):
        raise ValueError("give an absolute path, or a URL")
    return text


class Backup(Body):
    """``to``: an absolute path on the control plane's machine, or a URL that fsspec knows; one folder for the backups
    of one installation. What it has already is not copied again."""

    to: Annotated[str, AfterValidator(_place), Field(min_length=1, max_length=1000)]


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
