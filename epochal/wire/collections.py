from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

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
