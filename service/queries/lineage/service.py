"""Lineage: the tree of snapshots, newest first, from the catalog; the input between them, from the manifests."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from epochal.contracts.identity import EpochKey
from epochal.errors import NotFound, SnapshotError
from epochal.service.catalog.applications import ApplicationRepository
from epochal.service.catalog.database import Database, Session
from epochal.service.catalog.lineage import EpochSpan, LineageRepository
from epochal.service.catalog.models import Application, Branch, FoldedEpochs
from epochal.service.catalog.records import head_of
from epochal.service.domain.lineage import SHORTEST_RUN, ListedSnapshot, Run, RunSummary, items_of, place_of
from epochal.service.domain.pages import PageRequest
from epochal.service.queries.lineage.assembly import Assembly, Entry
from epochal.snapshots.row_groups import concurrently
from epochal.snapshots.store import SnapshotStore
from epochal.wire.history import SourceRange
from epochal.wire.lineage import LineageAnswer, LineageEdge, LineagesAnswer
from epochal.wire.projects import local_name


@dataclass(frozen=True)
class LineageOptions:
    """``fold``: show each run of plain epochs as one node. ``slices``: add the input to every edge. ``span``: only
    these epochs, which are never folded."""

    fold: bool = False
    slices: bool = True
    span: EpochSpan | None = None


class LineageService:
    def __init__(self, database: Database, store: SnapshotStore) -> None:
        self._database = database
        self._store = store
        self._summaries = RunSummaries()

    def read(self, application: str, page: PageRequest, options: LineageOptions) -> LineageAnswer:
        """Raises ``NotFound``, also for a branch outside of the tree; ``InvalidInput`` for a cursor of another list."""
        with self._database.reading() as session:
            row = ApplicationRepository(session).named(application)
            if options.fold and options.span is None:
                answer, ends = _folded(session, row, page, self._summaries)
            else:
                answer, ends = _whole(session, row, page, options.span)
        return with_slices(self._store, answer, ends) if options.slices else answer

    def together(self, applications: Sequence[str], page: PageRequest) -> LineagesAnswer:
        """The folded lineage of several applications. Raises ``NotFound``."""
        with self._database.reading() as session:
            repository, registered = LineageRepository(session), ApplicationRepository(session)
            rows = [registered.named(name) for name in dict.fromkeys(applications)]
            branches: dict[str, Branch] = {}
            for row in rows:
                branches.update(repository.tree(row))
            assembly, following, _ = _folded_nodes(session, branches, page, self._summaries)
            return LineagesAnswer(
                heads=repository.heads(branches),
                nodes=assembly.nodes(),
                edges=assembly.edges(),
                next_cursor=following,
            )


def _whole(
    session: Session, application: Application, page: PageRequest, span: EpochSpan | None
) -> tuple[LineageAnswer, list[Entry]]:
    repository = LineageRepository(session)
    branches = repository.tree(application)
    if span is not None and span.branch not in branches:
        raise NotFound(f"The lineage of {local_name(application.name)!r} does not have this branch.")
    part = repository.page(branches if span is None else [span.branch], page, span)
    folded = repository.folded_before(branches)
    entries = [Entry(row, folded=folded.get(EpochKey(row.branch, row.epoch))) for row in part.rows]
    assembly = Assembly(session, branches, entries)
    return _answer(session, application, assembly, repository.heads(branches), part.next_cursor), entries


def _folded(
    session: Session, application: Application, page: PageRequest, summaries: RunSummaries
) -> tuple[LineageAnswer, list[Entry]]:
    repository = LineageRepository(session)
    branches = repository.tree(application)
    assembly, following, entries = _folded_nodes(session, branches, page, summaries)
    return _answer(session, application, assembly, repository.heads(branches), following), entries


def _folded_nodes(
    session: Session, branches: Mapping[str, Branch], page: PageRequest, summaries: RunSummaries
) -> tuple[Assembly, str | None, list[Entry]]:
    """A page of the snapshots of these branches, and the cursor of the next page."""
    repository = LineageRepository(session)
    items = items_of(repository.listed(branches))
    after = page.after(datetime, int, int, str)
    if after is not None:
        items = [item for item in items if place_of(item) < after]
    shown, more = items[: page.limit], len(items) > page.limit
    entries: list[Entry] = []
    rows = repository.rows([item.key for item in shown if isinstance(item, ListedSnapshot)])
    folded = repository.folded_before(branches)
    for item in shown:
        if isinstance(item, ListedSnapshot):
            entries.append(Entry(rows[item.key], folded=folded.get(item.key)))
        else:
            entries += _of_run(repository, item, folded, summaries)
    following = page.following(*place_of(shown[-1])) if more else None
    return Assembly(session, branches, entries), following, entries


def _of_run(
    repository: LineageRepository, run: Run, folded: Mapping[EpochKey, FoldedEpochs], summaries: RunSummaries
) -> list[Entry]:
    """One entry for the run; a short run is not folded."""
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


def _answer(
    session: Session,
    application: Application,
    assembly: Assembly,
    heads: dict[str, EpochKey | None],
    following: str | None,
) -> LineageAnswer:
    return LineageAnswer(
        application=local_name(application.name),
        head=head_of(ApplicationRepository(session).branch(application)),
        heads=heads,
        nodes=assembly.nodes(),
        edges=assembly.edges(),
        next_cursor=following,
    )


KEPT = 10_000

Read = Callable[[Run], RunSummary | None]


@dataclass(frozen=True)
class _Kept:
    """``until``: the first epoch that is not included. ``folded``: see :meth:`RunSummaries.of`."""

    until: int
    folded: int
    summary: RunSummary | None


class RunSummaries:
    """Cached summaries of runs. Decided epochs do not change, so only new epochs are added. Thread-safe. The last
    run of a branch ends before its head and grows with it."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, int], _Kept] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, run: Run, folded: int, read: Read) -> RunSummary | None:
        """``folded``: number of folded epochs of the branch; a change invalidates its runs. ``read``: sums up a run,
        epoch by epoch."""
        key = run.before.branch, run.after
        with self._lock:
            kept = self._kept.get(key)
        if kept is None or kept.folded != folded or kept.until > run.before.epoch:
            summary = read(run)
        elif kept.until == run.before.epoch:
            return kept.summary
        else:
            summary = _sum(kept.summary, read(Run(run.before, kept.until - 1)))
        with self._lock:
            self._kept[key] = _Kept(run.before.epoch, folded, summary)
            self._kept.move_to_end(key)
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return summary


def _sum(older: RunSummary | None, newer: RunSummary | None) -> RunSummary | None:
    if older is None or newer is None:
        return older or newer
    return RunSummary(
        epochs=older.epochs + newer.epochs,
        first=older.first,
        last=newer.last,
        rows_in=older.rows_in + newer.rows_in,
        rows_out=older.rows_out + newer.rows_out,
        state_rows=older.state_rows + newer.state_rows,
        state_bytes=older.state_bytes + newer.state_bytes,
    )


Slices = dict[str, SourceRange] | None


def with_slices(store: SnapshotStore, answer: LineageAnswer, entries: Sequence[Entry]) -> LineageAnswer:
    """The lineage with slices on its edges; ``None`` stays where a manifest is missing or cannot be read."""
    found = dict(
        zip([entry.key for entry in entries], concurrently(lambda entry: _read(store, entry), entries), strict=True)
    )
    edges: list[LineageEdge] = [edge.model_copy(update={"slices": found[edge.target]}) for edge in answer.edges]
    return answer.model_copy(update={"edges": edges})


def _read(store: SnapshotStore, entry: Entry) -> Slices:
    """Slices of a run: from the beginning of its oldest epoch to the end of its newest, for sources that both have
    read."""
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
