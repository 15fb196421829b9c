"""The latest decided epoch that the catalog has reported to this driver. It must never decrease."""

from __future__ import annotations

from epochal.contracts.catalog import EpochRecord, RecoveryPoint
from epochal.contracts.identity import EpochKey
from epochal.errors import CatalogWentBack


class Decided:
    """The latest epoch of the driver's own branch that the catalog has reported as decided (E4).

    A database that fails over without synchronous replication, or is restored, loses its last decisions. Continuing
    from the remaining ones would be wrong: sinks may show the lost epochs.
    """

    def __init__(self) -> None:
        self.latest: EpochKey | None = None

    def add(self, key: EpochKey) -> None:
        if self.latest is None or key.epoch > self.latest.epoch:
            self.latest = key

    def check_head(self, point: RecoveryPoint) -> None:
        """Check the recovery point of an attempt. Raises ``CatalogWentBack``."""
        head = point.head
        if self.latest is not None and (head is None or head.epoch < self.latest.epoch):
            raise self._error(self.latest, f"now its head is {head.key if head is not None else 'none'}")
        if head is not None and head.branch == point.branch:
            self.add(head.key)

    def check_record(self, key: EpochKey, record: EpochRecord | None) -> None:
        """Check the catalog's record of a decided epoch. Raises ``CatalogWentBack``."""
        if record is None or record.state not in ("prepared", "committed"):
            raise self._error(key, f"now the epoch is {'unknown' if record is None else record.state}")

    @staticmethod
    def _error(key: EpochKey, now: str) -> CatalogWentBack:
        return CatalogWentBack(
            f"The catalog had confirmed that epoch {key} is decided, but {now}: its database has returned to an "
            "earlier state, for example by a fail-over without synchronous replication, or from a copy. Sinks may "
            "contain epochs that the catalog lacks, so the application has halted. Switch to the database that "
            "contains the epoch, or compare the sinks with `epochal epochs`, reset them, and start the application "
            "(docs/reference/errors.md)."
        )
