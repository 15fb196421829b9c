"""E1: the standing queries that an epoch runs with, from those of its parent and the commands that have come since.

They change with an epoch's decision or not at all. A query begins with the windows whose first row it can still see: no
row that an earlier epoch read is later than the latest time that was observed then.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from epochal.contracts.catalog import Change, Directive, Failure, ManifestReference, QueryCommand
from epochal.contracts.conditions import BEGINNING, EpochConditions, EpochQueries
from epochal.contracts.identity import EpochKey
from epochal.engine.program import Program
from epochal.errors import Conflict, NotFound
from epochal.operators.standing_queries.plan import StandingQueriesOperator, StandingQueriesPlan, problems_of
from epochal.snapshots import layout
from epochal.snapshots.manifest import Manifest
from epochal.snapshots.store import SnapshotStore
from epochal.standing_queries.active import ActiveQueries, StandingQuery, decoded
from epochal.standing_queries.command_results import CARRIED_OUT, CHANGE, REFUSED, outcomes_of
from epochal.standing_queries.query import Query

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Chosen:
    """``data``: the file's bytes; ``is_new``: it is still to be written. ``changes``: for the manifest, which is where
    the outcomes of the commands stand that the epoch carries out."""

    conditions: EpochConditions
    data: bytes = b""
    is_new: bool = False
    changes: tuple[Change, ...] = ()

    def write(self, store: SnapshotStore) -> bool:
        """Whether there was something to write, which is durable now."""
        if self.is_new and self.conditions.queries is not None:
            store.write(self.conditions.queries.path, self.data)
        return self.is_new

    def forget(self, store: SnapshotStore) -> None:
        """The epoch is not decided: its file, which may not have been written yet, is nobody's."""
        if self.is_new and self.conditions.queries is not None:
            store.delete(self.conditions.queries.path)


@dataclass
class StandingQueries:
    """Commands that wait for an epoch; what became of those that had one, manifests say. Not thread-safe."""

    store: SnapshotStore
    _waiting: dict[int, tuple[str, QueryCommand]] = field(default_factory=dict)
    _read: dict[str, bytes] = field(default_factory=dict)
    _fitting: Program | None = None
    """The program that all queries have been found to fit."""

    def take(self, directive: Directive) -> None:
        """A command, which may have been delivered before."""
        command = QueryCommand.model_validate(directive.arguments, extra="ignore")
        self._waiting.setdefault(command.number, (directive.id, command))

    def answers(
        self, head: ManifestReference | None, parent: Manifest | None
    ) -> Iterator[tuple[str, ManifestReference | None, Failure | None]]:
        """The directives that have been carried out in ``parent``, whose reference is ``head``, or before, each with
        the snapshot of its epoch, and why it was refused if it was."""
        done = [number for number in sorted(self._waiting) if number <= _through(parent)]
        outcomes = self._outcomes(done, head, parent)
        for number in done:
            directive, _ = self._waiting.pop(number)
            yield directive, *outcomes.get(number, (head, None))

    def _outcomes(
        self, numbers: Sequence[int], head: ManifestReference | None, parent: Manifest | None
    ) -> dict[int, tuple[ManifestReference | None, Failure | None]]:
        """From the newest epoch back to the one that carried out the first of these commands: mostly the newest itself,
        an earlier one where a driver has ended before it could answer."""
        found: dict[int, tuple[ManifestReference | None, Failure | None]] = {}
        while numbers and numbers[0] not in found and parent is not None and numbers[0] <= _through(parent):
            for change in parent.changes:
                if change.kind == CHANGE:
                    found |= {number: (head, failure) for number, failure in outcomes_of(change).items()}
            head = parent.parent
            parent = None if head is None else self.store.read_manifest(head)
        return found

    @property
    def waits(self) -> bool:
        return bool(self._waiting)

    def chosen(self, key: EpochKey, parent: Manifest | None, conditions: EpochConditions, program: Program) -> Chosen:
        """Those of the epoch ``key``, with whose other conditions queries expire. Pure but for what it reads."""
        before = None if parent is None else parent.conditions.queries
        if before is None and not self._waiting:
            return Chosen(conditions)
        data = b"" if before is None else self._bytes(parent)
        was = decoded(data) if data else ActiveQueries()
        change = _Changing(was, key.epoch, conditions.epoch_time, _seen(program, parent), program)
        if self._fitting is not program:
            change.pause_what_does_not_fit()
            self._fitting = program
        change.expire()
        for number, (_, command) in sorted(self._waiting.items()):
            if number > was.through:
                change.carry_out(command)
        if change.now == was:
            assert before is not None  # a command that is carried out is a change
            same = before.model_copy(update={"removed": ()})
            return Chosen(conditions.model_copy(update={"queries": same}), data)
        data = change.now.encode()
        queries = EpochQueries(
            path=layout.standing_queries(key),
            sha256=hashlib.sha256(data).hexdigest(),
            bytes=len(data),
            rows=len(change.now.queries),
            through=change.now.through,
            removed=tuple(sorted({each.id for each in was.queries} - {each.id for each in change.now.queries})),
        )
        changes = (Change(kind=CHANGE, detail=change.detail),) if change.detail else ()
        return Chosen(conditions.model_copy(update={"queries": queries}), data, True, changes)

    def decided(self, chosen: Chosen) -> None:
        """The epoch is prepared: the next one begins with its queries."""
        if chosen.conditions.queries is not None:
            self._read = {chosen.conditions.queries.sha256: chosen.data}

    def _bytes(self, parent: Manifest | None) -> bytes:
        file = None if parent is None else parent.queries
        assert file is not None  # the parent has queries
        if file.sha256 not in self._read:
            self._read = {file.sha256: self.store.read_file(file, "the snapshot")}
        return self._read[file.sha256]


@dataclass
class _Changing:
    """The queries while commands are carried out. ``seen``: the first event time that no row has reached yet."""

    now: ActiveQueries
    epoch: int
    epoch_time: int
    seen: int
    program: Program
    detail: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        nodes = (node.operator for node in self.program.graph.operators)
        self._operators = {each.name: each for each in nodes if isinstance(each, StandingQueriesOperator)}

    def pause_what_does_not_fit(self) -> None:
        """Another version may have other columns, or no such operator: what it does not see would be missing later."""
        for query in self.now.queries:
            problem = self._problem(query)
            if problem is not None and query.state == "active":
                log.warning("standing query %d is paused: %s", query.id, problem)
                self.now = self.now.put(replace(query, state="paused"))
                self._note("paused", query.id)

    def expire(self) -> None:
        expired = [
            each.id for each in self.now.queries if each.expires_at is not None and each.expires_at <= self.epoch_time
        ]
        self.now = self.now.without(expired)
        for id in expired:
            self._note("expired", id)

    def carry_out(self, command: QueryCommand) -> None:
        try:
            self._carry_out(command)
        except (Conflict, NotFound) as error:
            failure = Failure(type=error.slug, message=error.message)
            self.detail.setdefault(REFUSED, {})[str(command.number)] = failure.model_dump(
                mode="json", exclude_none=True
            )
        self._note(CARRIED_OUT, command.number)
        self.now = replace(self.now, through=command.number)

    def _carry_out(self, command: QueryCommand) -> None:
        if command.kind == "add":
            self._add(command)
            return
        query = self.now.get(command.query)
        if query is None:
            raise NotFound(f"There is no standing query {command.query} any more.")
        if command.kind == "drop":
            self.now = self.now.without([query.id])
            self._note("dropped", query.id)
        elif command.kind == "pause" and query.state == "active":
            self.now = self.now.put(replace(query, state="paused"))
            self._note("paused", query.id)
        elif command.kind == "resume" and query.state == "paused":
            problem = self._problem(query)
            if problem is not None:
                raise Conflict(f"Standing query {query.id} cannot be resumed: {problem}. Drop it, and add another.")
            self.now = self.now.put(replace(query, state="active", since=self.seen))
            self._note("resumed", query.id)

    def _add(self, command: QueryCommand) -> None:
        operator = self._operators.get(command.operator or "")
        if operator is None or command.text is None or command.bound is None:
            raise NotFound(f"The running version has no standing queries named {command.operator!r}.")
        if sum(each.operator == operator.name for each in self.now.queries) >= operator.limits.queries:
            raise Conflict(
                f"There are {operator.limits.queries:,} standing queries in {operator.name!r}, as many as the "
                "application allows. Drop one that is not needed any more."
            )
        query = StandingQuery(
            command.query,
            operator.name,
            command.text,
            Query.of(command.bound),
            command.by,
            self.seen,
            self.epoch,
            expires_at=command.expires_at,
        )
        problem = self._problem(query)
        if problem is not None:
            raise Conflict(f"The query does not fit the running version: {problem}. Add it anew.")
        self.now = self.now.put(query)
        self._note("added", query.id)

    def _problem(self, query: StandingQuery) -> str | None:
        if query.operator not in self._operators:
            return f"the running version has no standing queries named {query.operator!r}"
        plan = self.program.plan.operators.get(query.operator)
        return problems_of(query, plan.columns) if isinstance(plan, StandingQueriesPlan) else None

    def _note(self, what: str, id: int) -> None:
        self.detail.setdefault(what, []).append(id)


def _through(parent: Manifest | None) -> int:
    queries = None if parent is None else parent.conditions.queries
    return 0 if queries is None else queries.through


def _seen(program: Program, parent: Manifest | None) -> int:
    """The first event time, in microseconds, that is later than those of all rows that were read."""
    if parent is None:
        return BEGINNING
    times = [
        partition.watermark + declaration.delay + 1
        for declaration in program.plan.time.graph.declarations
        for partition in parent.clock.partitions.get(declaration.name, {}).values()
        if partition.watermark != BEGINNING
    ]
    return max(times, default=BEGINNING)
