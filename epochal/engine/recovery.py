"""R1 to R5: recovery of an attempt before its first epoch (thesis 4.1.3.1, the rollback procedure).

Recovery starts from the latest *prepared* snapshot, not the latest committed one: a prepared epoch is decided, and its
commits are repeated.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Final

from epochal.contracts.catalog import Catalog, Change, Failure, ManifestReference, RecoveryPoint, Succession
from epochal.contracts.configuration import ExecutionOrders
from epochal.contracts.identity import EpochKey, EpochScope
from epochal.contracts.source import Slice, Source
from epochal.engine import points
from epochal.engine.clock import EpochClock
from epochal.engine.commits import CommitQueue, Waiting, drain, until_available
from epochal.engine.job import Participants
from epochal.engine.position import Position
from epochal.engine.program import Program, check_continues
from epochal.engine.retention import sweep_losers
from epochal.errors import EpochalError, FileMissing, SnapshotError
from epochal.snapshots import layout
from epochal.snapshots.lineage import history
from epochal.snapshots.manifest import Manifest
from epochal.snapshots.store import SnapshotStore
from epochal.state.accepted_differences import check_acceptance

log = logging.getLogger(__name__)

_ANSWERED_WITHIN: Final = timedelta(seconds=30)


@dataclass
class Recovery:
    """Recovery of one attempt. ``pause`` waits while a sink is unavailable; ``note`` reports the sinks waited for."""

    program: Program
    catalog: Catalog
    store: SnapshotStore
    commits: CommitQueue
    pause: Callable[[float], None]
    note: Callable[[Sequence[Waiting]], None]
    clock: EpochClock | None = None
    """Clock of the attempt, compared with the clock of the catalog's database; ``None``: not compared."""
    begun: Change | None = None
    """First change of the branch, set by ``run``."""
    succession: Succession | None = None
    """Branches that this one takes over from, set by ``run``."""

    def run(self) -> Position:
        """Raises ``Fenced``, ``SnapshotError`` (file missing or corrupt, named), ``SinkError``."""
        point = self._take_over()
        self.begun, self.succession = point.begun, point.succession
        position = self._find(point)
        self._finish(point)
        self._abort_undecided(point)
        points.R5_GO_ON.hit()
        log.info(
            "R5 continue: attempt %d continues %s at epoch %d", point.attempt, position.parent, position.next_epoch
        )
        return position

    def _take_over(self) -> RecoveryPoint:
        """R1: fence earlier attempts, in the catalog first, then in every sink."""
        point = self._begin_attempt()
        points.R1_BEGUN.hit()
        scope = decided_scope(self.program.orders, point.branch, point.head)
        take_over(self.program.participants, scope, point.succession, self.pause, self.note)
        points.R1_FENCED.hit()
        log.info("R1 take over: branch %s, attempt %d", point.branch, point.attempt)
        return point

    def _begin_attempt(self) -> RecoveryPoint:
        if self.clock is None:
            return self.catalog.begin_attempt()
        while True:
            requested_at = self.clock()
            point = self.catalog.begin_attempt()
            if self.clock() - requested_at < _ANSWERED_WITHIN:
                break  # a slower answer is too imprecise for the comparison
        self.clock.compare(requested_at, point.catalog_time)
        return point

    def _find(self, point: RecoveryPoint) -> Position:
        """R2: the latest prepared snapshot, its chains, and the sources' positions."""
        # A drained head only needs commits: no version must be able to continue from it, and sources are not contacted.
        over = point.head is not None and self.store.read_manifest(point.head).drained
        if point.head is not None and not over:
            check_continues(self.store, point.head, self.program)
        if point.head is None and self.program.orders.version is None:
            check_acceptance((), self.program.orders.acceptance)
        begun = point.begun if point.head and point.head.branch != point.branch else None
        restore_sources(self.store, point.head, self.program.participants.sources, begun)
        if not over:
            limit_sources(self.program)
        tables = self.program.participants.tables
        position = Position.recovered(self.store, point.branch, point.next_epoch, point.head, tables)
        points.R2_FOUND.hit()
        log.info("R2 found: latest prepared snapshot is %s", position.parent)
        return position

    def _finish(self, point: RecoveryPoint) -> None:
        """R3: E5 and E6 of every prepared epoch, in order."""
        for record in sorted(point.prepared, key=lambda record: record.epoch):
            if record.manifest is None:
                raise FileMissing(f"The catalog has no manifest for prepared epoch {record.key}.")
            manifest = self.store.read_manifest(record.manifest)
            self._check_sinks(manifest)
            self.commits.submit(EpochScope(point.application, record.key, point.attempt, record.parent), manifest)
        drain(self.commits, self.pause, self.note)
        points.R3_FINISHED.hit()
        left = len(self.commits.epochs)
        log.info("R3 finished: %d prepared epochs are committed, %d wait", len(point.prepared) - left, left)

    def _check_sinks(self, manifest: Manifest) -> None:
        """Check that the sinks of a prepared epoch exist, since they hold the only copy of its output."""
        for name, sink in manifest.sinks.items():
            backend = self.program.participants.sinks.get(name)
            if any(handle.rows for handle in sink.handles) and (backend is None or backend.target != sink.target):
                now = "does not exist" if backend is None else f"writes to {backend.target}"
                raise SnapshotError(
                    f"Epoch {manifest.key} is decided but not committed in sink {name!r} ({sink.target}), "
                    f"which now {now}. Start the earlier version once, so that the epoch can be committed."
                )

    def _abort_undecided(self, point: RecoveryPoint) -> None:
        """R4: remove all files of undecided epochs, and files of lost tasks of decided ones.

        Undecided epochs that are already ``aborted`` are swept again: a crash may have interrupted their sweep, and a
        zombie may have written since. Garbage collection removes files older than the last bases.
        """
        decided = self._decided_since_bases(point)
        first = min(decided, default=point.first_epoch)
        folders = (layout.manifests(point.branch), layout.queries(point.branch))
        written = layout.by_epoch(path for folder in folders for path in self.store.list(folder))
        for epoch in range(first, point.next_epoch):
            self._sweep(
                EpochScope(point.application, EpochKey(point.branch, epoch), point.attempt, None), decided.get(epoch)
            )
            named = self._named(decided.get(epoch))
            for path in written.get(epoch, ()):
                if path not in named:
                    self.store.delete(path)
            points.R4_SWEPT.hit(epoch)
        self._sweep_bases(point.branch, decided.values())
        for record in point.started:
            reason = f"Attempt {record.attempt} ended before the epoch was decided; {point.attempt} covers its slice."
            self.catalog.abort_epoch(record.epoch, Failure(type="attempt-lost", message=reason, step="R4"))
            log.info("R4 abort: epoch %s", record.key)
        points.R4_ABORTED.hit()

    def _named(self, decided: ManifestReference | None) -> set[str]:
        """Paths of a decided epoch's manifest, and of the files that it names: an imported one names packs of its own
        epoch, which lie beside it."""
        if decided is None:
            return set()
        manifest = self.store.read_manifest(decided)
        files = (*(delta.file for delta in manifest.deltas), *manifest.in_force)
        return {decided.path, *(file.stored_in for file in files)}

    def _decided_since_bases(self, point: RecoveryPoint) -> dict[int, ManifestReference]:
        """Decided epochs of this branch back to the last bases; R2 has just read their manifests."""
        found: dict[int, ManifestReference] = {}
        reference = point.head
        while reference is not None and reference.branch == point.branch:
            found[reference.epoch] = reference
            manifest = self.store.read_manifest(reference)
            reference = None if manifest.bases or manifest.source_checkpoints else manifest.parent
        return found

    def _sweep_bases(self, branch: str, decided: Iterable[ManifestReference]) -> None:
        """Remove bases that an earlier attempt wrote (E7) and no manifest names. Bases older than the last named ones
        stay."""
        named = [base for reference in decided for base in self.store.read_manifest(reference).bases]
        kept = {base.file.path for base in named}
        oldest = max((base.at.epoch for base in named if base.at.branch == branch), default=0)
        for path in self.store.list(layout.bases(branch)):
            epoch = layout.epoch_of_base(path)
            if epoch is not None and epoch >= oldest and path not in kept:
                self.store.delete(path)

    def _sweep(self, scope: EpochScope, decided: ManifestReference | None) -> None:
        if decided is not None:
            sweep_losers(self.store, self.program.participants, scope, self.store.read_manifest(decided))
            return
        for backend in self.program.participants.backends:
            backend.sweep(scope, ())


def decided_scope(orders: ExecutionOrders, branch: str, head: ManifestReference | None) -> EpochScope:
    """Scope of the branch's latest decided epoch, or of epoch 0, for the attempt that takes it over.

    The parent of epoch 0 is the snapshot at which the branch begins; ``None``: the state is empty.
    """
    if head is not None and head.branch == branch:
        return EpochScope(orders.application, head.key, orders.attempt, None)
    return EpochScope(orders.application, EpochKey(branch, 0), orders.attempt, None if head is None else head.key)


def take_over(
    participants: Participants,
    scope: EpochScope,
    succession: Succession | None,
    pause: Callable[[float], None],
    note: Callable[[Sequence[Waiting]], None],
) -> None:
    """R1 for all operators and sinks, at the latest decided epoch. Waits for unavailable sinks."""
    for operator in participants.operators.values():
        operator.recover(scope)
    for name, sink in participants.sinks.items():
        if succession is not None:
            until_available(name, partial(sink.succeed, scope, succession), pause, note)
        until_available(name, partial(sink.recover, scope), pause, note)


def restore_sources(
    store: SnapshotStore, head: ManifestReference | None, sources: Mapping[str, Source], begun: Change | None = None
) -> None:
    """Restore sources to their positions at ``head``; sources unknown to the lineage start at their beginning.

    ``begun``: first change of a branch without epochs; an import may have moved sources.
    """
    slices: dict[str, list[Slice]] = {name: [] for name in sources}
    checkpoints = _collect_slices(history(store, head), slices, begun)
    for name, source in sources.items():
        source.restore(checkpoints.get(name), slices[name])


def limit_sources(program: Program) -> None:
    """Limit bounded sources, or all sources of an available-now run, to the input that exists now.

    Raises errors of sources, with the source's name.
    """
    for name, source in program.participants.sources.items():
        try:
            source.limit_to_available() if program.orders.available_now else source.limit_to_bounds()
        except EpochalError as error:
            raise type(error)(f"Source {name!r}: {error.message}") from error


def _collect_slices(
    manifests: Iterable[Manifest], slices: dict[str, list[Slice]], begun: Change | None = None
) -> dict[str, dict[str, Any]]:
    """Walk back to the last checkpoint and fill ``slices``, oldest first. For a source that an import moved, only the
    new position and later slices count."""
    moved = _moved_sources([begun] if begun is not None else [])
    checkpoints: dict[str, dict[str, Any]] = {}
    for manifest in manifests:
        for name, slice in manifest.slices.items():
            if name in slices and name not in moved:
                slices[name].append(slice)
        if manifest.source_checkpoints:
            checkpoints = manifest.source_checkpoints
            break
        moved = {**_moved_sources(manifest.changes), **moved}
    for found in slices.values():
        found.reverse()
    return {**checkpoints, **moved}


def _moved_sources(changes: Iterable[Change]) -> dict[str, dict[str, Any]]:
    """Checkpoints of the sources that an import has moved."""
    for change in changes:
        if change.kind == "import":
            return dict(change.detail.get("origin", {}).get("sources", {}))
    return {}
