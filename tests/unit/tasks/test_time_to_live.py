"""State with a time to live: what a key sees, and what is stored, against a model, over any epochs."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from epochal import BatchFunction, KeyedProcess, ListState, MapState, Pipeline, ValueState
from epochal.connectors import generator
from epochal.contracts.conditions import BEGINNING, microseconds
from epochal.declarations.state import declared_states
from epochal.errors import PipelineError
from epochal.operators.process import ProcessWork
from epochal.state.table import Column

KEY = (Column(name="plane", type="string"),)
ROW = pa.schema([("plane", pa.string()), ("n", pa.int64()), ("does", pa.string())])
OUTPUT = pa.schema([("plane", pa.string()), ("seen", pa.string())])
TTL = 10


class Living(KeyedProcess):
    value = ValueState("n bigint, m bigint", ttl="10 microseconds")
    list = ListState("n bigint", ttl="10 microseconds")
    map = MapState(key="digit bigint", value="n bigint, m bigint", ttl="10 microseconds")
    output = "plane string, seen string"
    order_by = "n"

    def process(self, key: Any, rows: Sequence[Any], ctx: Any) -> Iterator[Any]:
        yield key.plane, repr((self.value.get() and self.value.get().n, self.list.get(), self.entries()))
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

    def entries(self) -> list[tuple[int, int]]:
        return [(digit, value.n) for digit, value in self.map.items()]


class Model:
    """Of each key what was written when; a read leaves out what the parent's epoch time has reached."""

    def __init__(self) -> None:
        self.value: dict[str, tuple[int, int]] = {}
        self.list: dict[str, list[tuple[int, int]]] = {}
        self.map: dict[str, dict[int, tuple[int, int]]] = {}

    def expire(self, clock: int) -> None:
        self.value = {key: value for key, value in self.value.items() if clock < value[1] + TTL}
        self.list = {key: [each for each in all if clock < each[1] + TTL] for key, all in self.list.items()}
        for key, entries in self.map.items():
            self.map[key] = {digit: value for digit, value in entries.items() if clock < value[1] + TTL}

    def seen(self, key: str) -> str:
        entries = [(digit, n) for digit, (n, _) in sorted(self.map.get(key, {}).items())]
        return repr((self.value.get(key, (None,))[0], [n for n, _ in self.list.get(key, [])], entries))

    def apply(self, row: dict[str, Any], now: int) -> None:
        key, n = row["plane"], row["n"]
        match row["does"]:
            case "set":
                self.value[key] = (n, now)
            case "append":
                self.list.setdefault(key, []).append((n, now))
            case "put":
                self.map.setdefault(key, {})[n % 3] = (n, now)
            case "remove":
                self.map.setdefault(key, {}).pop(n % 3, None)
            case "clear":
                self.value.pop(key, None)
                self.list[key] = [(n, now)]


@pytest.mark.parametrize("number", range(4))
def test_what_was_not_written_for_so_long_is_gone(
    number: int, run_seed: int, make_operator: Any, tmp_path: Path
) -> None:
    choose, model = random.Random(run_seed * 10 + number), Model()
    tables = tuple(state.table("operator", KEY) for state in declared_states(Living).values())
    work = ProcessWork(Living, tuple(ROW.names))
    more = {"tables": tables, "order_by": ("n",), "kind": choose.choice(["heap", "lmdb"])}
    operator = make_operator(work=work, key=KEY, row=ROW, output=OUTPUT, **more)
    now = 100
    for epoch in range(12):
        now += choose.choice([0, 1, 3, 8])
        operator.at(BEGINNING, now)
        rows = [
            {"plane": choose.choice("ab"), "n": epoch * 10 + n, "does": choose.choice(DOES)}
            for n in range(choose.choice([0, 2, 6]))
        ]
        expected = {row["plane"]: model.seen(row["plane"]) for row in rows}
        assert {row["plane"]: row["seen"] for row in operator.run(rows)} == expected, epoch
        for row in rows:
            model.apply(row, now)
        model.expire(now)
        if choose.random() < 0.3:
            operator.parallelism = choose.choice([2, 4])
            operator.backend = type(operator.backend)("operator", operator.store, str(tmp_path / f"moved-{epoch}"))
    stored = operator.state(tables[0])
    assert {key: n for (key,), (n, _, at) in stored.items() if microseconds(at) + TTL > now} == {
        key: n for key, (n, _) in model.value.items()
    }


DOES = ("set", "append", "append", "put", "put", "remove", "clear", "read")


def test_a_ttl_that_cannot_be_kept_is_refused() -> None:
    with pytest.raises(PipelineError, match=r"ListState\(\): ttl is 'soon'"):
        ListState("n int", ttl="soon")
    with pytest.raises(PipelineError, match="only keyed state has one"):
        ListState("n int", scope="operator", ttl="1 hour")
    with pytest.raises(PipelineError, match="which process_batch"):
        Pipeline("p").read("rows", generator.source({"n": "id"})).key_by("n").process_batch(Batched)


class Batched(BatchFunction):
    kept = ValueState("m int", ttl="1 hour")
    output = "n int"

    def process_batch(self, batch: pa.Table, states: Any, ctx: Any) -> pa.Table:
        return batch
