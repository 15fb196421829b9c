"""What an attempt has written for an epoch that is not decided, and how it is undone."""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass

from epochal.contracts.catalog import Catalog, Failure, ManifestReference
from epochal.contracts.identity import EpochScope
from epochal.engine import points
from epochal.engine.job import Collected, Participants
from epochal.engine.standing_queries import Chosen
from epochal.errors import EpochalError, Fenced
from epochal.snapshots.store import SnapshotStore

log = logging.getLogger(__name__)


@dataclass
class Undecided:
    """``chosen``: with the file of the standing queries. ``collected``: what tasks pre-committed. ``reference``: the
    manifest. ``None``: it has not come so far."""

    scope: EpochScope
    chosen: Chosen
    collected: Collected | None = None
    reference: ManifestReference | None = None

    def abort(self, store: SnapshotStore, participants: Participants, catalog: Catalog, failure: Failure) -> None:
        """Remove the attempt's own files and say so in the catalog.

        Before E4 the files go first, so that a crash between the two leaves a ``started`` row for R4. Once the
        compare-and-set was tried, ``abort_epoch`` goes first: it refuses a prepared epoch, and nothing may be removed
        before that is certain.
        """
        scope = self.scope
        log.warning("abort: epoch %s: %s", scope.key, failure.message)
        points.ABORT_BEFORE.hit(scope.epoch)
        if self.reference is not None:
            try:
                catalog.abort_epoch(scope.epoch, failure)
            except Fenced:
                self._forget_if_undecided(store, participants, catalog, self.reference)
                raise
            self._forget_now_or_later(store, participants)
            points.ABORT_SWEPT.hit(scope.epoch)
        else:
            self._forget_now_or_later(store, participants)
            points.ABORT_SWEPT.hit(scope.epoch)
            catalog.abort_epoch(scope.epoch, failure)

    def forget(self, store: SnapshotStore, participants: Participants) -> None:
        """Undo what this attempt alone wrote for the epoch. Also right for a zombie: these files are only its own."""
        self.chosen.forget(store)
        if self.collected is not None:
            for operator, handles in self.collected.operators.items():
                participants.operators[operator].abort(self.scope, handles)
            for sink, handles in self.collected.sinks.items():
                participants.sinks[sink].abort(self.scope, handles)
            for loop, handles in self.collected.loops.items():
                participants.loops[loop].abort(self.scope, handles)
        if self.reference is not None:
            store.delete(self.reference.path)
        for backend in participants.backends:
            backend.sweep(self.scope, keep=())

    def _forget_now_or_later(self, store: SnapshotStore, participants: Participants) -> None:
        """What failed the epoch may also hinder the removal of its files; E7 of a later epoch, or R4, does it then."""
        try:
            self.forget(store, participants)
        except Fenced:
            raise
        except EpochalError as error:
            log.warning("abort: epoch %s: its files cannot be removed yet: %s", self.scope.key, error)

    def _forget_if_undecided(
        self, store: SnapshotStore, participants: Participants, catalog: Catalog, reference: ManifestReference
    ) -> None:
        """Of a zombie whose compare-and-set may have landed before it was fenced: from then on none lands, so the row
        says for certain. When it cannot be read, the files are left to garbage collection."""
        with suppress(EpochalError):
            record = catalog.epoch(self.scope.epoch)
            if record is None or record.manifest != reference:
                self.forget(store, participants)
