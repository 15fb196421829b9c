"""Entries without Spark: their declaration, their source, and the operator that stores answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql import DataFrame
from pyspark.sql.types import DataType, DoubleType, StringType, StructField, StructType

from epochal import KeyedProcess, Pipeline, ValueState
from epochal.connectors import console
from epochal.contracts.inbox import CallBatch, Inbox, InboxPage
from epochal.contracts.source import SliceLimits
from epochal.declarations.entry import CALL_SCHEMA, ENTRIES
from epochal.driver.inbox import HttpInbox
from epochal.engine.triggers import Situation, Step, decide
from epochal.errors import PipelineError, SchemaError, SourceError
from epochal.operators.entries.plan import Answering, EntrySource, calls_table
from epochal.pipeline.description import describe
from epochal.pipeline.stream import Stream
from tests.kit.documented import documented, shows
from tests.kit.lives import Life, struct
from tests.kit.lives import Step as Life_step


class Store(KeyedProcess):
    """Stores a value for each key, and returns it."""

    value = ValueState("value string")
    output = struct(request_id="string", value="string", error="string")
    order_by = "sequence"

    def process(self, key: Any, rows: Sequence[Any], ctx: Any) -> Iterator[Any]:
        for row in rows:
            if row.value is not None:
                self.value.set(row.value)
            found = self.value.get()
            yield (
                row.request_id,
                json.dumps(found),
                None if found is not None else f"there is no {key.key}",
            )


def key_value_store() -> Pipeline:
    pipeline = Pipeline("store")
    calls = pipeline.entry("exchange", {"key": "string", "value": "string"}, returns="string", optional=["value"])
    pipeline.answer("exchange", calls.key_by("key").process(Store, name="store"))
    pipeline.entry("note", {"key": "string"}).key_by("key").distinct("notes").write("out", console.sink())
    return pipeline


def call(entry: str, request_id: str, sequence: int, **arguments: Any) -> dict[str, Any]:
    return {"entry": entry, "request_id": request_id, "sequence": sequence, "arguments": json.dumps(arguments)}


def answers(life: Life, table: str) -> dict[str, Any]:
    return {row["request_id"]: (row["answered"], row["value"], row["error"]) for row in life.state(table)}


CALLS = [
    [call("exchange", "a", 10, key="x"), call("exchange", "b", 11, key="x", value="1"), call("note", "c", 12, key="x")],
    [call("exchange", "d", 13, key="x"), call("exchange", "e", 20, key="y")],
    [call("exchange", "f", 21, key="x", value="2"), call("exchange", "g", 22, key="x"), call("note", "h", 23, key="x")],
]
EXPECTED = {
    "a": (True, "null", "there is no x"),
    "b": (True, '"1"', None),
    "d": (True, '"1"', None),
    "e": (True, "null", "there is no y"),
    "f": (True, '"2"', None),
    "g": (True, '"2"', None),
}


@pytest.mark.parametrize("disruption", ["nothing", "abort", "die", "die decided", "restart"])
def test_every_call_is_answered_once_through_failures(disruption: Any) -> None:
    with Life(key_value_store(), {ENTRIES: CALL_SCHEMA}) as life:
        life.live([{ENTRIES: rows} for rows in CALLS], [Life_step(disruption, 3), Life_step(disruption, 1)])
        life.finish()
        assert answers(life, "exchange_answers") == EXPECTED
        assert answers(life, "note_answers") == {"c": (True, "null", None), "h": (True, "null", None)}
        assert [row["key"] for row in life.all_of("out")] == ["x"]


def test_a_new_branch_executes_the_calls_after_its_snapshot_again() -> None:
    with Life(key_value_store(), {ENTRIES: CALL_SCHEMA}) as life:
        for rows in CALLS:
            life.epoch(**{ENTRIES: rows})
        life.continue_from(1, "rolled-back")
        life.settle()
        assert answers(life, "exchange_answers") == EXPECTED


def test_the_first_answer_counts_and_unknown_requests_are_ignored() -> None:
    pipeline = Pipeline("late-answers")
    calls = pipeline.entry("ask", {"key": "string", "answers": "bigint"}, returns="string")
    late_answers = calls.key_by("key").process(Late, name="late")
    pipeline.answer("ask", late_answers)
    with Life(pipeline, {ENTRIES: CALL_SCHEMA}) as life:
        life.epoch(**{ENTRIES: [call("ask", "one", 1, key="k", answers=0), call("ask", "two", 2, key="k", answers=0)]})
        assert answers(life, "ask_answers") == {"one": (False, None, None), "two": (False, None, None)}
        life.epoch(**{ENTRIES: [call("ask", "three", 3, key="k", answers=2)]})
        first = answers(life, "ask_answers")
        life.epoch(**{ENTRIES: [call("ask", "four", 4, key="k", answers=1)]})
        assert first["one"] == first["three"] == (True, '"0 of 2"', None)
        assert {"unknown"}.isdisjoint(first)
        later = answers(life, "ask_answers")
        assert {id: later[id] for id in first} == first and later["four"] == (True, '"0 of 1"', None)


class Late(KeyedProcess):
    """Answers all previous calls and an unknown one, as often as the latest call asks for."""

    known = ValueState("ids string")
    output = struct(request_id="string", value="string", error="string")
    order_by = "sequence"

    def process(self, key: Any, rows: Sequence[Any], ctx: Any) -> Iterator[Any]:
        for row in rows:
            self.known.set(f"{self.known.get() or ''} {row.request_id}")
            for number in reversed(range(row.answers)):
                for known in (*self.known.get().split(), "unknown"):
                    yield known, json.dumps(f"{number} of {row.answers}"), None


def test_answers_expire() -> None:
    pipeline = Pipeline("short")
    calls = pipeline.entry("ask", {"key": "string", "answers": "bigint"}, returns="string")
    pipeline.answer("ask", calls.key_by("key").process(Late, name="late"), ttl="10 seconds")
    with Life(pipeline, {ENTRIES: CALL_SCHEMA}) as life:
        life.epoch(Life_step(clock=0), **{ENTRIES: [call("ask", "one", 1, key="k", answers=1)]})
        life.epoch(Life_step(clock=60), **{ENTRIES: [call("ask", "two", 2, key="other", answers=1)]})
        assert set(answers(life, "ask_answers")) == {"two"}


def test_a_call_replaces_an_earlier_call_with_the_same_id() -> None:
    with Life(key_value_store(), {ENTRIES: CALL_SCHEMA}) as life:
        life.epoch(**{ENTRIES: [call("exchange", "a", 10, key="x", value="before")]})
        life.epoch(**{ENTRIES: [call("exchange", "a", 99, key="x", value="after")]})
        (row,) = life.state("exchange_answers")
        assert (row["sequence"], row["value"]) == (99, '"after"')


def refused(declare: Callable[[Pipeline], Any]) -> str:
    def build() -> None:
        pipeline = Pipeline("refused")
        declare(pipeline)
        pipeline.graph()

    with pytest.raises((PipelineError, SchemaError)) as raised:
        build()
    return raised.value.message


def answered(pipeline: Pipeline, **more: Any) -> Stream:
    calls = pipeline.entry("get", {"key": "string"}, returns="string", **more)
    return calls.key_by("key").process(Store, name="store")


DECLARED: list[tuple[Callable[[Pipeline], Any], str]] = [
    (lambda it: it.entry("Get", {}), "'Get' cannot be the name of an entry"),
    (lambda it: it.entry("g" * 56, {}), "maximum is 55 characters"),
    (lambda it: it.entry("get", "key string"), "arguments must map names to types"),
    (lambda it: it.entry("get", {"a key": "string"}), "'a key' is not a valid argument name"),
    (lambda it: it.entry("get", {"key": "text"}), "Entry 'get', argument 'key'"),
    (lambda it: it.entry("get", {"key": "variant"}), "the type variant"),
    (lambda it: it.entry("get", {"sequence": "bigint"}), "'sequence' is a column of every call"),
    (lambda it: it.entry("get", {"Sequence": "bigint"}), "'Sequence' is a column of every call"),
    (lambda it: it.entry("get", {"key": "int", "KEY": "int"}), "two arguments named 'key'"),
    (lambda it: it.entry("get", {"key": "string"}, optional=["kez"]), "optional must be a list of arguments"),
    (lambda it: it.entry("get", {"key": "string"}, returns="nothing"), "Entry 'get': returns"),
    (lambda it: (it.entry("get", {}), it.entry("get", {})), "Two entries are named 'get'"),
    (lambda it: it.entry("get", {}), "The calls of entry 'get' are not used"),
    (lambda it: answered(it), "Entry 'get' returns string but is not answered"),
    (lambda it: it.answer("gett", answered(it)), "There is no entry 'gett' to answer. Did you mean 'get'?"),
    (lambda it: it.answer("get", answered(it) and "rows"), "takes a stream of this pipeline"),
    (lambda it: it.answer("get", answered(it), ttl="for ever"), "answer('get'): ttl"),
    (lambda it: it.answer("get", answered(it), ttl=None), "answers require a time to live"),  # type: ignore[arg-type]
    (lambda it: [it.answer("get", stream) for stream in [answered(it)] * 2], "answered twice"),
    (
        lambda it: [it.answer("get", answered(it)), it.entry("x", {}).key_by("sequence").distinct("answers")],
        "Two operators are named 'answers'",
    ),
    (
        lambda it: [it.answer("get", answered(it)), it.entry("x", {}).key_by("sequence").distinct("get_answers")],
        "Two operators are named 'get_answers'",
    ),
]
ANSWER_COLUMNS: list[tuple[dict[str, DataType], str]] = [
    ({"request_id": StringType(), "value": DoubleType(), "error": StringType()}, "column 'value' is double"),
    ({"request_id": StringType(), "value": StringType()}, "the stream has no column 'error'"),
    (
        {"request_id": StringType(), "value": StringType(), "error": StringType(), "key": StringType()},
        "the stream has a column 'key', which answers do not have",
    ),
]


@pytest.mark.parametrize(("declare", "message"), DECLARED)
def test_invalid_declarations_are_refused(declare: Callable[[Pipeline], Any], message: str) -> None:
    assert message in refused(declare)


@pytest.mark.parametrize(("columns", "message"), ANSWER_COLUMNS)
def test_streams_without_the_answer_columns_are_refused(columns: dict[str, DataType], message: str) -> None:
    assert message in refused_answers(columns)


def refused_answers(columns: dict[str, DataType]) -> str:
    schema = StructType([StructField(name, type) for name, type in columns.items()])
    with pytest.raises(PipelineError) as raised:
        Answering("get", "1 day")(cast(DataFrame, SimpleNamespace(columns=schema.names, schema=schema)))
    return raised.value.message


def test_the_documented_refusals_are_real() -> None:
    messages = [
        *map(refused, next(zip(*DECLARED, strict=True))),
        *map(refused_answers, next(zip(*ANSWER_COLUMNS, strict=True))),
    ]
    examples = documented("reference/entries.md", "`epochal check` enforces these rules")
    assert len(examples) >= 11
    assert [example for example in examples if not shows(example, messages)] == []


def test_the_description_lists_entries() -> None:
    (source,) = [node for node in describe(key_value_store().graph()).nodes if node.type == "source"]
    exchange, note = source.description["entries"]
    assert exchange == {
        "name": "exchange",
        "arguments": {"key": "string", "value": "string"},
        "optional": ["value"],
        "returns": "string",
        "description": "",
        "table": "exchange_answers",
    }
    assert (note["name"], note["returns"], note["table"]) == ("note", None, "note_answers")


class Fixed(Inbox):
    """An inbox with these calls."""

    def __init__(self, *batches: CallBatch, taken: int = 0) -> None:
        self.batches, self.begun, self._taken = list(batches), list[int](), taken

    def begin(self, after: int) -> None:
        self.begun.append(after)

    def arrived(self, after: int, most: int | None) -> Sequence[CallBatch]:
        """Returns one batch at a time if there is a limit."""
        found = [batch.within(after, batch.last) for batch in self.batches if batch.last > after]
        return found if most is None else [each.within(after, each.first + most - 1) for each in found[:1]]

    def read(self, after: int, through: int) -> Sequence[CallBatch]:
        return [batch.within(after, through) for batch in self.batches]

    def last(self) -> int:
        return self.batches[-1].last

    def taken(self) -> int:
        return self._taken

    def wait(self, seconds: float) -> None:
        raise AssertionError("the source must not wait")


def batch(first: int, count: int, entry: str = "get") -> CallBatch:
    ids = tuple(f"r{number}" for number in range(first, first + count))
    return CallBatch(entry=entry, first=first, request_ids=ids, arguments=("{}",) * count)


def test_an_entry_source_resumes_and_repeats_its_slices() -> None:
    source = EntrySource()
    source.connect(Fixed(batch(5, 4)))
    source.restore(None, ())
    slice = source.plan(SliceLimits(3))
    assert slice is not None and source.urgent
    assert (slice.start, slice.end, slice.rows) == ({"through": 0}, {"through": 7}, 3)
    assert source.plan(SliceLimits(3)) == slice
    source.accept(slice)
    assert source.table(slice)["request_id"].to_pylist() == ["r5", "r6", "r7"]

    other = EntrySource()
    other.connect(Fixed(batch(5, 4)))
    other.restore(source.checkpoint(), ())
    rest = other.plan(SliceLimits(None))
    assert rest is not None and other.table(rest)["sequence"].to_pylist() == [8]
    assert other.table(slice).equals(source.table(slice))
    other.accept(rest)
    assert (other.plan(SliceLimits(None)), other.urgent, other.ended, other.bounded) == (None, False, False, False)


def test_an_entry_source_limited_to_available_calls_ends() -> None:
    inbox, source = Fixed(batch(5, 2)), EntrySource()
    source.connect(inbox)
    source.restore(None, ())
    source.limit_to_available()
    inbox.batches.append(batch(9, 2))
    slice = source.plan(SliceLimits(None))
    assert slice is not None and slice.end == {"through": 6} and not source.ended
    source.accept(slice)
    assert source.ended and source.plan(SliceLimits(None)) is None


def test_a_readded_entry_source_begins_at_the_catalogs_position() -> None:
    inbox, source = Fixed(batch(5, 2), taken=5), EntrySource()
    source.connect(inbox)
    source.restore(None, ())
    slice = source.plan(SliceLimits(None))
    assert inbox.begun == [5] and slice is not None and slice.rows == 1


def test_an_entry_source_without_an_inbox_has_ended() -> None:
    source = EntrySource()
    source.restore(None, ())
    assert source.plan(SliceLimits(None)) is None and source.ended and source.bounded and not source.urgent
    with pytest.raises(SourceError, match="inbox of a control plane"):
        source.table(_slice())


def _slice() -> Any:
    source = EntrySource()
    source.connect(Fixed(batch(5, 2)))
    source.restore(None, ())
    return source.plan(SliceLimits(None))


def test_calls_of_several_entries_form_one_table_in_order() -> None:
    rows = calls_table([batch(5, 2, "put"), batch(9, 1, "get")]).to_pylist()
    assert [(row["entry"], row["sequence"]) for row in rows] == [("put", 5), ("put", 6), ("get", 9)]
    assert calls_table([]).schema == CALL_SCHEMA


def test_waiting_callers_open_an_epoch_within_the_interval() -> None:
    rest = Situation(has_room=True, ended=False, until_interval=9.0, until_due=None, in_flight=False)
    assert decide(rest).step is Step.PAUSE
    called = Situation(**{**vars(rest), "urgent": True})
    assert decide(called).step is Step.ASK_SOURCES
    assert decide(Situation(**{**vars(called), "has_input": True})).opened_for == ("input",)
    assert decide(Situation(**{**vars(called), "has_room": False})).step is Step.WAIT_FOR_COMMITS


class Remote:
    """The control plane's side of an inbox."""

    def __init__(self, *batches: CallBatch) -> None:
        self.batches, self.requested = list(batches), list[tuple[int, int]]()

    def new_calls(self, after: int) -> InboxPage:
        return InboxPage(last=99, batches=tuple(batch for batch in self.batches if batch.first > after)[:1])

    def calls(self, after: int, through: int) -> InboxPage:
        self.requested.append((after, through))
        found = [
            batch.within(after, through) for batch in self.batches if batch.last > after and batch.first <= through
        ]
        return InboxPage(last=99, taken=3, batches=tuple(found[:1]))


def test_arrived_calls_are_buffered_until_taken_and_then_fetched() -> None:
    remote = Remote(batch(5, 3), batch(10, 3))
    inbox = HttpInbox(remote)  # type: ignore[arg-type]
    inbox.begin(4)
    while sum(len(each.request_ids) for each in inbox.arrived(4, None)) < 6:
        inbox.wait(5.0)
    assert [each.request_ids for each in inbox.arrived(4, 4)] == [("r5", "r6", "r7"), ("r10",)]
    assert [each.first for each in inbox.read(4, 10)] == [5, 10] and not remote.requested
    assert [each.request_ids for each in inbox.arrived(7, None)] == [("r10", "r11", "r12")]
    assert [each.request_ids for each in inbox.read(5, 11)] == [("r6", "r7"), ("r10", "r11")]
    assert remote.requested == [(5, 11), (7, 11)]
    assert (inbox.last(), inbox.taken()) == (99, 3)
    inbox.begin(4)
    while sum(len(each.request_ids) for each in inbox.arrived(4, None)) < 6:
        inbox.wait(5.0)
    inbox.close()
