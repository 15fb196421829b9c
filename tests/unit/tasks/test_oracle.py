"""State of tasks over several epochs compared with dictionaries, with retries, lost attempts and any batches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from epochal.declarations.author_classes import Context
from epochal.declarations.keyed import KeyedProcess
from epochal.declarations.state import ListState, MapState, ValueState, declared_states
from epochal.operators.process.work import ProcessWork
from epochal.state.table import Column

KEY = (Column(name="k", type="string"), Column(name="day", type="int"))
ROW = pa.schema(
    [("k", pa.string()), ("day", pa.int32()), ("at", pa.int64()), ("what", pa.string()), ("of", pa.string())]
)
OUTPUT = pa.schema([("k", pa.string()), ("day", pa.int32()), ("seen", pa.string())])


class Scripted(KeyedProcess):
    """Applies the operations in its rows to its states, and yields what it reads."""

    value = ValueState("at bigint, of string")
    single = ValueState("at bigint")
    list = ListState("of string")
    map = MapState(key="of string", value="at bigint")
    output = "k string, day int, seen string"
    order_by = "at"

    def process(self, key: Any, rows: Sequence[Any], ctx: Context) -> Iterable[Any]:
        for row in rows:
            match row.what:
                case "set":
                    self.value.set(at=row.at, of=row.of)
                    self.single.set(row.at)
                case "unset":
                    self.value.clear()
                    self.single.clear()
                case "append":
                    self.list.append(row.of)
                case "empty":
                    self.list.clear()
                case "put":
                    self.map[row.of] = row.at
                case "remove":
                    self.map.remove(row.of)
                case "forget":
                    self.map.clear()
                case "look":
                    value = self.value.get()
                    seen = (value and tuple(value), self.single.get(), self.list.get(), self.map.items())
                    yield key.k, key.day, repr(seen)
                case "peek":
                    yield key.k, key.day, repr((self.map.get(row.of, "none"), row.of in self.map, len(self.list)))


class Oracle:
    """The same operations on dictionaries."""

    def __init__(self) -> None:
        self.values: dict[Any, tuple[Any, ...]] = {}
        self.lists: dict[Any, list[str]] = {}
        self.maps: dict[Any, dict[str, int]] = {}

    def run(self, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        output = []
        for row in sorted(rows, key=lambda row: row["at"]):
            seen = self.step((row["k"], row["day"]), row["what"], row["at"], row["of"])
            if seen is not None:
                output.append({"k": row["k"], "day": row["day"], "seen": repr(seen)})
        return output

    def step(self, key: Any, what: str, at: int, of: str) -> Any:
        list_, map_ = self.lists.setdefault(key, []), self.maps.setdefault(key, {})
        match what:
            case "set":
                self.values[key] = (at, of)
            case "unset":
                self.values.pop(key, None)
            case "append":
                list_.append(of)
            case "empty":
                list_.clear()
            case "put":
                map_[of] = at
            case "remove":
                map_.pop(of, None)
            case "forget":
                map_.clear()
            case "look":
                value = self.values.get(key)
                # Keys are returned in the order of their bytes.
                return (value, value and value[0], list_, sorted(map_.items(), key=lambda item: item[0].encode()))
            case "peek":
                return (map_.get(of, "none"), of in map_, len(list_))
        return None

    def tables(self) -> list[dict[Any, Any]]:
        return [
            self.values,
            {key: value[:1] for key, value in self.values.items()},
            {(*key, index): (of,) for key, all_ in self.lists.items() for index, of in enumerate(all_)},
            {(*key, of): (at,) for key, all_ in self.maps.items() for of, at in all_.items()},
        ]


WHAT = ["set", "unset", "append", "empty", "put", "remove", "forget", "look", "peek"]
# Strings that are awkward as keys: empty, a beginning of another, with the bytes that the key codec escapes.
KEYS = [("", 1), ("a", 0), ("a\x00", 0), ("\U0001f6e9", -1)]
WORDS = ["", "a", "a\x00", "a\x01b", "ä"]
STEP = st.tuples(st.sampled_from(KEYS), st.sampled_from(WHAT), st.sampled_from(WORDS))
EPOCHS = st.lists(st.lists(STEP, max_size=60), min_size=2, max_size=5)


@pytest.mark.parametrize("kind", ["heap", "lmdb"])
@settings(max_examples=settings.default.max_examples // 5, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    epochs=EPOCHS,
    batch_rows=st.integers(1, 9),
    chunk_rows=st.integers(1, 20),
    subtasks_of_task=st.integers(1, 2),
    attempts=st.integers(1, 2),
)
def test_state_and_output_equal_the_oracle(
    make_operator: Any,
    kind: str,
    epochs: Any,
    batch_rows: int,
    chunk_rows: int,
    subtasks_of_task: int,
    attempts: int,
) -> None:
    tables = tuple(state.table("operator", KEY) for state in declared_states(Scripted).values())
    operator = make_operator(
        ProcessWork(Scripted, tuple(ROW.names), chunk_rows),
        KEY,
        ROW,
        OUTPUT,
        kind=kind,
        tables=tables,
        parallelism=2,
        order_by=("at",),
        batch_rows=batch_rows,
        subtasks_of_task=subtasks_of_task,
    )
    oracle = Oracle()
    at = 0
    for steps in epochs:
        rows = []
        for (k, day), what, of in steps:
            at += 1
            rows.append({"k": k, "day": day, "at": at, "what": what, "of": of})
        for _ in range(attempts):  # earlier attempts are lost, and must have no effect
            output, handles = operator.attempt(rows)
        operator.commit(handles)
        assert sorted(output, key=repr) == sorted(oracle.run(rows), key=repr)
        assert [operator.state(table) for table in tables] == oracle.tables()
