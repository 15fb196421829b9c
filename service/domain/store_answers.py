"""Results of collections and verifications, as answers."""

from __future__ import annotations

from epochal.snapshots.collection import Amount, CollectionPlan
from epochal.snapshots.verification import Report
from epochal.wire.store import (
    AmountAnswer,
    CollectionAnswer,
    CollectionPlanAnswer,
    DeletableFile,
    FindingAnswer,
    VerificationAnswer,
)

FILES_SHOWN = 1000
_HARMED_SHOWN = 100


def plan_answer(plan: CollectionPlan) -> CollectionPlanAnswer:
    return CollectionPlanAnswer(
        snapshots=list(plan.snapshots[:FILES_SHOWN]),
        reasons=_reasons(plan),
        total=AmountAnswer(files=len(plan.files), bytes=plan.bytes),
        needed=_amount(plan.needed),
        spared={why.value: _amount(amount) for why, amount in sorted(plan.spared.items())},
        foreign={folder: _amount(amount) for folder, amount in sorted(plan.foreign.items())},
        files=[
            DeletableFile(path=file.path, bytes=file.bytes, why=file.why.value) for file in plan.files[:FILES_SHOWN]
        ],
        grace_seconds=plan.grace.total_seconds(),
        problems=list(plan.problems),
    )


def collection_answer(plan: CollectionPlan, deleted: Amount) -> CollectionAnswer:
    planned = plan_answer(plan)
    return CollectionAnswer(
        snapshots=len(plan.snapshots),
        deleted=_amount(deleted),
        reasons=planned.reasons,
        needed=planned.needed,
        spared=planned.spared,
        foreign=planned.foreign,
        grace_seconds=planned.grace_seconds,
        waiting_bytes=plan.waiting,
        problems=planned.problems,
    )


def _amount(amount: Amount) -> AmountAnswer:
    return AmountAnswer(files=amount.files, bytes=amount.bytes)


def _reasons(plan: CollectionPlan) -> dict[str, AmountAnswer]:
    amounts: dict[str, Amount] = {}
    for file in plan.files:
        amounts[file.why.value] = amounts.get(file.why.value, Amount()).plus(file.bytes)
    return {why: _amount(amount) for why, amount in sorted(amounts.items())}


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
