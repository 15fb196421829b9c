"""Shards of a database sink: which shard a row belongs to, and the same table as with one shard, whatever crashes."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epochal.backends.dbms import DbmsBackend
from epochal.backends.dbms.shard import parts_of
from epochal.backends.dbms.sharding import Sharding
from epochal.contracts.handle import Handle
from epochal.contracts.identity import EpochScope, TaskScope
from epochal.errors import SinkError
from epochal.faults import FaultPoint, injected
from epochal.testing.sink_contract import epoch
from tests.kit.databases import DbmsDatabase, manifest

CHANGES = pa.schema([("does", pa.string()), ("id", pa.int64()), ("name", pa.string())])

Change = tuple[str, int]
"""An operation and a key."""


@given(st.lists(st.integers(-5, 5)), st.integers(1, 5))
def test_rows_with_the_same_key_are_in_one_shard_in_their_order(keys: list[int], shards: int) -> None:
    rows = pa.table({"id": pa.array(keys, pa.int64()), "n": pa.array(range(len(keys)), pa.int64())})
    divided = [shard.to_pylist() for shard in Sharding(shards, ("id",)).split(rows)]
    assert sorted((row for shard in divided for row in shard), key=lambda row: row["n"]) == rows.to_pylist()
    for shard in divided:
        assert shard == sorted(shard, key=lambda row: row["n"])
    in_shard = {(row["id"], number) for number, shard in enumerate(divided) for row in shard}
    assert len(in_shard) == len({id for id, _ in in_shard})


@given(st.lists(st.integers()), st.integers(1, 5))
def test_rows_without_keys_are_divided_evenly(values: list[int], shards: int) -> None:
    rows = pa.table({"value": pa.array(range(len(values)), pa.int64())})
    divided = Sharding(shards).split(rows)
    assert pa.concat_tables(divided) == rows
    sizes = [shard.num_rows for shard in divided]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("type", "same", "uuid"),
    [
        (pa.string(), ["a", "a ", "a   "], False),
        (pa.large_string(), ["a", "a "], False),
        (pa.string(), [f"{'0' * 7}A-000b-000c-000d-00000000000e", f"{{{'0' * 7}a000b000c000d00000000000e}}"], True),
    ],
)
def test_spellings_of_one_key_are_in_one_shard(type: pa.DataType, same: list[str], uuid: bool) -> None:
    sharding = Sharding(64, ("id",), frozenset({"id"} if uuid else ()))
    divided = sharding.split(pa.table({"id": pa.array(same, type)}))
    assert [shard.num_rows for shard in divided if shard.num_rows] == [len(same)]


@pytest.mark.parametrize(
    "type",
    [
        *(pa.int64(), pa.int32(), pa.int16(), pa.string(), pa.binary(), pa.date32(), pa.timestamp("us", "UTC")),
        *(pa.decimal128(14, 2), pa.decimal128(30, 2)),
    ],
    ids=str,
)
def test_rows_are_spread_over_all_shards(type: pa.DataType) -> None:
    numbers = pa.array(range(3000), pa.int64() if pa.types.is_timestamp(type) else pa.int32())
    keys = numbers.cast(pa.string()).cast(type) if pa.types.is_binary(type) else numbers.cast(type)
    sizes = [shard.num_rows for shard in Sharding(3, ("id",)).split(pa.table({"id": keys}))]
    assert min(sizes) > 800


@given(st.integers(1, 6), st.integers(0, 6), st.sets(st.integers(0, 5)))
def test_each_fence_is_moved_by_exactly_one_part(shards: int, more: int, filled: set[int]) -> None:
    filled = {shard for shard in filled if shard < shards}
    segment = {"path": "a/b", "sha256": "", "bytes": 1, "rows": 1}
    payload = {"segments": [segment] * len(filled), "shards": shards, "shard_of_segment": sorted(filled)}
    handle = Handle(owner="out", subtask=0, rows=len(filled), bytes=0, payload=payload if filled else {})
    parts = parts_of(epoch(1), [handle], shards + more)
    assert sorted(shard for part in parts for shard in part.fences) == list(range(shards + more))
    assert [part.shard for part in parts] == (sorted(filled) or [0])
    assert all(sum(each.rows for each in part.handles) == (part.shard in filled) for part in parts)


@dataclass(frozen=True)
class Step:
    """An attempt that runs one epoch: the number of shards, the changes of the subtasks, and the hit of a fault point
    at which its commits crash."""

    shards: int
    changes: Sequence[Sequence[Change]]
    crash: int | None


CHANGE = st.tuples(st.sampled_from(["upsert", "upsert", "delete"]), st.integers(0, 7))
STEPS = st.builds(
    Step,
    shards=st.integers(1, 4),
    changes=st.lists(st.lists(CHANGE, max_size=8), min_size=1, max_size=2),
    crash=st.none() | st.integers(1, 20),
)


class Crash(BaseException):
    """Simulated death of the process."""


class Lives:
    """Attempts of one sink, each with its own number of shards. Parts are applied one after the other in this process,
    where a crash can be injected; the processes apply the same parts."""

    def __init__(self, database: DbmsDatabase) -> None:
        self.database = database
        self.attempt = 0
        self.number = 0
        self.changes = 0
        self.expected: dict[int, str] = {}
        self.pending: list[tuple[int, list[Handle]]] = []

    def run(self, step: Step) -> None:
        """Begin an attempt, decide one epoch, and commit what is decided until the crash. An epoch that crashed waits
        for the next attempt, as in a sink that is stopped."""
        backend = self.begin(step.shards)
        scope = self.scope(self.number + 1)
        handles = [self.written(backend, scope, subtask, changes) for subtask, changes in enumerate(step.changes)]
        self.number += 1
        self.database.store.write_manifest(manifest(self.number, backend.target, tuple(handles)))
        self.pending.append((self.number, handles))
        self.commit(step.crash)
        if not self.pending:
            self.check()

    def check(self) -> None:
        assert {row["id"]: row["name"] for row in self.database.visible()} == self.expected
        fences = self.database.rows("SELECT shard, epoch, attempt FROM _epochal_fence ORDER BY shard")
        assert [row["shard"] for row in fences] == list(range(len(fences)))
        assert {(row["epoch"], row["attempt"]) for row in fences} == {(self.number, self.attempt)}

    def begin(self, shards: int) -> DbmsBackend:
        self.attempt += 1
        self.database.writing = replace(self.database.writing, shards=shards)
        backend = self.database.make()
        backend.check(CHANGES)
        backend.recover(replace(self.scope(self.number), parent=None))
        return backend

    def commit(self, crash: int | None) -> None:
        """Commit the pending epochs in order."""
        hits = 0

        def count(point: FaultPoint, _epoch: int | None) -> None:
            nonlocal hits
            hits += point.name.startswith("E5.")
            if hits == crash:
                raise Crash

        self.database.writing = replace(self.database.writing, shards=1)
        committing = self.database.make()
        with injected(count), suppress(Crash):
            while self.pending:
                number, handles = self.pending[0]
                committing.commit(self.scope(number), handles)
                self.pending.pop(0)
        self.database.end(committing)

    def written(self, backend: DbmsBackend, scope: EpochScope, subtask: int, changes: Sequence[Change]) -> Handle:
        transaction = backend.start(TaskScope(scope, "out", subtask))
        for does, id in changes:
            self.changes += 1
            name = f"{self.changes}"
            row = {"does": does, "id": id, "name": name}
            transaction.write(pa.RecordBatch.from_pylist([row], schema=CHANGES))
            self.expected.pop(id, None)
            if does == "upsert":
                self.expected[id] = name
        return transaction.pre_commit()

    def scope(self, number: int) -> EpochScope:
        return replace(epoch(number), attempt=self.attempt)


@settings(max_examples=25, deadline=None)
@given(st.lists(STEPS, min_size=1, max_size=5))
def test_any_numbers_of_shards_and_any_crash_leave_the_table_of_one_shard(steps: list[Step]) -> None:
    """The number of shards changes at any attempt, also while an epoch is committed in a part of its shards."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as monkeypatch:
        database = DbmsDatabase(
            f"sqlite:///{folder}/out.sqlite", Path(folder), monkeypatch, keys=("id",), operation="does"
        )
        lives = Lives(database)
        try:
            for step in steps:
                lives.run(step)
            lives.begin(1)
            lives.commit(None)
            lives.check()
        finally:
            database.close()


@pytest.fixture
def lives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lives:
    url = f"sqlite:///{tmp_path / 'out.sqlite'}"
    return Lives(DbmsDatabase(url, tmp_path, monkeypatch, keys=("id",), operation="does"))


ALL = [("upsert", id) for id in range(8)]


def test_a_lost_row_of_a_shard_is_detected(lives: Lives) -> None:
    lives.run(Step(3, [ALL], None))
    lives.database.run("DELETE FROM _epochal_fence WHERE shard = 2")
    with pytest.raises(SinkError, match="has lost the row of branch main"):
        lives.begin(3)
    lives.database.close()


def test_an_epoch_given_up_in_a_part_of_its_shards_moves_all_fences(lives: Lives) -> None:
    """An administrator drops the rows of an epoch that one of its shards has already committed."""
    lives.run(Step(3, [ALL], crash=4))  # the first hit in the second transaction
    committed = lives.database.visible()
    assert 0 < len(committed) < len(ALL)
    lives.pending = [(1, [])]
    lives.expected = {row["id"]: row["name"] for row in committed}
    lives.commit(None)
    lives.check()
    lives.run(Step(2, [ALL], None))
    lives.database.close()


def test_an_epoch_that_is_committed_again_after_a_later_one_changes_nothing(lives: Lives) -> None:
    backend = lives.begin(3)
    handles = [lives.written(backend, lives.scope(1), 0, ALL)]
    lives.database.store.write_manifest(manifest(1, backend.target, tuple(handles)))
    lives.number, lives.pending = 1, [(1, handles)]
    lives.commit(None)
    lives.check()
    lives.run(Step(3, [ALL], None))
    lives.pending = [(1, handles)]
    lives.commit(None)
    lives.check()
    lives.database.close()
