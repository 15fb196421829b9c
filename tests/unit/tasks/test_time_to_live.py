"""State with a time to live: visible and stored values, compared with a model for any division into epochs."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from epochal import BatchFunction, BroadcastProcess, KeyedProcess, ListState, MapState, Pipeline, ValueState
from epochal.connectors import generator
from epochal.contracts.conditions import BEGINNING, microseconds
from epochal.declarations.state import declared_states
from epochal.errors import PipelineError
from epochal.operators.process.stored_timers import timer_tables
from epochal.operators.process.work import ProcessWork
from epochal.pipeline.stream import Stream
from epochal.state.table import Column

KEY = (Column(name="plane", type="string"),)
ROW = pa.schema(
    [("plane", pa.string()), ("n", pa.int64()), ("does", pa.string()), ("at", pa.timestamp("us", tz="UTC"))]
)
OUTPUT = pa.schema([("n", pa.int64()), ("seen", pa.string())])
TTL = 20
BETWEEN = 2
DOES = ("set", "append", "append", "put", "put", "remove", "clear", "read", "look")


class Living(KeyedProcess):
    output = "n bigint, seen string"
    order_by = "n"

    def process(self, key: Any, rows: Sequence[Any], ctx: Any) -> Iterator[Any]:
        for row in rows:
            match row.does:
                case "set":
                    self.value.set(row.n, 0)
                case "append":
                    self.list.append(row.n)
                case "put":
                    self.map.put(row.n % 3, (row.n, 0))
                case "remove":
                    self.map.remove(row.n % 3)
                case "clear":
                    self.value.clear()
                    self.list.clear()
                    self.list.append(row.n)
                case "read":
                    assert (row.n % 3 in self.map) == (self.map.get(row.n % 3) is not None)
                case "look":
                    value = self.value.get()
                    entries = [(digit, entry.n) for digit, entry in self.map.items()]
                    yield row.n, repr((value and value.n, self.list.get(), entries))


def living(ttl_on: str, refresh: str) -> type[KeyedProcess]:
    how: dict[str, Any] = {"ttl": f"{TTL} microseconds", "ttl_on": ttl_on, "refresh": refresh}
    states = {
        "value": ValueState("n bigint, m bigint", **how),
        "list": ListState("n bigint", **how),
        "map": MapState(key="digit bigint", value="n bigint, m bigint", **how),
    }
    made = type("Living", (Living,), {"__module__": __name__, **states})
    for name, state in states.items():
        state.__set_name__(made, name)
    return made


@dataclass
class Entry:
    """``touched`` is ``None`` for values written in this epoch."""

    n: int
    touched: int | None = None
    read: bool = False


@dataclass
class Key:
    """The state of one key. A value and a list are modelled as maps: with one key, and with ascending numbers as
    keys."""

    states: dict[str, dict[Any, Entry]] = field(default_factory=lambda: {"value": {}, "list": {}, "map": {}})
    before: dict[tuple[str, Any], int] = field(default_factory=dict)

    def begin(self, clock: int) -> None:
        """Delete expired values."""
        for entries in self.states.values():
            for name, entry in list(entries.items()):
                assert entry.touched is not None
                if entry.touched + TTL <= clock:
                    del entries[name]
        self.before = {
            (state, name): entry.touched
            for state, entries in self.states.items()
            for name, entry in entries.items()
            if entry.touched is not None and state != "list"
        }

    def apply(self, row: Mapping[str, Any]) -> str | None:
        """The values that a row reads."""
        n = row["n"]
        value, elements, entries = self.states.values()
        match row["does"]:
            case "set":
                value[None] = Entry(n)
            case "append":
                elements[n] = Entry(n)
            case "put":
                entries[n % 3] = Entry(n)
            case "remove":
                entries.pop(n % 3, None)
            case "clear":
                value.clear()
                elements.clear()
                elements[n] = Entry(n)
            case "read":
                for entry in [entries[n % 3]] if n % 3 in entries else []:
                    entry.read = True
            case "look":
                for state in self.states.values():
                    for entry in state.values():
                        entry.read = True
                in_order = [(digit, entries[digit].n) for digit in sorted(entries)]
                return repr((value[None].n if value else None, [entry.n for entry in elements.values()], in_order))
        return None

    def end(self, time: int, reads: bool) -> None:
        """``time``: the time of the call of the key."""
        for state, entries in self.states.items():
            for name, entry in entries.items():
                if entry.touched is None:
                    entry.touched = max(time, self.before.get((state, name), time))
                elif reads and entry.read and time - entry.touched >= BETWEEN:
                    entry.touched = time
                entry.read = False


@pytest.mark.parametrize("refresh", ["write", "read_and_write"])
@pytest.mark.parametrize("ttl_on", ["processing_time", "event_time"])
@pytest.mark.parametrize("number", range(2))
def test_rows_expire_after_their_ttl(
    ttl_on: str, refresh: str, number: int, run_seed: int, make_operator: Any, tmp_path: Path
) -> None:
    choose, keys = random.Random(run_seed * 10 + number), {name: Key() for name in "ab"}
    process = living(ttl_on, refresh)
    tables = tuple(state.table("operator", KEY) for state in declared_states(process).values())
    work = ProcessWork(process, tuple(ROW.names), "at")
    more = {"tables": tables, "order_by": ("n",), "kind": choose.choice(["heap", "lmdb"])}
    operator = make_operator(work=work, key=KEY, row=ROW, output=OUTPUT, **more)
    now, late, fire = 100, BEGINNING, BEGINNING
    for epoch in range(16):
        now += choose.choice([0, 1, 3, 15])
        late, fire = fire, max(fire, now - choose.randint(0, 30)) if epoch else BEGINNING
        operator.at(fire, now + 7 if ttl_on == "event_time" else now)
        rows = [
            {
                "plane": choose.choice("ab"),
                "n": epoch * 10 + n,
                "does": choose.choice(DOES),
                "at": now - choose.randint(0, 40),
            }
            for n in range(choose.choice([0, 2, 6]))
        ]
        expected = []
        for name, key in keys.items():
            mine = [row for row in rows if row["plane"] == name]
            key.begin(now if ttl_on == "processing_time" else late)
            seen = [(row["n"], key.apply(row)) for row in mine]
            expected += [{"n": n, "seen": text} for n, text in seen if text is not None]
            if mine:
                latest = max(late, *(row["at"] for row in mine))
                key.end(now if ttl_on == "processing_time" else latest, refresh == "read_and_write")
        assert sorted(operator.run(rows), key=lambda row: row["n"]) == sorted(expected, key=lambda row: row["n"])
        if choose.random() < 0.3:
            operator.parallelism = choose.choice([2, 4])
            operator.backend = type(operator.backend)("operator", operator.store, str(tmp_path / f"moved-{epoch}"))
    for table, state in zip(tables, ("value", "list", "map"), strict=True):
        clock = now if ttl_on == "processing_time" else fire
        stored = [
            (name, values[0], microseconds(values[-1]))
            for (name, *_), values in operator.state(table).items()
            if microseconds(values[-1]) + TTL > clock
        ]
        assert sorted(stored) == sorted(
            (name, entry.n, entry.touched)
            for name, key in keys.items()
            for entry in key.states[state].values()
            if entry.touched is not None and entry.touched + TTL > clock
        ), state


class Reading(KeyedProcess):
    value = ValueState("n bigint", ttl="20 microseconds", refresh="read_and_write")
    output = "n bigint, seen string"

    def process(self, key: Any, rows: Sequence[Any], ctx: Any) -> Iterator[Any]:
        for row in rows:
            if row.does == "set":
                self.value.set(row.n)
            yield row.n, repr(self.value.get())


def test_reads_rewrite_a_row_at_most_ten_times_per_ttl(make_operator: Any) -> None:
    (table,) = (state.table("operator", KEY) for state in declared_states(Reading).values())
    work = ProcessWork(Reading, tuple(ROW.names))
    operator = make_operator(work=work, key=KEY, row=ROW, output=OUTPUT, tables=(table,))
    written = []
    for now in (100, 101, 102, 103, 103, 104, 120, 140):
        operator.at(BEGINNING, now)
        does = "set" if now == 100 else "look"
        (answer,) = operator.run([{"plane": "a", "n": now, "does": does, "at": None}])
        written.append(sum(delta.file.rows for delta in operator.links[table.id][-1].deltas))
        assert answer["seen"] == ("None" if now == 140 else "100"), now
    assert written == [1, 0, 1, 0, 0, 1, 1, 0]


def test_visible_state_is_independent_of_the_previous_epochs_time(make_operator: Any) -> None:
    """No epoch ran for longer than the time to live: no snapshot without the value exists."""
    (table,) = (state.table("operator", KEY) for state in declared_states(Reading).values())
    work = ProcessWork(Reading, tuple(ROW.names))
    operator = make_operator(work=work, key=KEY, row=ROW, output=OUTPUT, tables=(table,))
    operator.at(BEGINNING, 100)
    operator.run([{"plane": "a", "n": 1, "does": "set", "at": None}])
    operator.at(BEGINNING, 120)
    (answer,) = operator.run([{"plane": "a", "n": 2, "does": "look", "at": None}])
    assert answer["seen"] == "None"


def test_a_write_at_an_earlier_event_time_keeps_the_expiry(make_operator: Any) -> None:
    process = living("event_time", "write")
    tables = tuple(state.table("operator", KEY) for state in declared_states(process).values())
    work = ProcessWork(process, tuple(ROW.names), "at")
    operator = make_operator(work=work, key=KEY, row=ROW, output=OUTPUT, tables=tables, order_by=("n",))
    for fire, at in ((BEGINNING, 130), (149, 110)):
        operator.at(fire, 1_000)
        operator.run([{"plane": "a", "n": n, "does": does, "at": at} for n, does in ((3, "set"), (4, "put"))])
    for fire, seen in ((150, "(3, [], [(1, 4)])"), (150, "(None, [], [])")):
        operator.at(fire, 1_000)
        (answer,) = operator.run([{"plane": "a", "n": 5, "does": "look", "at": 150}])
        assert answer["seen"] == seen


class Reminded(KeyedProcess):
    value = ValueState("n bigint", ttl="20 microseconds", ttl_on="event_time")
    output = "n bigint, seen string"

    def process(self, key: Any, rows: Sequence[Any], ctx: Any) -> Iterator[Any]:
        for row in rows:
            ctx.timer(row.at + timedelta(microseconds=30), name=row.does)
            yield row.n, repr(self.value.get())

    def on_timer(self, key: Any, at: Any, ctx: Any) -> None:
        if ctx.timer_name == "set":
            self.value.set(at.microsecond)


def test_the_ttl_of_a_write_in_a_timer_starts_at_the_timers_time(make_operator: Any) -> None:
    (table,) = (state.table("operator", KEY) for state in declared_states(Reminded).values())
    work = ProcessWork(Reminded, tuple(ROW.names), "at")
    tables = (table, *timer_tables("operator", KEY, has_event_time=True))
    operator = make_operator(work=work, key=KEY, row=ROW, output=OUTPUT, tables=tables)
    # Row times, the watermark that the epoch fires by, what its rows see. The timers are due at 130 and 131.
    epochs = [
        ([100], 101, "None"),
        ([101], 130, "None"),
        ([102], 149, "130"),
        ([103], 150, "130"),
        ([104], 150, "None"),
    ]
    for number, (times, fire, seen) in enumerate(epochs):
        operator.at(fire, 1_000)
        does = "set" if number == 0 else "look"
        answers = operator.run([{"plane": "a", "n": at, "does": does, "at": at} for at in times])
        assert [answer["seen"] for answer in answers] == [seen], number


def stream() -> Stream:
    return Pipeline("p").read("rows", generator.source({"n": "id", "at": "timestamp_seconds(id)"}))


class Late(KeyedProcess):
    kept = MapState(key="a int", value="m int", ttl="1 hour", ttl_on="event_time")
    output = "n int"

    def process(self, key: Any, rows: Sequence[Any], ctx: Any) -> None: ...


class Steered(BroadcastProcess):
    kept = ValueState("m int", ttl="1 hour", ttl_on="event_time")
    output = "n int"

    def process(self, key: Any, rows: Sequence[Any], ctx: Any) -> None: ...

    def process_broadcast(self, row: Any, ctx: Any) -> None: ...


class Batched(BatchFunction):
    kept = ValueState("m int", ttl="1 hour")
    output = "n int"

    def process_batch(self, batch: pa.Table, states: Any, ctx: Any) -> pa.Table:
        return batch


def test_an_unsupported_ttl_is_refused() -> None:
    with pytest.raises(PipelineError, match=r"ListState\(\): ttl is 'soon'"):
        ListState("n int", ttl="soon")
    with pytest.raises(PipelineError, match="only keyed state can expire"):
        ListState("n int", scope="operator", ttl="1 hour")
    with pytest.raises(PipelineError, match="which process_batch"):
        stream().key_by("n").process_batch(Batched)
    refused: list[Any] = [{"ttl_on": "event"}, {"refresh": "read"}]
    for wrong in refused:
        with pytest.raises(
            PipelineError, match=r"it must be one of '(processing_time|write)', '(event_time|read_and_write)'"
        ):
            ValueState("n int", ttl="1 hour", **wrong)
    with pytest.raises(PipelineError, match=r"no time to live\. Add ttl="):
        ValueState("n int", refresh="read_and_write")


def test_expiry_by_event_time_requires_event_time() -> None:
    with pytest.raises(
        PipelineError, match=r"Operator 'late': state 'kept' of Late has ttl_on='event_time'.*with_waterm"
    ):
        stream().key_by("n").process(Late)
    stream().with_watermark("at", "1 minute").key_by("n").process(Late)
    timed = stream().with_watermark("at", "1 minute")
    with pytest.raises(PipelineError, match="a BroadcastProcess has no event time"):
        timed.connect(timed.where("n > 1"), broadcast=True, order_by="n").key_by("n").process(Steered)
