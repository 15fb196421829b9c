"""Operator, union, broadcast and partial state under faults, with real tasks, state and recovery."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from epochal import BroadcastProcess, ListState, MapState, PartialProcess, UnkeyedProcess, ValueState
from epochal.backends.heap import HeapBackend
from epochal.backends.lmdb import LmdbBackend
from epochal.connectors import files
from epochal.contracts.configuration import Configuration, ExecutionOrders
from epochal.declarations.state import declared_states
from epochal.engine.job import Participants
from epochal.errors import EpochAborted, Fenced, IncompatibleState
from epochal.faults import Fault, FaultPoint, injected
from epochal.operators.declared import declared_reconciles
from epochal.operators.distribution import Distribution
from epochal.operators.process.any_work import ProcessAnyWork
from epochal.operators.process.broadcast_work import ProcessBroadcastWork
from epochal.operators.process.partial_work import ProcessPartialWork
from epochal.snapshots.reader import SnapshotReader
from epochal.snapshots.store import SnapshotStore
from epochal.state.table import Column
from epochal.tasks.subtask_rows import InputColumns
from epochal.testing.memory_catalog import MemoryCatalog, MemoryCatalogState
from tests.kit.local_engine.attempt import attempt
from tests.kit.local_engine.distribution import LocalInput
from tests.kit.local_engine.engine import LocalOperator, LocalPipeline
from tests.kit.local_engine.tasks import LocalTasks

ROWS = pa.schema([("name", pa.string()), ("n", pa.int64()), ("control", pa.bool_())])
KEY = (Column(name="name", type="string"),)
NUMBERS = pa.schema([("n", pa.int64())])


class Kept(UnkeyedProcess):
    kept = ListState("n bigint", scope="operator")
    shared = ListState("n bigint", scope="union")
    output = "n bigint"

    def process(self, rows: Iterable[Any], ctx: Any) -> Iterable[Any]:
        for row in rows:
            self.kept.append(row.n)
            if row.n % 3 == 0:
                self.shared.append(row.n)
        yield (len(self.shared),)


class Steered(BroadcastProcess):
    last = MapState(key="digit int", value="n bigint", scope="broadcast")
    history = ListState("n bigint", scope="broadcast")
    seen = ValueState("total bigint")
    output = "n bigint"

    def process_broadcast(self, row: Any, ctx: Any) -> None:
        self.last.put(row.n % 4, row.n if not SUBTASKS_DIFFER else ctx.subtask)
        self.history.append(row.n)

    def process(self, key: Any, rows: Any, ctx: Any) -> Any:
        self.seen.set((self.seen.get() or 0) + sum(row.n for row in rows))
        return [(len(self.last.items()),)]


class Parted(PartialProcess):
    sums = MapState(key="digit int", value="total bigint", scope="partial", reconcile="sum")
    numbers = ListState("n bigint", scope="partial", reconcile=lambda a, b: sorted(a + b))
    asked = ValueState("times bigint", scope="partial", reconcile=max)
    output = "n bigint"

    def process(self, rows: Iterable[Any], ctx: Any) -> None:
        for row in rows:
            self.sums.put(row.n % 4, self.sums.get(row.n % 4, 0) + row.n)
            self.numbers.append(row.n)

    def process_global(self, request: Any, ctx: Any) -> Any:
        self.asked.set((self.asked.get() or 0) + 1)
        return [(request.n,)]


SUBTASKS_DIFFER: list[int] = []


def tables_of(name: str, process: type, key: tuple[Column, ...]) -> Any:
    return tuple(state.table(name, key) for state in declared_states(process).values())


COLUMNS = tuple(ROWS.names)
TABLES = (
    *("kept.kept", "kept.shared", "steered.last", "steered.history", "steered.seen"),
    *("parted.sums", "parted.numbers", "parted.asked"),
)
OPERATORS = (
    LocalOperator(
        "kept",
        ProcessAnyWork(Kept, COLUMNS),
        (),
        tables_of("kept", Kept, ()),
        NUMBERS,
        (LocalInput(Distribution.TO_ANY, ("n",)),),
    ),
    LocalOperator(
        "steered",
        ProcessBroadcastWork(Steered, InputColumns.of(0, COLUMNS, ("name",), ("name",)), InputColumns.of(1, COLUMNS)),
        KEY,
        tables_of("steered", Steered, KEY),
        NUMBERS,
        (LocalInput(), LocalInput(Distribution.TO_ALL, ("n",), "control")),
    ),
    LocalOperator(
        "parted",
        ProcessPartialWork(Parted, COLUMNS, InputColumns.of(1, COLUMNS), InputColumns.of(0, COLUMNS)),
        (),
        tables_of("parted", Parted, ()),
        NUMBERS,
        (LocalInput(Distribution.TO_ALL, ("n",), "control"), LocalInput(Distribution.TO_ANY, ("n",))),
        reconcile=declared_reconciles("parted", Parted),
    ),
)


class Application:
    def __init__(self, folder: Path, backend: type[HeapBackend] | type[LmdbBackend]) -> None:
        self.folder, self.backend = folder, backend
        self.catalog = MemoryCatalogState()
        self.store = SnapshotStore(str(folder / "store"))
        self.numbers: list[int] = []
        (folder / "in").mkdir(parents=True)

    def fork(self, name: str, epoch: int) -> Application:
        """Return a branch from the snapshot of an epoch, over the same input and store, as of a fork or rollback."""
        branch = copy(self)
        head = next(record.manifest for record in self.catalog.decided if record.epoch == epoch)
        branch.catalog = MemoryCatalogState(application=name, branch=name, forked_from=head)
        return branch

    def add_rows(self, count: int = 12) -> None:
        numbers = range(len(self.numbers), len(self.numbers) + count)
        self.numbers += numbers
        rows = [{"name": f"k{n % 5}", "n": n, "control": n % 2 == 0} for n in numbers]
        file = self.folder / "in" / f"{len(list((self.folder / 'in').iterdir()))}.json"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def run(self, parallelism: int = 2, tolerable: int = 3, tasks: LocalTasks | None = None) -> None:
        number = self.catalog.attempt + 1
        configuration = Configuration(
            parallelism=parallelism, max_parallelism=8, tolerable_failed_epochs=tolerable, compact_after_epochs=3
        )
        orders = ExecutionOrders(
            application="test",
            execution="one",
            attempt=number,
            artifact="none",
            configuration=configuration,
            store=self.store.url,
            cache_directory=str(self.folder / "cache"),
        )
        pipeline = LocalPipeline({"in": ROWS}, OPERATORS, {})
        schema = "name string, n bigint, control boolean"
        participants = Participants(
            sources={"in": files.source(str(self.folder / "in"), format="json", schema=schema, max_files=1).make()},
            operators={each.name: self.backend(each.name, self.store, orders.cache_directory) for each in OPERATORS},
            sinks={},
            tables=pipeline.tables,
        )
        attempt(orders, pipeline, participants, MemoryCatalog(self.catalog, number), tasks or LocalTasks())

    def state(self, table: str) -> list[dict[str, Any]]:
        assert self.catalog.head is not None
        found: list[dict[str, Any]] = SnapshotReader(self.store, self.catalog.head).read(table).to_pylist()
        return found

    def check(self) -> None:
        numbers = self.numbers
        assert sorted(row["n"] for row in self.state("kept.kept")) == numbers
        assert sorted(row["n"] for row in self.state("kept.shared")) == [n for n in numbers if n % 3 == 0]
        control = [n for n in numbers if n % 2 == 0]
        assert {row["digit"]: row["n"] for row in self.state("steered.last")} == {n % 4: n for n in control}
        history = self.state("steered.history")
        assert [row["n"] for row in sorted(history, key=lambda row: row["_index"])] == control
        assert {row["_group"] for row in history} == {0}
        sums: Counter[int] = Counter()
        for row in self.state("parted.sums"):
            sums[row["digit"]] += row["total"]
        assert sums == {digit: sum(n for n in numbers if n % 4 == digit) for digit in range(4)}
        assert sorted(row["n"] for row in self.state("parted.numbers")) == numbers
        # Every instance that exists since the first epoch has processed every request.
        assert max(row["times"] for row in self.state("parted.asked")) == len(control)
        totals = {row["name"]: row["total"] for row in self.state("steered.seen")}
        assert totals == {f"k{n}": sum(other for other in numbers if other % 5 == n) for n in range(5)}


@contextmanager
def failing_at(name: str, error: Exception) -> Iterator[None]:
    fired: list[str] = []

    def fault(point: FaultPoint, epoch: int | None) -> None:
        if point.name == name and not fired:
            fired.append(name)
            raise error

    with injected(fault):
        yield
    assert fired == [name]


@pytest.fixture(params=[HeapBackend, pytest.param(LmdbBackend, marks=pytest.mark.long)])
def application(request: pytest.FixtureRequest, tmp_path: Path) -> Application:
    return Application(tmp_path, request.param)


DRIVER = ["E2.ran", "E3.collected", "E4.manifest-written", "E4.prepared", "E6.published", "E7.base-written"]
TASKS = ["T1.view-opened", "T3.before-delta", "T3.delta-written", "T3.pre-committed"]


def test_state_survives_faults_at_every_step_and_parallelism(application: Application) -> None:
    parallelisms = [2, 3, 1, 4, 2]
    for number, point in enumerate([*DRIVER, *TASKS]):
        application.add_rows()
        with failing_at(point, Fenced("the driver has died") if point in DRIVER else OSError("the disk has failed")):
            try:
                application.run(parallelisms[number % 5])
            except Fenced:
                application.run(parallelisms[(number + 1) % 5])
        application.run(parallelisms[(number + 2) % 5])
        application.check()


def test_killed_tasks_are_retried_with_the_same_rows(application: Application) -> None:
    application.add_rows()
    application.run()
    application.add_rows(24)
    killed = [Fault(point, "kill", once=str(application.folder / point)) for point in TASKS]
    application.run(3, tolerable=0, tasks=LocalTasks(killed, tries=1 + len(killed)))
    assert all((application.folder / point).exists() for point in TASKS)
    application.check()
    result = application.state("kept.kept")
    other = Application(application.folder / "undisturbed", application.backend)
    for count in (12, 24):
        other.add_rows(count)
        other.run(2 if count == 12 else 3)
    assert sorted(map(str, other.state("kept.kept"))) == sorted(map(str, result)), "retried tasks receive the same rows"


def test_partial_state_without_reconcile_keeps_its_instances(
    application: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    *others, parted = OPERATORS
    alone = tuple(table.model_copy(update={"reconcile": None}) for table in parted.tables)
    monkeypatch.setattr(sys.modules[__name__], "OPERATORS", (*others, replace(parted, tables=alone)))
    for parallelism in (2, 3):
        application.add_rows()
        application.run(parallelism)
    with pytest.raises(IncompatibleState, match=r"'parted.sums' is partial state with 3 instances and no reconcile"):
        application.run(2)
    application.add_rows()
    application.run(4)
    application.check()


def test_fork_and_rollback_continue_from_their_epoch(application: Application) -> None:
    for parallelism in (2, 3, 1, 2):
        application.add_rows()
        application.run(parallelism)
    shown = {table: application.state(table) for table in TABLES}
    first = next(record.epoch for record in application.catalog.decided)
    for name, epoch, parallelism in (("fork", first + 1, 3), ("rollback", first, 2)):
        branch = application.fork(name, epoch)
        with failing_at("E4.manifest-written", Fenced("the driver has died")), pytest.raises(Fenced):
            branch.run(parallelism)
        branch.run(parallelism + 1)
        branch.check()
        # The branch and its origin do not see each other's writes.
        assert {table: application.state(table) for table in TABLES} == shown
        assert branch.catalog.head != application.catalog.head


def test_diverging_broadcast_state_aborts_the_epoch(application: Application) -> None:
    application.add_rows()
    application.run()
    application.add_rows()
    before = application.catalog.head
    SUBTASKS_DIFFER.append(1)
    try:
        with pytest.raises(
            EpochAborted, match=r"'steered': process_broadcast\(\) wrote different broadcast state on subtask 1 and"
        ):
            application.run(tolerable=0)
    finally:
        SUBTASKS_DIFFER.clear()
    assert application.catalog.head == before
    application.run()
    application.check()
