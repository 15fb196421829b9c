"""What was read on the way from one node of a lineage to the next: from the manifests at its ends."""

from __future__ import annotations

from collections.abc import Sequence

from epochal.errors import SnapshotError
from epochal.service.queries.lineage.assembly import Entry
from epochal.snapshots.row_groups import at_once
from epochal.snapshots.store import SnapshotStore
from epochal.wire.history import SourceRange
from epochal.wire.lineage import LineageAnswer, LineageEdge

Slices = dict[str, SourceRange] | None


def with_slices(store: SnapshotStore, answer: LineageAnswer, entries: Sequence[Entry]) -> LineageAnswer:
    """The lineage with slices on its edges; ``None`` stays where a manifest is gone, or cannot be read."""
    found = dict(
        zip([entry.key for entry in entries], at_once(lambda entry: _read(store, entry), entries), strict=True)
    )
    edges: list[LineageEdge] = [edge.model_copy(update={"slices": found[edge.target]}) for edge in answer.edges]
    return answer.model_copy(update={"edges": edges})


def _read(store: SnapshotStore, entry: Entry) -> Slices:
    """Of a run: from where its oldest epoch began to where its newest ended, for the sources that both have read."""
    try:
        manifests = [store.read_manifest(reference) for reference in entry.manifests]
    except SnapshotError:
        return None
    if not manifests:
        return None
    oldest, newest = manifests[0], manifests[-1]
    if oldest is newest:
        return {
            name: SourceRange(start=slice.start, end=slice.end, rows=slice.rows, epochs=1)
            for name, slice in newest.slices.items()
        }
    epochs = 1 if entry.summary is None else entry.summary.epochs
    return {
        name: SourceRange(start=slice.start, end=newest.slices[name].end, rows=None, epochs=epochs)
        for name, slice in oldest.slices.items()
        if name in newest.slices
    }
