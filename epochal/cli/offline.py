"""Verifying a store without its control plane, by its manifests alone."""

from __future__ import annotations

from epochal.cli.output import Output
from epochal.cli.store_view import verified_view
from epochal.client.models import Verified
from epochal.errors import InvalidInput
from epochal.service.domain.store_answers import verification_answer
from epochal.snapshots.discovery import discover
from epochal.snapshots.store import SnapshotStore
from epochal.snapshots.verification import Verification
from epochal.wire.bodies import read


def verify_store(url: str, output: Output, *, quick: bool, repair: bool) -> bool:
    """Whether it is sound. Raises ``InvalidInput`` where there is no store, ``SnapshotError``, ``StorageFull``."""
    store = SnapshotStore(url)
    with output.busy("Verifying"):
        discovered = discover(store)
        if not discovered.roots and not discovered.unreadable:
            raise InvalidInput(f"{url} holds no snapshots. Give the root of a snapshot store.")
        report = Verification(store, discovered.roots, quick=quick).run(repair=repair)
    answer = verification_answer(report).model_dump(mode="json")
    document = {**answer, "unreadable": list(discovered.unreadable), "cut_off": discovered.cut_off}
    output.result(document, verified_view(read(Verified, answer)))
    for path in discovered.unreadable:
        output.warn(f"{path} is no manifest that this version can read; what it named is not checked.")
    if discovered.cut_off:
        output.note(f"{discovered.cut_off} manifests are remains of what was collected, or of attempts that lost.")
    return report.is_sound and not discovered.unreadable
