"""Answers about snapshots' annotations and about the store."""

from __future__ import annotations

from datetime import datetime

from epochal.client.models import Answer
from epochal.contracts.identity import EpochKey


class Pin(Answer):
    """A snapshot that is kept until it is unpinned."""

    branch: str
    epoch: int
    message: str | None = None
    created_at: datetime
    created_by: str


class Tag(Answer):
    """A further name of a snapshot, which does not keep it."""

    name: str
    branch: str
    epoch: int
    message: str | None = None
    created_at: datetime
    created_by: str


class SnapshotMessage(Answer):
    """What somebody wrote about a snapshot."""

    branch: str
    epoch: int
    message: str
    created_at: datetime
    created_by: str


class Amount(Answer):
    files: int
    bytes: int


class DoomedFile(Answer):
    """A file that a collection would delete."""

    path: str
    bytes: int
    why: str


class CollectionPlan(Answer):
    """What a collection would do. ``files`` are the first thousand of ``total``; ``spared`` stays, though unneeded."""

    snapshots: tuple[EpochKey, ...]
    reasons: dict[str, Amount]
    total: Amount
    needed: Amount
    spared: dict[str, Amount]
    foreign: dict[str, Amount]
    files: tuple[DoomedFile, ...]
    problems: tuple[str, ...]


class Collected(Answer):
    """What a collection did: an operation's result."""

    snapshots: int
    deleted: Amount
    reasons: dict[str, Amount]
    needed: Amount
    spared: dict[str, Amount]
    foreign: dict[str, Amount]
    problems: tuple[str, ...]


class Finding(Answer):
    """A damaged file. ``harms``: snapshots that need it, at most a hundred of ``harmed``."""

    path: str
    trouble: str
    detail: str
    harms: tuple[EpochKey, ...]
    harmed: int
    repaired: bool
    remedy: str


class Verified(Answer):
    """What a verification found: an operation's result. ``intact``: the newest whole snapshot of each branch."""

    sound: bool
    snapshots: int
    files: Amount
    findings: tuple[Finding, ...]
    found: int
    unreferenced: Amount
    unreferenced_files: tuple[str, ...]
    intact: tuple[EpochKey, ...]
