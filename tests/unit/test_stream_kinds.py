"""Kinds of stream without Spark: the result of each verb, and the kinds that operators and sinks refuse."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from epochal import KeyedProcess, Pipeline, StaticTable, Stream
from epochal import functions as F
from epochal.connectors import console, dbms, files, generator, hdfs, kafka
from epochal.contracts.stream_kind import CHANGES, Accepted, Kind, StreamKind, updates, upsert
from epochal.errors import OptionError, PipelineError
from epochal.pipeline.definitions import SinkDefinition
from epochal.pipeline.description import describe
from epochal.pipeline.kinds import check_kinds, kinds_of, misfits, united

ROWS = {"origin": "id", "day": "id", "delay": "id"}


class Streaks(KeyedProcess):
    output = "origin bigint, streak int"

    def process(self, key, rows, ctx):  # type: ignore[no-untyped-def]
        return []


Build = Callable[[Stream, Stream, StaticTable], Stream]


def built(build: Build, sink: SinkDefinition | None = None) -> Pipeline:
    """``build`` receives the source's stream, an aggregate by origin and day, and a table."""
    pipeline = Pipeline("kinds")
    flights = pipeline.read("flights", generator.source(ROWS))
    delays = flights.key_by("origin", "day").aggregate("delays", n="count(*)", worst="max(delay)")
    table = pipeline.table("airports", files.table("airports", schema="origin bigint, city string"))
    build(flights, delays, table).write("out", sink or console.sink())
    return pipeline


def kind(build: Build) -> StreamKind:
    graph = built(build).graph()
    return kinds_of(graph)[graph.sinks[0].input]


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        # append
        (lambda s, a, t: s, "append"),
        (lambda s, a, t: s.where("delay > 3").select("origin").transform(lambda frame: frame), "append"),
        (lambda s, a, t: s.select("explode(array(delay, 1)) AS delay"), "append"),
        (lambda s, a, t: s.join(t, on="origin").union(s.join(t, on="origin")), "append"),
        (lambda s, a, t: a.key_by("origin").process(Streaks), "append"),
        # upsert, and verbs that preserve its keys
        (lambda s, a, t: a, "upsert(origin, day)"),
        (lambda s, a, t: a.select("*"), "upsert(origin, day)"),
        (lambda s, a, t: a.select("*", "n * 2 AS twice"), "upsert(origin, day)"),
        (lambda s, a, t: a.select("n", "day", "origin"), "upsert(origin, day)"),
        (lambda s, a, t: a.select("origin AS place", "`day` when", "n"), "upsert(place, when)"),
        (lambda s, a, t: a.select(F.col("origin").alias("place"), F.col("day"), "n"), "upsert(place, day)"),
        (lambda s, a, t: a.select("ORIGIN", "day AS Day"), "upsert(ORIGIN, Day)"),
        (lambda s, a, t: a.with_columns(twice="n * 2").with_column("n", "0").drop("worst"), "upsert(origin, day)"),
        (lambda s, a, t: a.join(t, on="origin", how="left"), "upsert(origin, day)"),
        (lambda s, a, t: a.where("origin IS NOT NULL AND upper(`day`) <> 'x' OR day = 7"), "upsert(origin, day)"),
        (lambda s, a, t: a.where("day >= DATE '2020-01-01' AND CAST(day AS date) > '1'"), "upsert(origin, day)"),
        (lambda s, a, t: a.where((F.col("origin") > 3) & F.col("day").isNotNull()), "upsert(origin, day)"),
        (lambda s, a, t: s.key_by("origin").aggregate("by_origin", n="count(*)"), "upsert(origin)"),
        (
            lambda s, a, t: a.key_by("n").aggregate("histogram", over_updates=True, times="count(*)"),
            "upsert(n)",
        ),
        # updates: key columns are missing or replaced
        (lambda s, a, t: a.drop("DAY"), "updates"),
        (lambda s, a, t: a.select("origin", "n"), "updates"),
        (lambda s, a, t: a.select("origin", "upper(day) AS day"), "updates"),
        (lambda s, a, t: a.select("origin", "n AS day"), "updates"),
        (lambda s, a, t: a.select("origin", F.lit("day").alias("day")), "updates"),
        (lambda s, a, t: a.with_columns(Day="1"), "updates"),
        (lambda s, a, t: a.select("*", "explode(array(1, 2)) AS x"), "updates"),
        (lambda s, a, t: a.with_columns(x=F.explode(F.array("n", "worst"))), "updates"),
        # updates: rows that no longer match are missing
        (lambda s, a, t: a.where("n > 3"), "updates"),
        (lambda s, a, t: a.where("day > 3 AND worst > 3"), "updates"),
        (lambda s, a, t: a.where(F.upper("n") == "x"), "updates"),
        (lambda s, a, t: a.where("day < current_date()"), "updates"),
        (lambda s, a, t: a.where(F.rand() > 0.5), "updates"),
        (lambda s, a, t: a.where("exists(array(day), x -> x > n)"), "updates"),
        (lambda s, a, t: a.where(F.udf(lambda day: True)("day")), "updates"),
        (lambda s, a, t: a.join(t, on="origin"), "updates"),
        (lambda s, a, t: a.join(t, on="origin", how="left_semi"), "updates"),
        (lambda s, a, t: a.join(t, on="origin", how="left_anti"), "updates"),
        # updates: no other kind can be derived
        (lambda s, a, t: a.transform(lambda frame: frame), "updates"),
        (lambda s, a, t: a.union(a), "updates"),
        (lambda s, a, t: a.select("origin", "day").union(s.select("origin", "day")), "updates"),
        (lambda s, a, t: a.drop("day").union(a.where("n > 1").drop("day")), "updates"),
        (lambda s, a, t: a.where("n > 3").select("origin", "day").where("origin = 1"), "updates"),
    ],
)
def test_every_stream_has_a_kind(build: Build, expected: str) -> None:
    assert str(kind(build)) == expected


def test_update_streams_have_a_reason() -> None:
    assert "no longer meets the condition" in str(kind(lambda s, a, t: a.where("n > 3")).reason)
    assert "'day'" in str(kind(lambda s, a, t: a.drop("day")).reason)
    assert "upsert(origin), append" in str(united([upsert(["origin"]), StreamKind(Kind.APPEND)]).reason)
    assert updates("one") == updates("other")


def test_change_streams_unite_only_with_change_streams() -> None:
    assert united([CHANGES, CHANGES]) == CHANGES
    assert united([CHANGES, upsert("k")]).kind is Kind.UPDATES
    accepting = (
        files.sink("out", mode="updates"),
        dbms.sink(URL, "t", mode="updates"),
        kafka.sink("h:1", "t", mode="updates"),
    )
    for sink in (console.sink(), *accepting):
        assert sink.takes.takes(CHANGES)
    by_keys = dbms.sink(URL, "t", keys="origin", mode="updates")
    for sink in (files.sink("out"), dbms.sink(URL, "t", keys="origin"), by_keys, SinkDefinition("own", _none)):
        assert not sink.takes.takes(CHANGES)
        assert "changes=True" in sink.takes.fix(CHANGES) or "mode='updates'" in sink.takes.fix(CHANGES)


@pytest.mark.parametrize(
    ("verb", "kind_of"),
    [
        (lambda c: c.where("n > 3").select("*", "n * 2 AS twice").drop("worst"), "changes"),
        (lambda c: c.select("n", "_change").with_columns(n="n + 1", m=F.upper("n")), "changes"),
        (lambda c: c.select("explode(array(n, 1)) AS n", "_change"), "changes"),
        (lambda c: c.union(c), "changes"),
        (lambda c: c.select("n"), "updates"),
        (lambda c: c.select("n", "-_change AS _change"), "updates"),
        (lambda c: c.select("n", "_change AS change"), "updates"),
        (lambda c: c.select("n * _change AS n", "_change"), "updates"),
        (lambda c: c.with_columns(n="n * _change"), "updates"),
        (lambda c: c.with_columns(_change="1"), "updates"),
        (lambda c: c.drop("_change"), "updates"),
        (lambda c: c.where("_change > 0"), "updates"),
        (lambda c: c.where(F.rand() > 0.5), "updates"),
        (lambda c: c.transform(lambda frame: frame), "updates"),
        (lambda c: c.with_watermark("day", "1 minute"), "updates"),
    ],
)
def test_each_verb_over_a_change_stream_returns_the_documented_kind(
    verb: Callable[[Stream], Stream], kind_of: str
) -> None:
    def build(s: Stream, a: Stream, t: StaticTable) -> Stream:
        return verb(s.key_by("origin", "day").aggregate("c", changes=True, n="count(*)", worst="max(delay)"))

    assert str(kind(build)) == kind_of


def changes(s: Stream) -> Stream:
    return s.key_by("origin").aggregate("c", changes=True, n="count(*)", worst="max(delay)", mean="avg(delay)")


def test_a_join_of_changes_with_a_table_returns_updates() -> None:
    assert str(kind(lambda s, a, t: changes(s).join(t, on="origin", how="left"))) == "updates"


def test_an_aggregate_over_changes_returns_upsert_or_changes() -> None:
    over = lambda s, **more: changes(s).key_by("n").aggregate("h", keys="count(*)", **more)  # noqa: E731
    assert str(kind(lambda s, a, t: over(s))) == "upsert(n)"
    assert str(kind(lambda s, a, t: over(s, changes=True))) == "changes"
    chained = lambda s, a, t: over(s, changes=True).key_by("keys").aggregate("hh", n="count(*)")  # noqa: E731
    check_kinds(built(chained).graph())
    operators = [node.operator.details() for node in built(chained).graph().operators]
    assert [each.get("changes") for each in operators] == [None, True, True, None]
    warned = describe(built(lambda s, a, t: changes(s).key_by("n").aggregate("h", w="max(worst)")).graph()).warnings
    assert [text for text in warned if "every distinct value of a key" in text]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"w": "max_by(worst, n)"}, "cannot retract rows"),
        ({"w": "bool_and(worst > 1)"}, "bool_and cannot retract rows"),
        ({"w": "count(DISTINCT worst)"}, "cannot retract rows"),
        ({"w": F.approx_count_distinct("worst")}, "cannot retract rows"),
        ({"w": "sum(n * _change)"}, "Remove it"),
        ({"w": "count(*)", "over_updates": True}, "counts every change"),
        ({"w": "count(*)", "changes": "count(*)"}, "rename the column"),
    ],
)
def test_unsupported_aggregates_over_changes_are_refused(columns: dict[str, object], message: str) -> None:
    with pytest.raises(PipelineError, match=message) as raised:
        built(lambda s, a, t: changes(s).key_by("n").aggregate("h", **columns))  # type: ignore[arg-type]
    assert raised.value.message.startswith("Operator 'h'")


def test_other_operators_refuse_changes() -> None:
    message = refused(lambda s, a, t: changes(s).key_by("n").process(Streaks))
    assert "operator 'c' returns changes" in message and "Remove changes=True" in message
    message = refused(lambda s, a, t: changes(s).select("n").key_by("n").aggregate("h", keys="count(*)"))
    assert "select it too" in message
    with pytest.raises(PipelineError, match="cannot be a key"):
        built(lambda s, a, t: changes(s).key_by("_change").aggregate("h", keys="count(*)"))


def test_only_upsert_streams_have_keys() -> None:
    with pytest.raises(ValueError, match="keys"):
        StreamKind(Kind.UPSERT)
    with pytest.raises(ValueError, match="keys"):
        StreamKind(Kind.APPEND, ("k",))


URL, BY = "sqlite:////tmp/kinds.sqlite", ["day", "origin"]
NAMENODE = "http://localhost:9870"


@pytest.mark.parametrize(
    ("sink", "append", "upsert", "updates"),
    [
        (console.sink(), True, True, True),
        (SinkDefinition("own", lambda place: _none(place)), True, True, True),
        (files.sink("out"), True, False, False),
        (files.sink("out", mode="updates"), True, True, True),
        (hdfs.sink(NAMENODE, "/out"), True, False, False),
        (hdfs.sink(NAMENODE, "/out", mode="updates"), True, True, True),
        (dbms.sink(URL, "t"), True, False, False),
        (dbms.sink(URL, "t", keys=BY), True, True, False),
        (dbms.sink(URL, "t", keys="origin"), True, False, False),
        (dbms.sink(URL, "t", keys=[*BY, "n"]), True, False, False),
        (dbms.sink(URL, "t", mode="updates"), True, True, True),
        (dbms.sink(URL, "t", keys="origin", mode="updates"), True, True, True),
        (dbms.two_phase_sink("postgresql://u@h/d", "t", keys=BY), True, True, False),
        (dbms.two_phase_sink("postgresql://u@h/d", "t", mode="updates"), True, True, True),
        (kafka.sink("h:1", "t"), True, False, False),
        (kafka.sink("h:1", "t", key=BY), True, True, False),
        (kafka.sink("h:1", "t", key="origin"), True, False, False),
        (kafka.sink("h:1", "t", key=BY, topic_column="day"), True, True, False),
        (kafka.sink("h:1", "t", key=BY, topic_column="n"), True, False, False),
        (kafka.sink("h:1", "t", key=BY, partition="n"), True, False, False),
        (kafka.sink("h:1", "t", mode="updates"), True, True, True),
    ],
)
def test_each_sink_accepts_its_kinds(sink: SinkDefinition, append: bool, upsert: bool, updates: bool) -> None:
    streams: list[tuple[Build, bool]] = [
        (lambda s, a, t: s, append),
        (lambda s, a, t: a, upsert),
        (lambda s, a, t: a.where("n > 3"), updates),
    ]
    for build, accepted in streams:
        assert (not misfits(built(build, sink).graph())) == accepted


def test_unknown_modes_are_refused() -> None:
    for make in (
        lambda: files.sink("out", mode="update"),  # type: ignore[arg-type]
        lambda: hdfs.sink(NAMENODE, "/out", mode="update"),  # type: ignore[arg-type]
        lambda: dbms.sink(URL, "t", mode="update"),  # type: ignore[arg-type]
        lambda: kafka.sink("h:1", "t", mode="update"),  # type: ignore[arg-type]
    ):
        with pytest.raises(OptionError, match="Did you mean 'updates'"):
            make()


def refused(build: Build, sink: SinkDefinition | None = None) -> str:
    with pytest.raises(PipelineError) as caught:
        check_kinds(built(build, sink).graph())
    return caught.value.message


def test_the_error_names_both_operators_and_the_fix() -> None:
    message = refused(lambda s, a, t: a.select("*", "n * 2 AS twice"), files.sink("out"))
    assert message.startswith("Sink 'out' accepts append, but operator 'delays' returns upsert(origin, day): ")
    assert "files.sink(.., mode='updates')" in message
    assert "dbms.sink(.., keys=['origin', 'day'])" in message
    message = refused(lambda s, a, t: a.where("n > 3").select("origin", "day"), dbms.sink(URL, "t", keys=BY))
    assert message.startswith(
        "Sink 'out' accepts append, upsert(day, origin), but where(n > 3) after operator 'delays' returns updates: "
    )
    assert "operation='change'" in message
    message = refused(lambda s, a, t: a.select("origin AS place", "day", "n"), kafka.sink("h:1", "t", key="origin"))
    assert "select(origin AS place, day, n) after operator 'delays' returns upsert(place, day)" in message
    assert "kafka.sink(.., key=['place', 'day'])" in message


def test_an_aggregate_over_replaced_values_is_refused() -> None:
    for stream in (lambda s, a, t: a, lambda s, a, t: a.where("n > 3").drop("day")):
        build = lambda s, a, t, of=stream: of(s, a, t).key_by("n").aggregate("histogram", keys="count(*)")  # noqa: E731
        message = refused(build)
        assert message.startswith("Operator 'histogram' accepts append, but ")
        assert "over_updates=True" in message
        assert "Declare the previous aggregate with changes=True" in message
    check_kinds(built(lambda s, a, t: a.key_by("n").process(Streaks)).graph())
    check_kinds(built(lambda s, a, t: a.key_by("n").aggregate("h", over_updates=True, keys="count(*)")).graph())


def test_over_updates_must_be_a_boolean() -> None:
    with pytest.raises(PipelineError, match="over_updates must be True or False"):
        built(lambda s, a, t: s.key_by("origin").aggregate("h", over_updates="count(*)"))  # type: ignore[arg-type]


def test_descriptions_contain_the_kind_of_each_stream(tmp_path: Path) -> None:
    build: Build = lambda s, a, t: a.where("n > 3")  # noqa: E731
    description = describe(built(build, files.sink(str(tmp_path), mode="updates")).graph())
    streams = {node.name: node.stream for node in description.nodes}
    assert streams == {
        "flights": StreamKind(Kind.APPEND),
        "delays": upsert(["origin", "day"]),
        "airports": None,
        "where(n > 3)": updates(""),
        "out": None,
    }
    assert description.nodes[-1].description["mode"] == "updates"
    read = type(description).model_validate_json(description.model_dump_json())
    assert read == description
    assert read.nodes[3].stream is not None
    assert "no longer meets" in str(read.nodes[3].stream.reason)


def test_accepted_kinds_can_be_pickled() -> None:
    for sink in (files.sink("out"), dbms.sink(URL, "t", keys=BY)):
        copy: Accepted = pickle.loads(pickle.dumps(sink.takes))
        assert copy.fix(upsert("k")) == sink.takes.fix(upsert("k"))


def _none(place: object) -> object:
    raise AssertionError("a check of kinds must not open a sink")
