"""Collections and verifications, for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from epochal.cli import words
from epochal.cli.listing import Column, Listing
from epochal.client.models import Amount, Collected, CollectionPlan, Verified

FILES_SHOWN = 20


def plan_view(plan: CollectionPlan) -> RenderableType:
    """What would go and why, what stays and why, and some of the files."""
    parts = _summary(plan.needed, plan.reasons, plan.spared, plan.foreign, "would go")
    if plan.files:
        files = Listing(Column("file", flexible=True), Column("size", numeric=True), Column("why"))
        for file in plan.files[:FILES_SHOWN]:
            files.add(file.path, words.size(file.bytes), file.why)
        parts += [Text(), files]
    if plan.total.files > FILES_SHOWN:
        parts.append(Text(f".. and {plan.total.files - FILES_SHOWN} more; --json shows a thousand", style="dim"))
    total = f"{plan.total.files} files, {words.size(plan.total.bytes)}, of which nothing is deleted now"
    snapshots = f"; {len(plan.snapshots)} snapshots would be marked as expired" if plan.snapshots else ""
    return Group(*parts, *_problems(plan.problems), Text(f"\n{total}{snapshots}."))


def collected_view(collected: Collected) -> RenderableType:
    """What went and why, and what stays and why."""
    deleted = collected.deleted
    said = f"\n{deleted.files} files, {words.size(deleted.bytes)} are deleted; {collected.snapshots} snapshots expired."
    parts = _summary(collected.needed, collected.reasons, collected.spared, collected.foreign, "went")
    return Group(*parts, *_problems(collected.problems), Text(said))


def verified_view(verified: Verified) -> RenderableType:
    """Each damaged file: whom it harms, and what can be done."""
    parts: list[RenderableType] = []
    for finding in verified.findings:
        state = Text(" repaired", style="green") if finding.repaired else Text(f" {finding.trouble}", style="bold red")
        newest = f"{finding.harmed} snapshots, up to {finding.harms[-1].branch}/{finding.harms[-1].epoch}"
        parts += [
            Text.assemble(finding.path, state),
            Text(f"  {finding.detail}; needed by {newest}", style="dim"),
            Text(f"  {finding.remedy}"),
        ]
    if verified.found and not verified.sound:
        intact = ", ".join(f"{key.branch}/{key.epoch}" for key in verified.intact) or "none"
        parts.append(Text(f"The newest snapshots that are whole: {intact}."))
    checked = f"{verified.files.files} files, {words.size(verified.files.bytes)}, of {verified.snapshots} snapshots"
    verdict = "sound" if verified.sound else f"{sum(not item.repaired for item in verified.findings)} damaged"
    unneeded = f"; {verified.unreferenced.files} files are needed by none" if verified.unreferenced.files else ""
    return Group(*parts, Text.assemble(f"{checked}: ", (verdict, "green" if verified.sound else "bold red"), unneeded))


def _summary(
    needed: Amount,
    reasons: Mapping[str, Amount],
    spared: Mapping[str, Amount],
    foreign: Mapping[str, Amount],
    goes: str,
) -> list[RenderableType]:
    table = Listing(Column(""), Column("files", numeric=True), Column("size", numeric=True), Column("", flexible=True))
    table.add("needed", str(needed.files), words.size(needed.bytes), "by retained snapshots, applications and bundles")
    for why, amount in reasons.items():
        table.add(Text(goes, style="yellow"), str(amount.files), words.size(amount.bytes), why)
    for why, amount in spared.items():
        table.add("stays", str(amount.files), words.size(amount.bytes), why)
    folders = [
        Text(f"foreign folder {folder}: {amount.files} files", style="dim") for folder, amount in foreign.items()
    ]
    return [table, *folders]


def _problems(problems: Sequence[str]) -> list[Text]:
    return [Text(problem, style="red") for problem in problems]
