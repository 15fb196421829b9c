"""Lineage: the tree of snapshots, newest first, from the catalog; what was read on the way, from the manifests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from epochal.contracts.identity import EpochKey
from epochal.service.catalog.applications import ApplicationRepository
from epochal.service.catalog.database import Database, Session
from epochal.service.catalog.lineage import LineageRepository
from epochal.service.catalog.models import Application, FoldedEpochs
from epochal.service.catalog.records import head_of
from epochal.service.domain.lineage import SHORTEST_RUN, Noted, Run, items_of, place_of
from epochal.service.domain.pages import PageRequest
from epochal.service.queries.lineage.assembly import Assembly, Entry
from epochal.service.queries.lineage.slices import with_slices
from epochal.service.queries.lineage.summaries import RunSummaries
from epochal.snapshots.store import SnapshotStore
from epochal.wire.lineage import LineageAnswer
from epochal.wire.projects import local_name


@dataclass(frozen=True)
class Wish:
    """``fold``: runs of plain epochs are one node each. ``slices``: what was read, on every edge."""

    fold: bool = False
    slices: bool = True


class LineageService:
    def __init__(self, database: Database, store: SnapshotStore) -> None:
        self._database = database
        self._store = store
        self._summaries = RunSummaries()

    def read(self, application: str, page: PageRequest, wish: Wish) -> LineageAnswer:
        """``NotFound``; ``InvalidInput`` for a cursor of something else."""
        with self._database.reading() as session:
            row = ApplicationRepository(session).named(application)
            answer, ends = _folded(session, row, page, self._summaries) if wish.fold else _whole(session, row, page)
        return with_slices(self._store, answer, ends) if wish.slices else answer


def _whole(session: Session, application: Application, page: PageRequest) -> tuple[LineageAnswer, list[Entry]]:
    repository = LineageRepository(session)
    branches = repository.tree(application)
    part = repository.page(branches, page)
    folded = repository.folded_before(branches)
    entries = [Entry(row, folded=folded.get(EpochKey(row.branch, row.epoch))) for row in part.rows]
    return _answer(session, application, Assembly(session, branches, entries), part.next_cursor), entries


def _folded(
    session: Session, application: Application, page: PageRequest, summaries: RunSummaries
) -> tuple[LineageAnswer, list[Entry]]:
    repository = LineageRepository(session)
    branches = repository.tree(application)
    items = items_of(repository.noted(branches))
    after = page.after(datetime, int, int, str)
    if after is not None:
        items = [item for item in items if place_of(item) < after]
    shown, more = items[: page.limit], len(items) > page.limit
    entries: list[Entry] = []
    rows = repository.rows([item.key for item in shown if isinstance(item, Noted)])
    folded = repository.folded_before(branches)
    for item in shown:
        if isinstance(item, Noted):
            entries.append(Entry(rows[item.key], folded=folded.get(item.key)))
        else:
            entries += _of_run(repository, item, folded, summaries)
    following = page.following(*place_of(shown[-1])) if more else None
    return _answer(session, application, Assembly(session, branches, entries), following), entries


def _of_run(
    repository: LineageRepository, run: Run, folded: Mapping[EpochKey, FoldedEpochs], summaries: RunSummaries
) -> list[Entry]:
    """One entry; a short run is not worth folding."""
    ranges = [range for range in folded.values() if range.branch == run.before.branch]
    summary = summaries.of(run, sum(range.last - range.first + 1 for range in ranges), repository.summary)
    if summary is None:
        return []
    if summary.epochs < SHORTEST_RUN:
        return [Entry(row) for row in repository.epochs_of(run)]
    branch = run.before.branch
    first, last = EpochKey(branch, summary.first), EpochKey(branch, summary.last)
    rows = repository.rows([first, last])
    oldest = next((range for range in folded.values() if (range.branch, range.oldest) == (branch, first.epoch)), None)
    return [Entry(rows[last], rows.get(first), summary, oldest)]


def _answer(session: Session, application: Application, assembly: Assembly, following: str | None) -> LineageAnswer:
    return LineageAnswer(
        application=local_name(application.name),
        head=head_of(ApplicationRepository(session).branch(application)),
        nodes=assembly.nodes(),
        edges=assembly.edges(),
        next_cursor=following,
    )
