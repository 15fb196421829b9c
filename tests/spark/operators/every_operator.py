"""One pipeline for each kind of operator: ``rows`` in, into the sink ``out``.

A new kind of operator is added here, and runs through the whole suite (test_every_operator.py).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, ClassVar

import pyarrow as pa

from epochal import (
    BatchFunction,
    BroadcastProcess,
    KeyedProcess,
    ListState,
    MapState,
    PartialProcess,
    Pipeline,
    To,
    UnkeyedProcess,
    ValueState,
)
from epochal.connectors import console, generator
from epochal.declarations.entry import Entry
from epochal.declarations.windows import session, sliding, tumbling
from epochal.operators.entries.plan import AnswersOperator
from epochal.pipeline import kinds
from epochal.pipeline.graph import OperatorNode, TransformNode
from epochal.pipeline.programs import Program
from epochal.pipeline.stream import KeyedStream, Stream
from epochal.pipeline.windowed import WindowedStream
from epochal.programs import (
    Collection,
    Global,
    Map,
    Matrix,
    Partial,
    Partitioned,
    Vector,
    entry,
    program,
)
from epochal.programs import Counter as Counts

Row = Mapping[str, Any]
COLUMNS = {"key": "nullif(cast(id AS string), '')", "number": "id", "amount": "cast(id AS decimal(12,2))"}
KEYS = 7
PAST, FUTURE = datetime(2000, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Case:
    """``build`` applies the operator to the stream of rows. ``upserts``: the key columns of its output, if it is an
    upsert stream; ``ended``: the column that is 0 in the newest value of a deleted key."""

    name: str
    build: Callable[[Stream], Stream]
    upserts: tuple[str, ...] = ()
    closing: int = 0
    """The number of epochs without rows after which all output is complete."""
    by_cuts: tuple[str, ...] = ()
    """The state tables whose content may depend on the division into epochs, unlike the output."""
    ended: str | None = None
    queries: tuple[str, ...] = ()
    """Standing queries that are added to the operator ``queries`` before its first epoch."""

    @property
    def kind(self) -> str:
        """The kind of the operator, the first word of the name."""
        return self.name.partition(" ")[0]

    @property
    def is_variant(self) -> bool:
        return self.kind != self.name

    def pipeline(self) -> Pipeline:
        pipeline = Pipeline("every-operator")
        self.build(pipeline.read("rows", generator.source(COLUMNS))).write("out", console.sink())
        return pipeline


class Streaks(KeyedProcess):
    """All three kinds of state, and a row of output for each row of input."""

    streak = ValueState("length int")
    recent = ListState("number bigint")
    last_by_digit = MapState(key="digit int", value="number bigint")
    output = "key string, number bigint, length int, before bigint, recent bigint"
    order_by = "number"

    def process(self, key: Any, rows: Sequence[Any], ctx: Any) -> Iterator[Any]:
        for row in rows:
            length = (self.streak.get() or 0) + 1 if row.number % 3 else 0
            self.streak.set(length)
            self.recent.append(row.number)
            before = self.last_by_digit.get(row.number % 10)
            self.last_by_digit.put(row.number % 10, row.number)
            yield key.key, row.number, length, before, len(self.recent)


class Remembered(KeyedProcess):
    """State whose reads extend its time to live: all state of a key is read whenever the key has rows."""

    count = ValueState("rows int", ttl="10 microseconds", ttl_on="event_time", refresh="read_and_write")
    recent = ListState("number bigint", ttl="10 microseconds", ttl_on="event_time", refresh="read_and_write")
    last_by_digit = MapState(
        key="digit int", value="number bigint", ttl="10 microseconds", ttl_on="event_time", refresh="read_and_write"
    )
    output = "key string, number bigint, before int, recent bigint, digits string"
    order_by = "number"

    def process(self, key: Any, rows: Sequence[Any], ctx: Any) -> Iterator[Any]:
        for row in rows:
            before, digits = self.count.get() or 0, str(self.last_by_digit.items())
            if before < 5:
                self.count.set(before + 1)
            yield key.key, row.number, before, len(self.recent), digits
            if row.number % 3 == 0:
                self.recent.append(row.number)
                self.last_by_digit.put(row.number % 10, row.number)


class Divided(KeyedProcess):
    """Every row, to the output or to a side."""

    seen = ValueState("rows bigint")
    output = "key string, number bigint, seen bigint"
    sides: ClassVar = {"odd": "key string, number bigint", "all": "key string, rows bigint"}
    order_by = "number"

    def process(self, key: Any, rows: Sequence[Any], ctx: Any) -> Iterator[Any]:
        for row in rows:
            self.seen.set((self.seen.get() or 0) + 1)
            yield To("odd", (key.key, row.number)) if row.number % 2 else (key.key, row.number, self.seen.get())
        if self.seen.get() % 3 == 0:
            yield To("all", {"key": key.key, "rows": 1})


class Reminding(KeyedProcess):
    """Timers that fire in the epoch that sets them, timers that wait, and timers that are deleted in a later epoch."""

    waiting = MapState(key="digit int", value="number bigint")
    output = "key string, number bigint, at timestamp"
    order_by = "number"

    def process(self, key: Any, rows: Sequence[Any], ctx: Any) -> None:
        for row in rows:
            ctx.processing_timer(PAST + timedelta(seconds=row.number), name=str(row.number))
            before = self.waiting.get(row.number % 3)
            if before is not None:
                ctx.delete_processing_timer(FUTURE + timedelta(seconds=before), name="later")
            self.waiting.put(row.number % 3, row.number)
            ctx.processing_timer(FUTURE + timedelta(seconds=row.number), name="later")

    def on_timer(self, key: Any, at: datetime, ctx: Any) -> Iterator[Any]:
        yield key.key, int(ctx.timer_name), at


class Windowed(KeyedProcess):
    """All rows of a window."""

    output = "key string, numbers string"
    order_by = "number"

    def process(self, key: Any, rows: Sequence[Any], ctx: Any) -> Iterator[Any]:
        yield key.key, " ".join(str(row.number) for row in rows)


class Totals(BatchFunction):
    """The sum of each key so far, Arrow in and Arrow out."""

    totals = ValueState("total bigint")
    output = "key string, total bigint"

    def process_batch(self, batch: pa.Table, states: Mapping[str, Any], ctx: Any) -> pa.Table:
        sums = batch.group_by("key").aggregate([("number", "sum")])
        keys = sums.select(["key"])
        _, old = states["totals"].get(keys)
        total = pa.compute.add(sums["number_sum"], pa.compute.fill_null(old["total"], 0))
        states["totals"].put(keys.append_column("total", total))
        return keys.append_column("total", total)


class Kept(UnkeyedProcess):
    """Returns every row and stores it. The list that stores a row depends on the parallelism."""

    kept = ListState("number bigint, key string", scope="operator")
    output = "number bigint, key string"
    order_by = "number"

    def process(self, rows: Iterable[Any], ctx: Any) -> Iterator[Any]:
        for row in rows:
            self.kept.append(row.number, row.key)
            yield row.number, row.key


class Ranked(PartialProcess):
    """The number of rows before a row: each instance counts its own rows, and the answers are added."""

    keys = MapState(key="number bigint", value="key string", scope="partial", reconcile="max")
    amounts = MapState(key="number bigint", value="amount decimal(12,2)", scope="partial", reconcile="sum")
    answer = "rows bigint, amount decimal(12,2)"
    output = "number bigint, rows bigint, amount decimal(12,2)"
    order_by = "number"

    def process(self, rows: Iterable[Any], ctx: Any) -> None:
        for row in rows:
            self.keys.put(row.number, row.key)
            self.amounts.put(row.number, row.amount)

    def process_global(self, request: Any, ctx: Any) -> Any:
        before = [amount for number, amount in self.amounts.items() if number < request.number]
        return (len(before), sum(before)) if before else None

    def merge(self, request: Any, answers: Sequence[Any], ctx: Any) -> Iterator[Any]:
        yield request.number, sum(answer.rows for answer in answers), sum(answer.amount for answer in answers)


class Weighted(BroadcastProcess):
    """Rows weighted by the control rows so far. The control rows are a subset of the rows."""

    weights = MapState(key="digit int", value="weight bigint", scope="broadcast")
    total = ValueState("total bigint")
    output = "key string, number bigint, weight bigint, total bigint"
    order_by = "number"

    def process_broadcast(self, row: Any, ctx: Any) -> Iterator[Any]:
        self.weights.put(row.number % 10, 100 + row.number % 10)
        yield None, row.number, None, None

    def process(self, key: Any, rows: Sequence[Any], ctx: Any) -> Iterator[Any]:
        for row in rows:
            weight = self.weights.get(row.number % 10, 0)
            self.total.set((self.total.get() or 0) + row.number)
            yield key.key, row.number, weight, self.total.get()


@program
class Tallies:
    """Counts each row under its key, under several digits and in a partial state. Answers contain the previous
    counts."""

    totals: Partitioned[Map[str, int]]
    digits: Partitioned[Matrix[int]]
    anywhere: Partial[Counts[int]]

    @entry
    def add(self, key: str, number: int) -> int:
        before: int = self.totals.get(key, 0)
        self.totals.put(key, before + number)
        for other in range(number % 3):
            self.digits.add(other, number, before)
        return before

    @entry
    def look(self, number: int) -> Vector[int]:
        digit: int = number % 4
        return self.digits.row(digit)

    @entry
    def mark(self, number: int) -> None:
        self.anywhere.add(number % 3)

    @entry
    def count(self, number: int) -> int:
        counted: int = Global(self.anywhere).count(number % 2)
        return sum(Collection(counted))


def tallied(rows: Stream) -> Stream:
    """A row with a null key is answered with an error."""
    tallies = Program(rows._builder, Tallies, None)
    tallies.feed("add", rows, order_by="number", keep=("key", "number"))
    tallies.feed("mark", rows, order_by="number")
    tallies.feed("count", rows.where("number % 5 > 2"), order_by="number", keep="number")
    tallies.feed("look", rows.where("number % 3 = 0"), order_by="number", keep="number")
    looked = tallies.results("look").select("NULL AS key", "number", "size(value.indices) AS value", "error")
    counted = tallies.results("count").select("NULL AS key", "number", "value", "error")
    return tallies.results("add").union(looked, counted)


def weighted(rows: Stream) -> Stream:
    control = rows.where("number % 5 = 0")
    return rows.connect(control, broadcast=True, order_by="number").key_by("key").process(Weighted)


def divided(rows: Stream) -> Stream:
    even = rows.key_by("key").process(Divided)
    return even.union(even.side("odd").with_columns(seen="CAST(NULL AS bigint)"))


def interval_joined(rows: Stream) -> Stream:
    """Rows with others of their key up to 20 seconds later: some in the same epoch, some in another."""
    timed = rows.with_columns(at="timestamp_seconds(number)").with_watermark("at", "1 hour")
    others = rows.select("key", "number AS other", "timestamp_seconds(number) AS other_at")
    return timed.join(
        others.with_watermark("other_at", "1 hour"),
        on="key",
        within=("1 second", "20 seconds"),
        how="left",
        name="near",
    )


def windows_joined(rows: Stream) -> Stream:
    """Windows of all rows with the same windows of a third of them."""
    every = timed_rows(rows)
    some = every.where("number % 3 = 0")
    counted = every.key_by("key").window(tumbling("10 minutes")).aggregate("every", rows="count(*)")
    others = some.key_by("key").window(tumbling("10 minutes")).aggregate("some", thirds="count(*)")
    return counted.join(others, on=("key", "window_start", "window_end"), how="full", name="both")


def temporally_joined(rows: Stream) -> Stream:
    """Rows with the newest of some others of their key. The watermark is far behind, so that rows wait until the
    end."""
    timed = rows.with_columns(at="timestamp_seconds(number)").with_watermark("at", "1 hour")
    versions = rows.where("number % 4 = 0").select("key", "number AS version", "timestamp_seconds(number) AS since")
    latest = versions.with_watermark("since", "1 hour").latest("key", order_by="since", deleted="version % 3 = 0")
    return timed.join(latest, on="key", as_of="at", how="left", name="versioned")


def latest_joined(rows: Stream) -> Stream:
    """All versions of a key are equal, as the newest one depends on the division into epochs."""
    versions = rows.select("key", "1 AS since", "concat('of ', key) AS version")
    return rows.join(versions.latest("key", order_by="since"), on="key", how="left", name="newest")


def timed(rows: Stream) -> KeyedStream:
    return timed_rows(rows).key_by("key")


def timed_rows(rows: Stream) -> Stream:
    """A row a minute, up to five minutes out of order."""
    return rows.with_column("at", "timestamp_seconds(60 * number + (number * 7919) % 300)").with_watermark(
        "at", "5 minutes"
    )


def sums(windowed: WindowedStream) -> Stream:
    return windowed.aggregate("windows", rows="count(*)", amount="sum(amount)", mean="avg(number)")


def timed_by_number(rows: Stream) -> Stream:
    """Rows with an event time, and a watermark before all of them."""
    return rows.with_columns(at="timestamp_seconds(number)").with_watermark("at", "1 hour")


def living_totals(rows: Stream) -> Stream:
    keyed = timed_by_number(rows).key_by("key")
    return keyed.aggregate("totals", ttl="1 second", ttl_on="event_time", rows="count(*)", mean="avg(number)")


def first_within(rows: Stream) -> Stream:
    timed = rows.with_columns(at="timestamp_seconds(number)").with_watermark("at", "5 seconds")
    return timed.drop_duplicates("key", within="10 seconds")


@dataclass(frozen=True)
class Halves:
    """The first of two consecutive numbers is a call, the second its answer."""

    def __call__(self, frame: Any) -> Any:
        odd, half = "number % 2 = 1", "cast(number div 2 AS string)"
        value, error = f"if({odd}, key, null)", f"if({odd} AND number % 3 = 0, 'of three', null)"
        return frame.selectExpr(
            "'ask' AS entry",
            f"{half} AS request_id",
            f"if({odd}, null, number) AS sequence",
            f"{odd} AS answered",
            f"{value} AS value",
            f"{error} AS error",
        )

    def table(self, rows: pa.Table) -> pa.Table:
        found = []
        for number, key in zip(rows["number"].to_pylist(), rows["key"].to_pylist(), strict=True):
            odd = number % 2 == 1
            error = "of three" if odd and number % 3 == 0 else None
            found.append(("ask", str(number // 2), None if odd else number, odd, key if odd else None, error))
        columns = list(zip(*found, strict=True)) or [()] * 6
        types = (pa.string(), pa.string(), pa.int64(), pa.bool_(), pa.string(), pa.string())
        names = ["entry", "request_id", "sequence", "answered", "value", "error"]
        return pa.Table.from_arrays([pa.array(*each) for each in zip(columns, types, strict=True)], names)


def answered(rows: Stream) -> Stream:
    builder = rows._builder
    halves = builder.add(lambda id: TransformNode(id, "halves", (rows._node,), Halves(), kinds.kept))
    called = Entry("ask", (), frozenset(), "string", "")
    return Stream(builder, builder.add(lambda id: OperatorNode(id, (halves,), AnswersOperator(((called, "1 day"),)))))


CASES = (
    Case("answers", answered, by_cuts=("ask_answers",)),  # it stores the time of the last write
    Case(
        "aggregate",
        lambda rows: rows.key_by("key").aggregate(
            "totals", rows="count(*)", amount="sum(amount)", mean="avg(number)", least="min(number)"
        ),
        upserts=("key",),
    ),
    Case(
        "aggregate_changes",
        lambda rows: (
            rows.key_by("key")
            .aggregate("totals", changes=True, rows="count(*)", amount="sum(amount)", worst="max(number)")
            .select("rows % 4 AS size", "amount", "worst", "_change")
            .key_by("size")
            .aggregate("sizes", keys="count(*)", amount="sum(amount)", mean="avg(worst)", worst="max(worst)")
        ),
        upserts=("size",),
        ended="keys",
    ),
    Case("aggregate_ttl", living_totals, upserts=("key",)),
    Case("distinct", lambda rows: rows.key_by("key").distinct("seen")),
    Case("interval_join", interval_joined),
    Case("interval_join of equal windows", windows_joined, closing=2),
    Case("temporal_join", temporally_joined),
    Case("latest_join", latest_joined),
    Case("drop_duplicates", lambda rows: rows.drop_duplicates("key")),
    # Expired state is deleted once the observed watermark has become the operator's: an epoch later.
    Case("drop_duplicates within", first_within, closing=1),
    Case("top", lambda rows: rows.key_by("key").top(3, by="amount"), upserts=("key", "rank")),
    Case("process", lambda rows: rows.key_by("key").process(Streaks)),
    Case("process with reads that refresh", lambda rows: timed_by_number(rows).key_by("key").process(Remembered)),
    Case("process with sides", divided),
    Case("process with timers", lambda rows: rows.key_by("key").process(Reminding)),
    Case("process_any", lambda rows: rows.process_any(Kept)),
    Case("process_broadcast", weighted),
    Case("process_partial", lambda rows: rows.process_partial(Ranked, requests=rows.where("number % 3 = 0"))),
    Case(
        "standing_queries",
        lambda rows: timed_rows(rows).standing_queries("queries"),
        closing=2,
        # They contain the time of answers.
        by_cuts=("queries",),
        queries=(
            "SELECT key, count(*) AS n, sum(amount) AS total, remember(n) AS before GROUP BY key WINDOW '10 minutes'",
            "SELECT avg(amount) AS mean, min(number) AS low WHERE number % 3 = 0 WINDOW '10 minutes' SLIDE '5 minutes'",
        ),
    ),
    Case("window_aggregate", lambda rows: sums(timed(rows).window(tumbling("10 minutes"))), closing=2),
    Case(
        "window_aggregate with overlapping windows",
        lambda rows: sums(timed(rows).window(sliding("10 minutes", "4 minutes"))),
        closing=2,
    ),
    Case(
        "window_aggregate with updates",
        lambda rows: sums(timed(rows).window(sliding("10 minutes", "5 minutes"), emit="updates")),
        upserts=("key", "window_start"),
        closing=2,
    ),
    # Due entries are corrected when they are processed, which depends on the cuts.
    Case(
        "session_aggregate",
        lambda rows: sums(timed(rows).window(session("8 minutes"))),
        closing=2,
        by_cuts=("windows.entries",),
    ),
    Case(
        "window_process",
        lambda rows: timed(rows).window(tumbling("10 minutes"), "1 minute").process(Windowed),
        closing=2,
    ),
    Case(
        "window_process of sessions",
        lambda rows: timed(rows).window(session("8 minutes"), "1 minute").process(Windowed),
        closing=2,
        by_cuts=("windowed.sessions.entries",),
    ),
    Case(
        "window_top",
        lambda rows: timed(rows).window(sliding("10 minutes", "4 minutes"), "1 minute").top(2, by="amount"),
        closing=2,
    ),
    Case(
        "window_top with updates",
        lambda rows: timed(rows).window(tumbling("10 minutes"), emit="updates").top(2, by="amount"),
        upserts=("key", "window_start", "rank"),
        closing=2,
    ),
    Case(
        "window_top of sessions of all rows",
        lambda rows: timed_rows(rows).top(3, by=("amount", "number"), within=session("1 minute")),
        closing=2,
        by_cuts=("top.entries",),
    ),
    # The instance of partial state that counts a row depends on the number of instances.
    Case("program", tallied, by_cuts=("anywhere",)),
    Case("process_batch", lambda rows: rows.key_by("key").process_batch(Totals), upserts=("key",)),
)


def some_rows(seed: int, count: int = 60) -> list[Row]:
    """Rows with ascending ``number``, so that every cut into epochs has the same order. One of the keys is null."""
    choose = random.Random(seed)
    keys = [None, *(f"k{number}" for number in range(1, KEYS))]
    return [{"key": choose.choice(keys), "number": n, "amount": Decimal(n % 9) / 4} for n in range(count)]
