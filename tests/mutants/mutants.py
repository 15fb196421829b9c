"""Deliberately wrong protocols. Each is one change to the real code, and names the tests that have to notice it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pyarrow.compute as pc

SIMULATION = "tests/simulation"
FILES = "tests/contract/test_files_sink.py"
STATE = "tests/contract/test_state_backends.py"
EXPIRY = "tests/unit/test_snapshots_expiry.py"
DBMS = "tests/contract/test_dbms_sink.py"
KAFKA = "tests/contract/test_kafka_sink.py"
HDFS = "tests/contract/test_hdfs_sink.py"
TIMERS = "tests/unit/tasks/test_process_timers.py"
WATERMARKS = "tests/unit/test_watermarks.py"


@dataclass(frozen=True)
class Mutant:
    """``apply`` makes the change in the process of the tests, before they are collected."""

    name: str
    apply: Callable[[], None]
    tests: str


MUTANTS: list[Mutant] = []


def mutant(name: str, tests: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    def register(apply: Callable[[], None]) -> Callable[[], None]:
        MUTANTS.append(Mutant(name, apply, tests))
        return apply

    return register


def change(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Replace ``owner.name`` by what ``make`` makes of it."""
    setattr(owner, name, make(getattr(owner, name)))


@mutant("engine: a sink commits before the manifest is decided", SIMULATION)
def _commit_before_manifest() -> None:
    from epochal.engine.coordinator import Coordinator

    def early(decide: Any) -> Any:
        def wrong(self: Any, scope: Any, manifest: Any, reference: Any) -> None:
            for name, sink in self.current.program.participants.sinks.items():
                sink.commit(scope, manifest.sinks[name].handles)
            decide(self, scope, manifest, reference)

        return wrong

    change(Coordinator, "_decide", early)


@mutant("engine: recovery does not redo what was decided", SIMULATION)
def _no_redo() -> None:
    from epochal.engine.recovery import Recovery

    change(Recovery, "_finish", lambda _: lambda self, point: None)


@mutant("engine: undecided epochs are not aborted", SIMULATION)
def _no_abort() -> None:
    from epochal.engine.recovery import Recovery

    change(Recovery, "_abort_undecided", lambda _: lambda self, point: None)


@mutant("engine: an unknown outcome is taken for a failure", SIMULATION)
def _guessed_outcome() -> None:
    from epochal.engine.coordinator import Coordinator
    from epochal.errors import Conflict, OutcomeUnknown

    def guess(_: Any) -> Any:
        def wrong(self: Any, scope: Any, manifest: Any, reference: Any) -> None:
            try:
                self.catalog.prepare_epoch(scope.epoch, scope.parent, reference, manifest.counts)
            except OutcomeUnknown:
                self._forget(scope, None, reference)
                raise Conflict("It has surely failed.") from None

        return wrong

    change(Coordinator, "_decide", guess)


@mutant("engine: a slice is accepted before its epoch is decided", SIMULATION)
def _accepted_early() -> None:
    from epochal.engine.coordinator import Coordinator

    def early(run: Any) -> Any:
        def wrong(self: Any, plan: Any) -> Any:
            for name, slice in plan.slices.items():
                self.current.program.participants.sources[name].accept(slice)
            return run(self, plan)

        return wrong

    change(Coordinator, "_run_and_collect", early)


@mutant("engine: a recovery does not know what is due and in flight", SIMULATION)
def _forgotten_snapshot() -> None:
    from epochal.engine.recovery import Recovery

    def forgetful(find: Any) -> Any:
        def wrong(self: Any, point: Any) -> Any:
            position = find(self, point)
            position.snapshot = None
            return position

        return wrong

    change(Recovery, "_find", forgetful)


@mutant("engine: the epoch time goes back with a clock", SIMULATION)
def _falling_epoch_time() -> None:
    from epochal.engine import coordinator

    change(coordinator, "conditions_after", lambda after: lambda graph, parent, opening: after(graph, None, opening))


@mutant("engine: a missing or doubled handle is not noticed", "tests/unit/test_engine_epoch.py")
def _uncounted_handles() -> None:
    from epochal.engine import answers

    def trusting(_: Any) -> Any:
        return lambda operator, handles, parallelism: tuple(sorted(handles, key=lambda handle: handle.subtask))

    change(answers, "_complete", trusting)


@mutant("engine: what tasks lost is swept together with what was decided", SIMULATION)
def _swept_winners() -> None:
    from epochal.engine import recovery, retention

    def all_of_it(sweep: Any) -> Any:
        def wrong(store: Any, participants: Any, scope: Any, manifest: Any) -> None:
            sweep(store, participants, scope, manifest.model_copy(update={"deltas": ()}))

        return wrong

    change(retention, "sweep_losers", all_of_it)
    change(recovery, "sweep_losers", all_of_it)


@mutant("catalog: an attempt that was fenced may still write", "tests/service/test_catalog.py")
def _no_fence() -> None:
    from epochal.service.catalog.branch_writer import BranchWriter

    change(BranchWriter, "own", lambda _: lambda self: self.lock())


@mutant("state: an aborted epoch's deltas stay", STATE)
def _deltas_stay() -> None:
    from epochal.backends.delta import DeltaBackend

    change(DeltaBackend, "abort", lambda _: lambda self, epoch, handles: None)


@mutant("files: written where readers look, before commit", FILES)
def _written_in_place() -> None:
    from epochal.backends.files import FilesBackend

    change(FilesBackend, "_staging", lambda _: lambda self, branch: self._path / "epoch=staging")


@mutant("files: an epoch is shown one file after the other", "tests/unit/test_backends_files.py")
def _shown_by_and_by() -> None:
    from epochal.backends import files

    def by_and_by(_: Any) -> Any:
        def wrong(self: Any, epoch: Any, staged: Any, final: Any) -> None:
            final.mkdir()
            for file in staged:
                (self._staging(epoch.branch) / file.staged).rename(final / file.final)
                files.GATHERED_ONE.hit(epoch.epoch)

        return wrong

    change(files.FilesBackend, "_publish", by_and_by)


@mutant("files: attempts of one subtask share a file", FILES)
def _shared_file() -> None:
    import uuid

    uuid.uuid4 = lambda: uuid.UUID(int=7)  # type: ignore[assignment]


@mutant("log: the sweep does not look at what is kept", DBMS)
def _log_swept() -> None:
    from epochal.backends.write_ahead_log import WriteAheadLog

    change(WriteAheadLog, "sweep", lambda sweep: lambda self, epoch, keep: sweep(self, epoch, ()))


@mutant("log: removed before it is known to be applied", KAFKA)
def _log_removed_early() -> None:
    from epochal.backends.kafka.backend import KafkaBackend

    def early(commit: Any) -> Any:
        def wrong(self: Any, epoch: Any, handles: Any) -> None:
            held = {handle.subtask: list(self._log.read(epoch, [handle])) for handle in handles}
            self._log.remove(epoch, handles)
            self._log.read = lambda _, mine: (batch for handle in mine for batch in held[handle.subtask])
            try:
                commit(self, epoch, handles)
            finally:
                del self._log.read

        return wrong

    change(KafkaBackend, "commit", early)


@mutant("kafka: the marker is not read", KAFKA)
def _marker_unread() -> None:
    from epochal.backends.kafka.committer import ShardCommitter

    def blind(_: Any) -> Any:
        def wrong(self: Any, work: Any) -> None:
            if self._producer is None:
                self._fence()
            self._apply(work, 0)

        return wrong

    change(ShardCommitter, "_commit", blind)


@mutant("kafka: the marker is written outside the transaction of the records", KAFKA)
def _marker_outside() -> None:
    from epochal.backends.kafka import committer

    def apart(end: Any) -> Any:
        def wrong(self: Any, work: Any, rows: int, complete: bool) -> None:
            producer = self._current()
            producer.patiently(producer.client.commit_transaction, self._place.timeout_seconds)
            committer.COMMITTED.hit(work.epoch)
            producer.client.begin_transaction()
            end(self, work, rows, complete)

        return wrong

    change(committer.ShardCommitter, "_end_transaction", apart)


@mutant("kafka: any marker will do, whatever epoch it names", KAFKA)
def _marker_gap() -> None:
    from epochal.backends.kafka.committer import ShardCommitter

    def careless(_: Any) -> Any:
        def wrong(self: Any, work: Any) -> None:
            if self._producer is None:
                self._fence()
            if not self._marker_known:
                self._read(wait=True)
            if self._marker is None:
                self._apply(work, 0)

        return wrong

    change(ShardCommitter, "_commit", careless)


@mutant("dbms: rows are applied outside the fence's transaction", DBMS)
def _outside_fence() -> None:
    from epochal.backends.dbms.backend import DbmsBackend

    def apart(_: Any) -> Any:
        def wrong(self: Any, epoch: Any, handles: Any) -> None:
            with self._access.transaction("apply") as connection:
                self._apply(connection, self._chunks(epoch, handles))
                connection.commit()
            with self._access.transaction("move the fence") as connection:
                self._fence.advance(connection, epoch)
                connection.commit()

        return wrong

    change(DbmsBackend, "commit", apart)


@mutant("dbms: the fence does not look at the attempt", DBMS)
def _attempt_ignored() -> None:
    from epochal.backends.dbms.fence import Fence

    def blind(advance: Any) -> Any:
        def wrong(self: Any, connection: Any, epoch: Any) -> Any:
            row = self._row(connection, epoch)
            return advance(self, connection, epoch if row is None else replace(epoch, attempt=row[0]))

        return wrong

    change(Fence, "advance", blind)


@mutant("dbms: the fence is not compared, only set", DBMS)
def _fence_only_set() -> None:
    import sqlalchemy as sa

    from epochal.backends.dbms.fence import Fence

    def set_only(_: Any) -> Any:
        def wrong(self: Any, connection: Any, epoch: Any) -> bool:
            return bool(self._update(connection, epoch, sa.true(), {"epoch": epoch.epoch}))

        return wrong

    change(Fence, "advance", set_only)


@mutant("hdfs: an upload is trusted without its length", "tests/contract/test_hdfs_trouble.py")
def _upload_trusted() -> None:
    from epochal.backends.hdfs.sink import HdfsBackend

    change(HdfsBackend, "_is_same", lambda _: lambda self, found, file: not found.is_folder)


@mutant("hdfs: a rename whose answer was lost is not looked at again", HDFS)
def _hdfs_rename_unchecked() -> None:
    from epochal.backends.hdfs.sink import HdfsBackend

    def blind(_: Any) -> Any:
        def wrong(self: Any, epoch: Any, handles: Any) -> None:
            import posixpath

            from epochal.backends.hdfs.sink import hdfs_files, shown_folder

            files = hdfs_files(handles)
            if files:
                self._publish(epoch, files, posixpath.join(self._path, shown_folder(epoch.epoch)))

        return wrong

    change(HdfsBackend, "commit", blind)


@mutant("state: what expires goes by the reader's clock, and not by the snapshot's", EXPIRY)
def _clock_of_the_reader() -> None:
    from time import time_ns

    from epochal.snapshots import key_walk, lineage
    from epochal.state.expiry import StateClock

    def by_now(_: Any) -> Any:
        def wrong(manifest: Any, table: Any) -> Any:
            return StateClock(event=time_ns() // 1000, processing=time_ns() // 1000)

        return wrong

    for module in (lineage, key_walk):
        change(module, "clock_of", by_now)


@mutant("state: views go by the latest clock there is, and not by that of their snapshot", STATE)
def _clock_of_the_latest() -> None:
    from epochal.state.expiry import StateClock
    from epochal.state.table import StateTable

    latest = StateClock(event=-(2**63), processing=0)

    def ahead(horizon: Any) -> Any:
        def wrong(self: Any, clock: Any) -> Any:
            nonlocal latest
            if clock is not None:
                latest = StateClock(max(latest.event, clock.event), max(latest.processing, clock.processing))
            return horizon(self, latest)

        return wrong

    change(StateTable, "horizon", ahead)


@mutant("state: new bases keep what has expired", STATE)
def _expired_rows_in_bases() -> None:
    from epochal.snapshots import compaction

    change(compaction, "without_expired", lambda _: lambda table, rows, clock: rows)


@mutant("state: a difference forgets what has expired between", EXPIRY)
def _difference_without_expiry() -> None:
    from epochal.snapshots import difference

    change(difference, "_expires_between", lambda _: lambda left, right, id: False)


@mutant("timers: those that wait are lost with the attempt", TIMERS)
def _timers_lost() -> None:
    from epochal.tasks.stored_timers import _Domain

    change(_Domain, "due", lambda _: lambda self: iter(()))


@mutant("timers: one that is set behind a fired one expires with the epoch", TIMERS)
def _timers_expired() -> None:
    from epochal.tasks.timers import Timers

    change(Timers, "_put", lambda put: lambda self, timer, due: put(self, timer, min(due, max(timer[1], due - 1))))


@mutant("timers: one that fired while the clock stood fires again", TIMERS)
def _timers_again() -> None:
    from epochal.tasks.stored_timers import _Domain

    change(_Domain, "_unexpired", lambda _: lambda self, due: [])


@mutant("watermarks: lateness is judged by what fires in the epoch", WATERMARKS)
def _late_by_fire() -> None:
    from epochal.state import watermarks

    def eager(advanced: Any) -> Any:
        def wrong(before: Any, inputs: Any) -> Any:
            found = advanced(before, inputs)
            return found.model_copy(update={"late": found.fire})

        return wrong

    change(watermarks, "_advanced", eager)


@mutant("watermarks: the hold of an operator is forgotten", WATERMARKS)
def _forgotten_hold() -> None:
    from epochal.state import watermarks

    change(watermarks, "_hold", lambda _: lambda graph, name: 0)


@mutant("watermarks: idleness is by the clock on the wall, also while no driver ran", WATERMARKS)
def _idle_by_wall_clock() -> None:
    from epochal.state import watermarks

    change(watermarks, "_partitions", lambda real: lambda *arguments: real(*arguments[:-1], watermarks.BEGINNING))


@mutant("aggregate: of changes only what comes counts", "tests/unit/tasks/test_aggregate_changes.py")
def _plus_without_minus() -> None:
    from epochal.operators.aggregate_changes import AggregateChangesWork

    def wrong(run: Any) -> Any:
        return lambda self, subtask, rows: run(self, subtask, (b.filter(pc.greater(b["_rows"], 0)) for b in rows))

    change(AggregateChangesWork, "run", wrong)
