"""Files and pre-commits of an undecided epoch, and their removal."""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass

from epochal.contracts.catalog import Catalog, Failure, ManifestReference
from epochal.contracts.identity import EpochScope
from epochal.engine import points
from epochal.engine.job import Collected, Participants
from epochal.engine.standing_queries import Chosen
from epochal.errors import EpochalError, Fenced, StoreUnavailable, error_class
from epochal.snapshots.store import SnapshotStore

log = logging.getLogger(__name__)


@dataclass
class Undecided:
    """An epoch before its decision. ``chosen``: its standing queries, which may have a file. ``collected``: handles of
    its tasks. ``reference``: its manifest. ``None``: the step has not been reached."""

    scope: EpochScope
    chosen: Chosen
    collected: Collected | None = None
    reference: ManifestReference | None = None

    def abort(self, store: SnapshotStore, participants: Participants, catalog: Catalog, failure: Failure) -> None:
        """Remove the attempt's own files and abort the epoch in the catalog.

        Before E4 the files are removed first, so that a crash between the two steps leaves a ``started`` row for R4.
        After the compare-and-set was tried, ``abort_epoch`` comes first: it refuses a prepared epoch, and files may be
        removed only when the epoch is certainly undecided.
        """
        scope = self.scope
        kind = error_class(failure.type)
        store_away = kind is not None and issubclass(kind, StoreUnavailable)
        log.warning("abort: epoch %s: %s", scope.key, failure.message)
        points.ABORT_BEFORE.hit(scope.epoch)
        if self.reference is not None:
            try:
                catalog.abort_epoch(scope.epoch, failure)
            except Fenced:
                self._forget_if_undecided(store, participants, catalog, self.reference)
                raise
            self._forget_now_or_later(store, participants, store_away)
            points.ABORT_SWEPT.hit(scope.epoch)
        else:
            self._forget_now_or_later(store, participants, store_away)
            points.ABORT_SWEPT.hit(scope.epoch)
            catalog.abort_epoch(scope.epoch, failure)

    def forget(self, store: SnapshotStore, participants: Participants) -> None:
        """Remove the files of this attempt for the epoch. Safe for a zombie, since these files are its own."""
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

    def _forget_now_or_later(self, store: SnapshotStore, participants: Participants, store_away: bool) -> None:
        """Remove the files. If this fails, too, or the store does not answer, E7 of a later epoch or R4 removes
        them."""
        if store_away:
            return
        try:
            self.forget(store, participants)
        except Fenced:
            raise
        except EpochalError as error:
            log.warning("abort: epoch %s: its files cannot be removed yet: %s", self.scope.key, error)

    def _forget_if_undecided(
        self, store: SnapshotStore, participants: Participants, catalog: Catalog, reference: ManifestReference
    ) -> None:
        """Remove the files of a fenced attempt, unless its compare-and-set succeeded before.

        After fencing no compare-and-set can succeed, so that the row is final. If the row cannot be read, garbage
        collection removes the files.
        """
        with suppress(EpochalError):
            record = catalog.epoch(self.scope.epoch)
            if record is None or record.manifest != reference:
                self.forget(store, participants)
