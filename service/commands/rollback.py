"""Rollback: planned, confirmed, and carried out by moving the application to a branch that begins at the snapshot."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from epochal.contracts.backend import names_place
from epochal.contracts.catalog import ManifestReference, RestorePoint
from epochal.contracts.identity import EpochKey
from epochal.errors import Conflict, EpochalError, OptionError, SnapshotError
from epochal.faults import declare
from epochal.service.catalog.applications import ApplicationRepository, Revisions
from epochal.service.catalog.database import Database, Session
from epochal.service.catalog.executions import ENDED
from epochal.service.catalog.models import Application, Epoch, Execution
from epochal.service.catalog.operation_completion import succeed
from epochal.service.catalog.operations import OperationRepository, operation_answer
from epochal.service.catalog.records import head_of
from epochal.service.catalog.rollbacks import LeftBehind, NotConfirmed, RollbackRepository, check_committed, roll_back
from epochal.service.catalog.snapshots import SnapshotRepository
from epochal.service.catalog.versions import VersionRepository
from epochal.service.commands.applications import Lifecycle, announce_begun
from epochal.service.commands.proposals import Proposals, check_goes_on
from epochal.service.domain.rollback_rules import TABLES, explanation, refusal_to_move_aside, restoring, rule_of
from epochal.snapshots.manifest import Manifest
from epochal.snapshots.references import References
from epochal.snapshots.row_groups import concurrently
from epochal.snapshots.store import SnapshotStore
from epochal.wire.applications import ApplicationState
from epochal.wire.operations import OperationAnswer
from epochal.wire.rollback import RollBack, RollbackPlan, SinkPlan, SnapshotName

ASKED = declare("rollback.asked", "the rollback of a running application is recorded, its driver is requested to stop")

_Written = Mapping[tuple[str, str, str], Sequence[int]]
"""By sink, kind and target: the row counts of epochs with rows."""


@dataclass(frozen=True)
class _Beyond:
    """A sink, and the latest epoch that it shows but the catalog does not have."""

    sink: str
    target: str
    epoch: int


class RollbackService:
    def __init__(self, database: Database, store: SnapshotStore, proposals: Proposals, lifecycle: Lifecycle) -> None:
        self._database = database
        self._store = store
        self._proposals = proposals
        self._lifecycle = lifecycle

    def plan(self, name: str, request: RollBack) -> RollbackPlan:
        """Plan a rollback. Reads the existing manifests of the epochs left behind; after a restore, queries the sinks.

        Raises ``NotFound``, ``SnapshotExpired``, ``IncompatibleState`` of the latest version, ``SinkError``;
        ``OptionError`` for sinks that cannot move epochs aside as the request demands.
        """
        beyond = self._beyond(name)
        with self._database.reading() as session:
            application = ApplicationRepository(session).named(name)
            target = _target(session, application, request)
            branch = ApplicationRepository(session).branch(application)
            repository = RollbackRepository(session)
            left = repository.left_behind(branch, _key(target))
            execution = ApplicationRepository(session).execution(application)
            now = SnapshotRepository(session).head(application)
            plan = RollbackPlan(
                application=name,
                state=cast(ApplicationState, execution.state if execution else "created"),
                now=None if now is None else _named(now),
                to=_named(target),
                version=VersionRepository(session).latest(application).number,
                version_then=target.version,
                epochs=left.epochs,
                first=left.first,
                last=left.last,
                restarts=_runs(execution),
                move_aside=request.move_aside,
                sinks=[],
                lost=_lost(beyond),
                confirm=_digest(session, application, execution, target, left, request, _lost(beyond)),
            )
            references, targets = repository.manifests(left), repository.targets(left)
            snapshot = SnapshotRepository(session).reference(_key(target))
            latest = VersionRepository(session).latest(application)
        check_goes_on(self._store, latest, snapshot, request.acceptance)
        self._check_whole(snapshot)
        counted, rows = self._written(references)
        uncounted = plan.epochs - counted
        sinks = _sinks(rows, targets if uncounted else (), beyond, request.move_aside)
        _check_move_aside(sinks, request)
        sinks = self._with_restore_points(name, sinks, left, plan.restarts)
        return plan.model_copy(update={"sinks": sinks, "uncounted": uncounted})

    def _written(self, references: Sequence[ManifestReference]) -> tuple[int, _Written]:
        """Number of these epochs that could be read, and what they wrote. Collected or damaged manifests do not
        count: they may be the reason for the rollback."""
        counted = 0
        rows: dict[tuple[str, str, str], list[int]] = defaultdict(list)
        for manifest in concurrently(self._read, references):
            if manifest is None:
                continue
            counted += 1
            for sink, part in manifest.sinks.items():
                written = sum(handle.rows for handle in part.handles)
                if written:
                    rows[(sink, part.kind, part.target)].append(written)
        return counted, rows

    def _with_restore_points(
        self, name: str, sinks: Sequence[SinkPlan], left: LeftBehind, restarts: bool
    ) -> list[SinkPlan]:
        """Tables with their versions before the epochs left behind, which a process with the sinks of the latest
        version reads. A plan without them is not refused."""
        if not any(plan.kind in TABLES for plan in sinks):
            return list(sinks)
        with self._database.reading() as session:
            application = ApplicationRepository(session).named(name)
            version = VersionRepository(session).latest(application)
            targets = {} if version.graph is None else version.graph["sinks"]
            as_it_was = self._proposals.as_it_was(session, application.project, version)
        reason, found = f"version {version.number} has no such sink", dict[str, RestorePoint]()
        known = [plan.sink for plan in sinks if plan.kind in TABLES and targets.get(plan.sink) == plan.target]
        try:
            if known:
                producer = self._proposals.producer(as_it_was)
                found.update(self._proposals.restore_points(name, producer, known, left.spans))
        except EpochalError as error:
            reason = error.message.rstrip(".")
        missing = RestorePoint(reason=reason, unknown=True)
        points = {(sink, targets[sink]): point for sink, point in found.items()}
        return [
            restoring(plan, points.get((plan.sink, plan.target), missing), restarts) if plan.kind in TABLES else plan
            for plan in sinks
        ]

    def _read(self, reference: ManifestReference) -> Manifest | None:
        try:
            return self._store.read_manifest(reference)
        except SnapshotError:
            return None

    def _beyond(self, name: str) -> list[_Beyond]:
        """Epochs that sinks show and that a restore has lost."""
        with self._database.reading() as session:
            application = ApplicationRepository(session).named(name)
            branch, repository = ApplicationRepository(session).branch(application), RollbackRepository(session)
            execution = ApplicationRepository(session).execution(application)
            if execution is None or _runs(execution) or not repository.predates_restore(branch):
                return []
            head, last = head_of(branch) or EpochKey(branch.id, 0), repository.last_number(branch)
            version = VersionRepository(session).latest(application)
            places = {} if version.graph is None else version.graph["sinks"]
            as_it_was = self._proposals.as_it_was(session, application.project, version)
        producer = self._proposals.producer(as_it_was)
        at = head if head.branch == branch.id else EpochKey(branch.id, 0)
        shown = self._proposals.shown(name, producer, at, branch.attempt)
        return [
            _Beyond(sink, str(places.get(sink, "")), epoch)
            for sink, epoch in sorted(shown.items())
            if epoch is not None and epoch > last
        ]

    def _check_goes_on(self, name: str, request: RollBack, revisions: Revisions) -> tuple[EpochKey, int]:
        """The target snapshot, and the latest version, which can continue from it. Raises ``IncompatibleState``."""
        with self._database.reading() as session:
            repository = ApplicationRepository(session)
            application = repository.named(name)
            repository.check_revision(application, revisions)
            OperationRepository(session).check_none_running(application)
            key = _key(_target(session, application, request))
            latest = VersionRepository(session).latest(application)
            snapshot = SnapshotRepository(session).reference(key)
        check_goes_on(self._store, latest, snapshot, request.acceptance)
        return key, latest.number

    def _check_whole(self, snapshot: ManifestReference) -> None:
        """Raise ``FileMissing`` or ``FileCorrupt`` with the missing file of the snapshot."""
        paths = sorted(References(self._store).needed(snapshot))
        for _ in concurrently(lambda path: self._store.size(path, f"snapshot {snapshot.key}"), paths):
            pass

    def roll_back(self, name: str, request: RollBack, by: str, revisions: Revisions = None) -> OperationAnswer:
        """Raises ``NotConfirmed``, ``Conflict`` during another operation, and the errors of :meth:`plan`."""
        beyond = self._beyond(name)
        checked = self._check_goes_on(name, request, revisions)
        with self._database.writing() as session:
            application = ApplicationRepository(session).locked(name, revisions)
            repository, operations = ApplicationRepository(session), OperationRepository(session)
            operations.check_none_running(application)
            target = _target(session, application, request)
            if (_key(target), VersionRepository(session).latest(application).number) != checked:
                raise Conflict(f"Application {name!r} was changed meanwhile; request the plan (dry_run) again.")
            execution = repository.execution(application)
            left = RollbackRepository(session).left_behind(repository.branch(application), _key(target))
            lost = _lost(beyond)
            _check_confirmed(request, _digest(session, application, execution, target, left, request, lost))
            arguments = {
                "branch": target.branch,
                "epoch": target.epoch,
                "message": request.message,
                "move_aside": request.move_aside,
                "acceptance": request.acceptance.model_dump(mode="json"),
                "successor": False,
            }
            operation = operations.add("rollback", application, execution, arguments, by, "stopping")
            if execution is None or execution.state in ENDED:
                check_committed(session, application, repository.branch(application))
                if lost is not None:
                    RollbackRepository(session).lose(repository.branch(application), lost)
                succeed(session, application, operation, roll_back(session, application, operation))
            else:
                _check_can_stop(application, execution)
                operations.ask_to_stop(execution, operation)
                announce_begun(session, application, operation)
            answer, waiting = operation_answer(operation, name), operation.execution
        if answer.state == "running":
            ASKED.hit()
        self._lifecycle.wake(waiting)
        return answer


def _target(session: Session, application: Application, request: RollBack) -> Epoch:
    """Any retained snapshot, also of a branch that an earlier rollback left."""
    repository = SnapshotRepository(session)
    return repository.row(
        repository.resolve(application, request.epoch, request.savepoint, request.tag, request.at).key
    )


def _lost(beyond: Sequence[_Beyond]) -> int | None:
    return max((sink.epoch for sink in beyond), default=None)


def _sinks(
    rows: _Written, uncounted: Iterable[tuple[str, str]], beyond: Sequence[_Beyond], move_aside: bool
) -> list[SinkPlan]:
    """``uncounted``: sinks and targets that may show epochs whose manifests cannot be read."""
    shows = {sink.sink: sink.epoch for sink in beyond}
    unknown = {(sink.sink, sink.target) for sink in beyond if sink.sink not in {known for known, _, _ in rows}}
    unknown |= {place for place in uncounted if names_place(place[1])} - {(sink, target) for sink, _, target in rows}
    plans = [
        _plan(sink, target.partition(":")[0], target, None, None, shows.get(sink), move_aside)
        for sink, target in unknown
    ]
    for (sink, kind, target), counts in sorted(rows.items()):
        plans.append(_plan(sink, kind, target, len(counts), sum(counts), shows.get(sink), move_aside))
    return sorted(plans, key=lambda plan: (plan.sink, plan.kind, plan.target))


def _plan(
    sink: str, kind: str, target: str, epochs: int | None, rows: int | None, shows: int | None, move_aside: bool
) -> SinkPlan:
    rule = rule_of(kind, move_aside)
    return SinkPlan(
        sink=sink,
        kind=kind,
        target=target,
        epochs=epochs,
        rows=rows,
        shows=shows,
        rule=rule,
        explanation=explanation(kind, rule),
    )


def _check_move_aside(sinks: Iterable[SinkPlan], request: RollBack) -> None:
    """Raises ``OptionError`` if rows of a sink cannot be moved aside."""
    if request.move_aside:
        for plan in sinks:
            if refusal := refusal_to_move_aside(plan.sink, plan.kind):
                raise OptionError(refusal)


def _digest(
    session: Session,
    application: Application,
    execution: Execution | None,
    target: Epoch,
    left: LeftBehind,
    request: RollBack,
    lost: int | None,
) -> str | None:
    """Fingerprint of a plan, without the epochs that a running application still adds."""
    version = VersionRepository(session).latest(application)
    sinks = {} if version.graph is None else version.graph["sinks"]
    nothing_left = left.epochs == 0 and not _runs(execution) and lost is None
    if nothing_left or application.shadow or not any(names_place(place) for place in sinks.values()):
        return None
    seen = [
        application.id,
        application.branch,
        target.branch,
        target.epoch,
        request.move_aside,
        version.number,
        "running" if _runs(execution) else [left.epochs, left.last],
        *([] if lost is None else [lost]),
    ]
    return hashlib.sha256(json.dumps(seen).encode()).hexdigest()[:16]


def _check_confirmed(request: RollBack, digest: str | None) -> None:
    if digest is None or request.confirm == digest:
        return
    if request.confirm is None:
        raise NotConfirmed(
            "Sinks may show epochs that this rollback leaves behind. Request the plan (dry_run) to see what happens "
            "to them, and repeat its 'confirm'."
        )
    raise NotConfirmed("The application has changed since the confirmed plan. Request the plan (dry_run) again.")


def _check_can_stop(application: Application, execution: Execution) -> None:
    if execution.state not in ("starting", "running"):
        raise Conflict(f"Application {application.name!r} is {execution.state}; roll it back afterwards.")


def _runs(execution: Execution | None) -> bool:
    return execution is not None and execution.state not in ENDED


def _key(row: Epoch) -> EpochKey:
    return EpochKey(row.branch, row.epoch)


def _named(row: Epoch) -> SnapshotName:
    return SnapshotName(branch=row.branch, epoch=row.epoch, committed_at=row.committed_at)
