"""Operators with numbers of subtasks of their own equal a loop over all rows, for any epochs, failures, rescalings of
single operators, rollbacks and forks."""

from __future__ import annotations

from collections import Counter
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
from hypothesis import given

from epochal import KeyedProcess, PartialProcess, Pipeline, ValueState
from epochal.connectors import console, generator
from tests.kit.lives import DISRUPTIONS, MAX_PARALLELISM, PARALLELISM, Life, Row, Step, cut, examples, struct

ROWS = pa.schema([("key", pa.int64()), ("n", pa.int64()), ("at", pa.int64())])
ASKED = pa.schema([("id", pa.int64())])
OPERATORS = ("numbered", "seen", "totals")
ROW = st.fixed_dictionaries({"key": st.integers(0, 9), "n": st.integers(0, 20)})
NUMBERS = st.dictionaries(st.sampled_from(OPERATORS), st.integers(1, MAX_PARALLELISM))
STEPS = st.lists(st.builds(Step, DISRUPTIONS, PARALLELISM, st.none(), NUMBERS), min_size=2, max_size=6)


class Numbered(KeyedProcess):
    """The rows of a key, numbered from 1."""

    count = ValueState(struct(rows="long"))
    output = struct(n="long", number="long")
    order_by = "at"

    def process(self, key: Any, rows: Any, ctx: Any) -> Any:
        number = self.count.get() or 0
        for row in rows:
            number += 1
            yield row.n, number
        self.count.set(number)


class Seen(KeyedProcess):
    """The sum of the numbers of an ``n``."""

    sum = ValueState(struct(numbers="long"))
    output = struct(n="long")

    def process(self, key: Any, rows: Any, ctx: Any) -> Any:
        self.sum.set((self.sum.get() or 0) + sum(row.number for row in rows))
        return []


class Totals(PartialProcess):
    """The number of rows and the sum of their ``n``, over all instances."""

    total = ValueState(struct(rows="long", sum="long"), scope="partial", reconcile="sum")
    answer = struct(rows="long", sum="long")
    output = struct(id="long", rows="long", sum="long")

    def process(self, rows: Any, ctx: Any) -> Any:
        for row in rows:
            before = self.total.get()
            self.total.set((1, row.n) if before is None else (before.rows + 1, before.sum + row.n))

    def process_global(self, request: Any, ctx: Any) -> Any:
        total = self.total.get()
        return (0, 0) if total is None else (total.rows, total.sum)

    def merge(self, request: Any, answers: Any, ctx: Any) -> Any:
        yield request.id, sum(answer.rows for answer in answers), sum(answer.sum for answer in answers)


def application() -> Pipeline:
    pipeline = Pipeline("scaled")
    rows = pipeline.read("rows", generator.source(dict.fromkeys(ROWS.names, "id")))
    numbered = rows.key_by("key").process(Numbered, "numbered")
    numbered.write("out", console.sink())
    numbered.key_by("n").process(Seen, "seen").write("nothing", console.sink())
    asked = pipeline.read("asked", generator.source({"id": "id"}))
    rows.process_partial(Totals, "totals", requests=asked).write("totals", console.sink())
    return pipeline


def checked(life: Life, rows: list[Row]) -> list[tuple[int, int]]:
    """Compare the state with ``rows``. Returns the rows that the sink must show."""
    counts, seen = Counter[int](), Counter[int]()
    out = []
    for row in rows:
        counts[row["key"]] += 1
        out.append((row["n"], counts[row["key"]]))
        seen[row["n"]] += counts[row["key"]]
    assert {row["key"]: row["rows"] for row in life.state("numbered.count")} == counts
    assert {row["n"]: row["numbers"] for row in life.state("seen.sum")} == seen
    totals = life.state("totals.total")
    assert sum(row["rows"] for row in totals) == len(rows)
    assert sum(row["sum"] for row in totals) == sum(row["n"] for row in rows)
    return sorted(out)


@examples(25)
@given(
    rows=st.lists(ROW, min_size=5, max_size=40),
    cuts=st.lists(st.integers(0, 100), min_size=2, max_size=6),
    steps=STEPS,
    backend=st.sampled_from(("heap", "lmdb")),
    keeps_caches=st.booleans(),
    again=st.integers(0, 5),
    numbers=NUMBERS,
)
def test_operators_with_numbers_of_their_own_equal_a_loop(
    rows: list[dict[str, int]],
    cuts: list[int],
    steps: list[Step],
    backend: str,
    keeps_caches: bool,
    again: int,
    numbers: dict[str, int],
) -> None:
    numbered = [{**row, "at": at} for at, row in enumerate(rows)]
    with Life(
        application(),
        {"rows": ROWS, "asked": ASKED},
        state_backend=backend,
        keeps_caches=keeps_caches,
        compact_after_epochs=2,
    ) as life:
        life.live([{"rows": each, "asked": [{"id": id}]} for id, each in enumerate(cut(numbered, cuts))], steps)
        assert sorted((row["n"], row["number"]) for row in life.all_of("out")) == checked(life, numbered)
        answered = life.all_of("totals")
        assert sorted(row["id"] for row in answered) == list(range(len(cuts) + 1))
        for row in answered:
            assert row["sum"] == sum(each["n"] for each in numbered[: row["rows"]])
        manifests = life.manifests
        for manifest in manifests:
            for delta in manifest.deltas:
                assert delta.parallelism == manifest.parallelism_of(delta.table.partition(".")[0])
        life.parallelisms = numbers
        life.continue_from(manifests[again % len(manifests)].epoch, "again")
        life.settle()
        checked(life, numbered)
        for name, number in numbers.items():
            assert all(manifest.parallelism_of(name) == number for manifest in life.manifests)
