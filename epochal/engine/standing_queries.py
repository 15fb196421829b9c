"""E1: standing queries of an epoch, from those of its parent and the commands received since.

Changes take effect together with an epoch's decision. A query starts with the first windows of which it reads all rows:
rows of earlier epochs are not later than the latest time observed in them.
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
from epochal.snapshots.packs import TASK_BYTES, Pack
from epochal.snapshots.store import SnapshotStore
from epochal.standing_queries.active import ActiveQueries, StandingQuery, decoded
from epochal.standing_queries.command_results import CARRIED_OUT, CHANGE, REFUSED, outcomes_of
from epochal.standing_queries.query import Query

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Chosen:
    """Standing queries chosen for an epoch. ``data``: the file's bytes; ``is_new``: the file must still be written, or
    is part of the epoch's pack if it is small. ``changes``: for the manifest; they have the outcomes of the commands
    that the epoch carries out."""

    conditions: EpochConditions
    data: bytes = b""
    is_new: bool = False
    changes: tuple[Change, ...] = ()

    @property
    def carried(self) -> dict[str, bytes]:
        """The file, if it is part of the epoch's pack."""
        if self.is_new and self.conditions.queries is not None and len(self.data) <= TASK_BYTES:
            return {self.conditions.queries.path: self.data}
        return {}

    def placed(self, pack: Pack) -> EpochConditions:
        """The conditions, with the place of the file in a pack that has it."""
        queries = self.conditions.queries
        place = None if queries is None else pack.places.get(queries.path)
        if queries is None or place is None:
            return self.conditions
        return self.conditions.model_copy(update={"queries": queries.model_copy(update={"within": place})})

    def write(self, store: SnapshotStore) -> None:
        """Write the file if it is new and no part of the pack."""
        if self.is_new and self.conditions.queries is not None and not self.carried:
            store.write(self.conditions.queries.path, self.data)

    def forget(self, store: SnapshotStore) -> None:
        """Delete the file, if written, because the epoch is not decided."""
        if self.is_new and self.conditions.queries is not None and not self.carried:
            store.delete(self.conditions.queries.path)


@dataclass
class StandingQueries:
    """Pending commands on standing queries. Manifests record the outcomes of commands. Not thread-safe."""

    store: SnapshotStore
    _waiting: dict[int, tuple[str, QueryCommand]] = field(default_factory=dict)
    _read: dict[str, bytes] = field(default_factory=dict)
    _fitting: Program | None = None
    """Program for which all queries have been checked."""

    def take(self, directive: Directive) -> None:
        """Add a command; repeated deliveries have no effect."""
        command = QueryCommand.model_validate(directive.arguments, extra="ignore")
        self._waiting.setdefault(command.number, (directive.id, command))

    def answers(
        self, head: ManifestReference | None, parent: Manifest | None
    ) -> Iterator[tuple[str, ManifestReference | None, Failure | None]]:
        """Answers to directives that were carried out in ``parent``, whose reference is ``head``, or earlier: the
        snapshot of its epoch, and the failure if it was refused."""
        done = [number for number in sorted(self._waiting) if number <= _through(parent)]
        outcomes = self._outcomes(done, head, parent)
        for number in done:
            directive, _ = self._waiting.pop(number)
            yield directive, *outcomes.get(number, (head, None))

    def _outcomes(
        self, numbers: Sequence[int], head: ManifestReference | None, parent: Manifest | None
    ) -> dict[int, tuple[ManifestReference | None, Failure | None]]:
        """Outcomes of commands, read from the newest epoch back to the one that carried out the first of them. Usually
        this is the newest; an earlier one if a driver ended before it could answer."""
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
        """Standing queries of the epoch ``key``; ``conditions``: its other conditions, by which queries expire. Only
        reads."""
        before = None if parent is None else parent.conditions.queries
        if before is None and not self._waiting:
            return Chosen(conditions)
        data = b"" if before is None else self._bytes(parent)
        was = decoded(data) if data else ActiveQueries()
        change = _Changing(was, key.epoch, conditions.epoch_time, _seen(program, parent), program)
        if self._fitting is not program:
            change.pause_unfit()
            self._fitting = program
        change.expire()
        for number, (_, command) in sorted(self._waiting.items()):
            if number > was.through:
                change.carry_out(command)
        if change.now == was:
            assert before is not None  # every command changes the queries
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
        """Cache the queries of a prepared epoch for the next one."""
        if chosen.conditions.queries is not None:
            self._read = {chosen.conditions.queries.sha256: chosen.data}

    def _bytes(self, parent: Manifest | None) -> bytes:
        file = None if parent is None else parent.queries
        assert file is not None  # the caller has checked this
        if file.sha256 not in self._read:
            self._read = {file.sha256: self.store.read_file(file, "the snapshot")}
        return self._read[file.sha256]


@dataclass
class _Changing:
    """Queries while commands are carried out. ``seen``: the first event time after those of all rows read so far."""

    now: ActiveQueries
    epoch: int
    epoch_time: int
    seen: int
    program: Program
    detail: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        nodes = (node.operator for node in self.program.graph.operators)
        self._operators = {each.name: each for each in nodes if isinstance(each, StandingQueriesOperator)}

    def pause_unfit(self) -> None:
        """Pause queries that the program cannot run: another version may lack a column or the operator."""
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
            raise NotFound(f"Standing query {command.query} no longer exists.")
        if command.kind == "drop":
            self.now = self.now.without([query.id])
            self._note("dropped", query.id)
        elif command.kind == "pause" and query.state == "active":
            self.now = self.now.put(replace(query, state="paused"))
            self._note("paused", query.id)
        elif command.kind == "resume" and query.state == "paused":
            problem = self._problem(query)
            if problem is not None:
                raise Conflict(f"Standing query {query.id} cannot be resumed: {problem}. Drop it, and add a new one.")
            self.now = self.now.put(replace(query, state="active", since=self.seen))
            self._note("resumed", query.id)

    def _add(self, command: QueryCommand) -> None:
        operator = self._operators.get(command.operator or "")
        if operator is None or command.text is None or command.bound is None:
            raise NotFound(f"The running version has no standing queries named {command.operator!r}.")
        if sum(each.operator == operator.name for each in self.now.queries) >= operator.limits.queries:
            raise Conflict(
                f"Operator {operator.name!r} has {operator.limits.queries:,} standing queries, the maximum that the "
                "application allows. Drop one that is no longer needed."
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
            raise Conflict(f"The query does not fit the running version: {problem}. Add it again.")
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
    """First event time, in microseconds, after those of all rows read so far."""
    if parent is None:
        return BEGINNING
    times = [
        partition.watermark + declaration.delay + 1
        for declaration in program.plan.time.graph.declarations
        for partition in parent.clock.partitions.get(declaration.name, {}).values()
        if partition.watermark != BEGINNING
    ]
    return max(times, default=BEGINNING)
