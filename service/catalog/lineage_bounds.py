"""Lineages according to the catalog, which bound the manifests that readers trust. Separate from ``lineage.py``,
because the internal process loads no manifests."""

from __future__ import annotations

from sqlalchemy.orm import Session

from epochal.service.catalog.database import Database
from epochal.service.catalog.lineage import segments
from epochal.service.catalog.models import Branch
from epochal.snapshots.lineage_bounds import Lineage

_KEPT = 10_000


class SessionLineages:
    """Lineages as one transaction sees them, including its own changes. For the transaction's thread."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def of(self, branch: str) -> Lineage | None:
        row = self._session.get(Branch, branch)
        return None if row is None else _lineage(self._session, row)


class CatalogLineages:
    """Thread-safe. Raises ``CatalogUnavailable``.

    The parent of a branch never changes. An import may add a missing ancestor later, so that a lineage that ends with
    one is looked up again.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._known: dict[str, Lineage] = {}

    def of(self, branch: str) -> Lineage | None:
        known = self._known.get(branch)
        if known is not None:
            return known
        with self._database.reading() as session:
            row = session.get(Branch, branch)
            if row is None:
                return None
            lineage = _lineage(session, row)
            if all(session.get(Branch, of) is not None for of in lineage):
                if len(self._known) >= _KEPT:
                    self._known.clear()
                self._known[branch] = lineage
        return lineage


def _lineage(session: Session, branch: Branch) -> Lineage:
    found: dict[str, int | None] = {}
    for segment in segments(session, branch):
        found[segment.branch.id] = segment.last
        oldest = segment.branch
    if oldest.parent_branch is not None:
        found[oldest.parent_branch] = oldest.parent_epoch
    return found
