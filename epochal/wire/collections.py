from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from epochal.contracts.identity import EpochKey
from epochal.snapshots.collection import Amount, CollectionPlan
from epochal.snapshots.verification import Report
from epochal.wire.bodies import Answer, Body

FILES_SHOWN = 1000
_HARMED_SHOWN = 100

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


def plan_answer(plan: CollectionPlan) -> CollectionPlanAnswer:
    return CollectionPlanAnswer(
        snapshots=list(plan.snapshots[:FILES_SHOWN]),
        reasons=_reasons(plan),
        total=AmountAnswer(files=len(plan.files), bytes=plan.bytes),
        needed=amount_answer(plan.needed),
        spared={why.value: amount_answer(amount) for why, amount in sorted(plan.spared.items())},
        foreign={folder: amount_answer(amount) for folder, amount in sorted(plan.foreign.items())},
        files=[DoomedFile(path=file.path, bytes=file.bytes, why=file.why.value) for file in plan.files[:FILES_SHOWN]],
        problems=list(plan.problems),
    )


def collection_answer(plan: CollectionPlan, deleted: Amount) -> CollectionAnswer:
    planned = plan_answer(plan)
    return CollectionAnswer(
        snapshots=len(plan.snapshots),
        deleted=amount_answer(deleted),
        reasons=planned.reasons,
        needed=planned.needed,
        spared=planned.spared,
        foreign=planned.foreign,
        problems=planned.problems,
    )


def amount_answer(amount: Amount) -> AmountAnswer:
    return AmountAnswer(files=amount.files, bytes=amount.bytes)


def _reasons(plan: CollectionPlan) -> dict[str, AmountAnswer]:
    amounts: dict[str, Amount] = {}
    for file in plan.files:
        amounts[file.why.value] = amounts.get(file.why.value, Amount()).plus(file.bytes)
    return {why: amount_answer(amount) for why, amount in sorted(amounts.items())}


class Verify(Body):
    """``application`` left out: every snapshot that is retained. ``quick``: sizes only, no checksums."""

    application: str | None = Field(default=None, max_length=63)
    quick: bool = False
    repair: bool = False


class FindingAnswer(Answer):
    """``harms``: the snapshots that need the file, oldest first, at most a hundred of ``harmed``."""

    path: str
    trouble: Literal["missing", "corrupt"]
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


def verification_answer(report: Report) -> VerificationAnswer:
    lost = report.unreferenced
    return VerificationAnswer(
        sound=report.is_sound,
        snapshots=report.snapshots,
        files=AmountAnswer(files=report.files, bytes=report.bytes),
        findings=[
            FindingAnswer(
                path=finding.path,
                trouble=finding.trouble.value,
                detail=finding.detail,
                harms=list(finding.harms[:_HARMED_SHOWN]),
                harmed=len(finding.harms),
                repaired=finding.repaired,
                remedy=finding.remedy,
            )
            for finding in report.findings[:FILES_SHOWN]
        ],
        found=len(report.findings),
        unreferenced=AmountAnswer(files=len(lost), bytes=sum(file.bytes for file in lost)),
        unreferenced_files=[file.path for file in lost[:FILES_SHOWN]],
        intact=[report.intact[branch] for branch in sorted(report.intact)],
    )
