"""T2 of ``process``: the author's function over rows, state and output."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from epochal.backends.heap import HeapBackend
from epochal.contracts.identity import TaskScope
from epochal.contracts.state import StateTransaction
from epochal.declarations.author_classes import Context
from epochal.declarations.keyed import KeyedProcess
from epochal.declarations.state import ListState, MapState, ValueState, declared_states
from epochal.errors import HandlesIncomplete, SnapshotError
from epochal.operators.process.work import ProcessWork
from epochal.state.table import Column

KEY = (Column(name="plane", type="string"),)
ROW = pa.schema([("plane", pa.string()), ("delay", pa.int32())])
OUTPUT = pa.schema([("plane", pa.string()), ("total", pa.int64())])


class Total(KeyedProcess):
    total = ValueState("total bigint, epochs int")
    output = "plane string, total bigint"

    def process(self, key: Any, rows: Sequence[Any], ctx: Context) -> Iterable[Any]:
        old = self.total.get()
        total, epochs = (old.total, old.epochs) if old else (0, 0)
        total += sum(row.delay for row in rows)
        if total < 0:
            self.total.clear()
        else:
            self.total.set(total, epochs + 1)
        yield key.plane, total


def tables(process: type[KeyedProcess], key: Sequence[Column] = KEY) -> Any:
    return tuple(state.table("operator", tuple(key)) for state in declared_states(process).values())


@pytest.fixture
def operator(make_operator: Any) -> Callable[..., Any]:
    def make(process: type[KeyedProcess], **more: Any) -> Any:
        more = {"row": ROW, "output": OUTPUT, "key": KEY, "tables": tables(process), **more}
        return make_operator(**{"work": ProcessWork(process, tuple(more["row"].names)), **more})

    return make


def rows(**delays: Sequence[int]) -> list[dict[str, Any]]:
    return [{"plane": plane, "delay": delay} for plane, of_plane in delays.items() for delay in of_plane]


def totals(output: list[dict[str, Any]]) -> dict[str, int]:
    found = {row["plane"]: row["total"] for row in output}
    assert len(found) == len(output)
    return found


def test_state_is_kept_between_epochs(operator: Any) -> None:
    total = operator(Total)
    assert totals(total.run(rows(a=[1, 2], b=[5]))) == {"a": 3, "b": 5}
    assert total.run(rows(a=[10])) == [{"plane": "a", "total": 13}]
    assert total.run([]) == []
    assert total.state(total.tables[0]) == {("a",): (13, 2), ("b",): (5, 1)}


def test_cleared_state_is_deleted(operator: Any) -> None:
    total = operator(Total)
    total.run(rows(a=[1], b=[1]))
    total.run(rows(a=[-2], c=[-1]))
    assert total.state(total.tables[0]) == {("b",): (1, 1)}
    assert total.run(rows(a=[4])) == [{"plane": "a", "total": 4}]


def test_a_repeated_task_has_the_same_result_and_no_side_effects(operator: Any) -> None:
    total = operator(Total)
    total.run(rows(a=[1], b=[2]))
    first, _ = total.attempt(rows(a=[1], c=[1]))
    second, handles = total.attempt(rows(a=[1], c=[1]))
    assert first == second
    total.commit(handles)
    assert total.state(total.tables[0]) == {("a",): (2, 2), ("b",): (2, 1), ("c",): (1, 1)}


def test_every_subtask_returns_a_handle_and_writes_only_changes(operator: Any) -> None:
    total = operator(Total)
    _, handles = total.attempt([])
    assert sorted(handle.subtask for handle in handles) == [0, 1, 2, 3]
    assert [handle.rows for handle in handles] == [0, 0, 0, 0]
    assert all(handle.payload["deltas"] == [] for handle in handles)


def test_the_handle_row_is_the_last_of_its_subtask(operator: Any) -> None:
    total = operator(Total, subtasks_of_task=4)
    input = rows(**{plane: [1] for plane in "abcdefgh"})
    subtasks = {row["plane"]: row["_subtask"] for row in total.table(input).to_pylist()}
    (batches,) = total.batches(input)
    answered: list[int] = []
    for row in pa.Table.from_batches(total.task()(iter(batches))).to_pylist():
        if row["_handle"] is None:
            assert subtasks[row["plane"]] == len(answered)
        else:
            answered.append(row["_subtask"])
    assert answered == [0, 1, 2, 3]


def test_rows_are_complete_and_sorted_for_any_batch_sizes(operator: Any) -> None:
    class Seen(KeyedProcess):
        output = "plane string, delays string"

        def process(self, key: Any, rows: Sequence[Any], ctx: Context) -> Iterable[Any]:
            yield {"delays": ",".join(str(row.delay) for row in rows), "plane": key.plane}

    output = pa.schema([("plane", pa.string()), ("delays", pa.string())])
    input = rows(a=[3, 1, 2, 9, 8, 7, 6], b=[2, 1], c=[5])
    for batch_rows in (1, 2, 3, 100):
        seen = operator(Seen, output=output, order_by=("delay",), batch_rows=batch_rows)
        given = {row["plane"]: row["delays"] for row in seen.attempt(input)[0]}
        assert given == {"a": "1,2,3,6,7,8,9", "b": "1,2", "c": "5"}


def test_list_and_map_state_store_their_elements_and_entries(operator: Any) -> None:
    class Recent(KeyedProcess):
        recent = ListState("delay int")
        counts = MapState(key="delay int", value="times int")
        output = "plane string, total bigint"

        def process(self, key: Any, rows: Sequence[Any], ctx: Context) -> None:
            for row in rows:
                if row.delay == 0:
                    self.recent.clear()
                    self.counts.clear()
                elif row.delay < 0:
                    self.counts.remove(-row.delay)
                    assert -row.delay not in self.counts
                else:
                    self.recent.append(row.delay)
                    self.counts[row.delay] = self.counts.get(row.delay, 0) + 1
            assert len(self.recent) == len(self.recent.get())

    recent = operator(Recent, order_by=())
    elements, counts = recent.tables
    recent.run(rows(a=[1, 1, 2], b=[7]))
    recent.run(rows(a=[3], b=[8]))
    assert recent.state(elements) == {
        **{("a", index): (delay,) for index, delay in enumerate([1, 1, 2, 3])},
        ("b", 0): (7,),
        ("b", 1): (8,),
    }
    assert recent.state(counts) == {("a", 1): (2,), ("a", 2): (1,), ("a", 3): (1,), ("b", 7): (1,), ("b", 8): (1,)}
    recent.run(rows(a=[0, 5], b=[-7, -100]))
    assert recent.state(elements) == {("a", 0): (5,), ("b", 0): (7,), ("b", 1): (8,)}
    assert recent.state(counts) == {("a", 5): (1,), ("b", 8): (1,)}


def test_maps_are_read_in_key_order(operator: Any) -> None:
    class Words(KeyedProcess):
        words = MapState(key="language string, word string", value="times int, last timestamp")
        output = "plane string, total bigint"

        def process(self, key: Any, rows: Sequence[Any], ctx: Context) -> Iterable[Any]:
            stored = self.words.items()
            assert [entry for entry, _ in stored] == sorted(entry for entry, _ in stored)
            assert all(entry.language == "en" and value.last.tzinfo is not None for entry, value in stored)
            for row in rows:
                self.words[("en", f"w{row.delay}")] = (row.delay, datetime(2013, 1, 1, tzinfo=UTC))
            assert self.words.keys() == sorted(self.words.keys())
            yield key.plane, len(self.words.items())

    words = operator(Words)
    assert totals(words.run(rows(a=[3, 1], b=[2]))) == {"a": 2, "b": 1}
    assert totals(words.run(rows(a=[2, 1], b=[2]))) == {"a": 3, "b": 1}


@pytest.mark.parametrize("kind", ["heap", "lmdb"])
def test_null_is_a_key_in_every_kind_of_state(operator: Any, kind: str) -> None:
    class Kept(KeyedProcess):
        total = ValueState("total bigint")
        delays = ListState("delay int")
        times = MapState(key="delay int", value="times int")
        output = "plane string, day date, total bigint"

        def process(self, key: Any, rows: Sequence[Any], ctx: Context) -> Iterable[Any]:
            assert all((row.plane, row.day) == tuple(key) for row in rows)
            for row in rows:
                self.total.set((self.total.get() or 0) + row.delay)
                self.delays.append(row.delay)
                self.times.put(row.delay, self.times.get(row.delay, 0) + 1)
            assert sum(self.delays.get()) == self.total.get()
            assert sum(times for _, times in self.times.items()) == len(self.delays)
            yield key.plane, key.day, self.total.get()

    key = (*KEY, Column(name="day", type="date"))
    row = pa.schema([("plane", pa.string()), ("day", pa.date32()), ("delay", pa.int32())])
    output = pa.schema([*row.remove(2), ("total", pa.int64())])
    kept = operator(Kept, key=key, row=row, output=output, tables=tables(Kept, key), kind=kind, batch_rows=2)
    day = date(2013, 1, 1)
    keys = [(None, None), (None, day), ("", None), ("", day), ("a", day), ("a", None)]
    for epoch in range(1, 4):
        input = [{"plane": plane, "day": day, "delay": number} for plane, day in keys for number in (7, 7, epoch)]
        found = {(line["plane"], line["day"]): line["total"] for line in kept.run(input)}
        assert found == dict.fromkeys(keys, 14 * epoch + sum(range(epoch + 1)))
    total, delays, times = (kept.state(table) for table in kept.tables)
    assert total.keys() == set(keys)
    assert {key[:2] for key in delays} == {key[:2] for key in times} == set(keys)
    assert times[None, None, 7] == (6,)


def test_data_rows_without_a_mark_row_are_refused(operator: Any) -> None:
    total = operator(Total)
    table = total.table(rows(a=[1]))
    orphans = table.filter(pa.compute.is_null(table["_mark"]))
    with pytest.raises(HandlesIncomplete, match="without its mark"):
        list(total.task()(iter(orphans.to_batches())))


def test_a_duplicate_mark_row_is_refused(operator: Any) -> None:
    total = operator(Total)
    with pytest.raises(HandlesIncomplete, match="received the mark of subtask"):
        list(total.task()(iter(total.table([]).to_batches() * 2)))


def test_keys_can_have_columns_of_several_types(operator: Any) -> None:
    class Count(KeyedProcess):
        count = ValueState("count int")
        output = "plane string, total bigint"

        def process(self, key: Any, rows: Sequence[Any], ctx: Context) -> Iterable[Any]:
            self.count.set((self.count.get() or 0) + len(rows))
            yield f"{key.day:%d}/{key.number}/{key.time:%H%z}", self.count.get()

    types = {"day": "date", "number": "bigint", "time": "timestamp"}
    key = [Column(name=name, type=type) for name, type in types.items()]
    row = pa.schema([("day", pa.date32()), ("number", pa.int64()), ("time", pa.timestamp("us", tz="UTC"))])
    count = operator(Count, key=key, row=row, tables=tables(Count, key))
    time = datetime(2013, 1, 2, 5, tzinfo=UTC)
    input = [{"day": time.date(), "number": number, "time": time} for number in (1, 1, 2)]
    for epoch in (1, 2):
        assert totals(count.run(input)) == {"02/1/05+0000": 2 * epoch, "02/2/05+0000": epoch}


@pytest.mark.parametrize("look", [1, 2, 3, 7])
def test_entries_read_ahead_belong_to_the_right_key(operator: Any, look: int) -> None:
    class Sometimes(KeyedProcess):
        delays = ListState("delay int")
        output = "plane string, total bigint"

        def process(self, key: Any, rows: Sequence[Any], ctx: Context) -> Iterable[Any]:
            if ctx.epoch == 1:
                self.delays.extend(row.delay for row in rows)
            elif rows[0].delay % look == 0:
                yield key.plane, sum(self.delays.get())

    work = ProcessWork(Sometimes, tuple(ROW.names), chunk_rows=11)
    sometimes = operator(Sometimes, parallelism=1, work=work)
    input = rows(**{f"plane{number:03}": [number] * (number % 3 + 1) for number in range(60)})
    sometimes.run(input)
    wanted = {f"plane{number:03}": number * (number % 3 + 1) for number in range(0, 60, look)}
    assert totals(sometimes.run(input)) == wanted


def test_a_key_with_more_rows_than_a_chunk_is_called_once(operator: Any) -> None:
    total = operator(Total, work=ProcessWork(Total, tuple(ROW.names), chunk_rows=4), batch_rows=2)
    assert totals(total.run(rows(a=range(50), b=range(3), c=[1]))) == {"a": 1225, "b": 3, "c": 1}
    assert total.state(total.tables[0])[("a",)] == (1225, 1)


@dataclass(frozen=True)
class WatchedBackend:
    """A heap backend that records its transactions."""

    backend: HeapBackend
    started: list[StateTransaction]

    def start(self, task: TaskScope) -> StateTransaction:
        self.started.append(self.backend.start(task))
        return self.started[-1]


def test_an_abandoned_task_discards_its_transaction(operator: Any) -> None:
    total = operator(Total)
    watched = WatchedBackend(total.backend, [])
    total.backend = watched
    batches = total.batches(rows(**{plane: [1] for plane in "abcdefgh"}))[0]
    output = total.task()(iter(batches))
    next(output)
    output.close()
    (transaction,) = watched.started
    with pytest.raises(SnapshotError, match="ended"):
        transaction.pre_commit()
    assert list(Path(total.store.url).rglob("*.parquet")) == []
