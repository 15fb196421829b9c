"""Expressions and code that would change the result of a recomputed epoch are refused, by the check or in the epoch."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
import pytest
from pyspark.sql import functions as spark_functions

from epochal import BatchFunction, KeyedProcess, Pipeline, ValueState
from epochal import functions as F
from epochal.connectors import console, generator
from epochal.declarations.determinism import varying_names
from epochal.declarations.expressions import sql
from epochal.errors import AuthorError, EpochAborted, PipelineError
from epochal.operators.process.author_object import read_only
from epochal.pipeline.analysis import analyse
from epochal.pipeline.stream import Stream
from epochal.testing import Harness

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS = {"user": "cast(id as string)", "n": "cast(id as int)"}


def pipeline(before: Callable[[Stream], Stream], after: Callable[[Stream], Stream] = lambda stream: stream) -> Pipeline:
    made = Pipeline("chance")
    rows = before(made.read("rows", generator.source(COLUMNS)))
    after(rows.key_by("user").aggregate("totals", total="sum(n)")).write("out", console.sink())
    return made


def shuffled(frame: DataFrame) -> DataFrame:
    return frame.withColumn("r", spark_functions.rand())


def stamped(frame: DataFrame) -> DataFrame:
    return frame.where(spark_functions.current_timestamp() > spark_functions.lit("2020-01-01"))


def sampled(frame: DataFrame) -> DataFrame:
    return frame.sample(0.5)


def plain(frame: DataFrame) -> DataFrame:
    return frame.withColumn("r", spark_functions.col("n") + 1)


REFUSED: dict[str, tuple[Callable[[Stream], Stream], str]] = {
    "rand in text": (lambda s: s.with_columns(r="n + Rand ( 5 )"), "rand()"),
    "quoted": (lambda s: s.with_columns(r="`rand`()"), "rand()"),
    "a function": (lambda s: s.with_columns(r=F.rand() + 1), "rand()"),
    "within": (lambda s: s.select("user", "n", F.when(F.col("n") > 0, F.array(F.uuid())).alias("u")), "uuid()"),
    "a clock": (lambda s: s.with_columns(at="current_timestamp()"), "current_timestamp()"),
    "without brackets": (lambda s: s.where("current_date > date '2020-01-01'"), "current_date"),
    "a moment": (lambda s: s.where("timestamp 'now' > timestamp '2020-01-01 00:00:00'"), "'now'"),
    "Unix time": (lambda s: s.with_columns(at="unix_timestamp()"), "unix_timestamp()"),
    "a row number": (
        lambda s: s.with_columns(i="monotonically_increasing_id()"),
        "monotonically_increasing_id()",
    ),
    "a file": (lambda s: s.with_columns(f=F.input_file_name()), "input_file_name()"),
    "known only to Spark": (
        lambda s: s.with_columns(v="java_method('java.util.UUID', 'randomUUID')"),
        "java_method()",
    ),
    "a function from frame to frame": (lambda s: s.transform(shuffled), "rand()"),
    "a clock in such a function": (lambda s: s.transform(stamped), "current_timestamp()"),
    "a sample in such a function": (lambda s: s.transform(sampled), "sample()"),
    "several steps before": (lambda s: s.with_columns(r="rand()").drop("r").where("n > 0"), "rand()"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_random_and_clock_functions_are_refused_before_an_operator(spark: SparkSession, case: str) -> None:
    before, name = REFUSED[case]
    with pytest.raises(PipelineError) as refused:
        analyse(pipeline(before).graph(), spark)
    assert f"{name} returns another value when an epoch is recomputed" in refused.value.message
    assert "source 'rows'" in refused.value.message and "xxhash64" in refused.value.message


def test_nondeterministic_udf_is_refused(spark: SparkSession) -> None:
    dice = F.udf(lambda n: n, "int").asNondeterministic()
    with pytest.raises(PipelineError, match="a non-deterministic function"):
        analyse(pipeline(lambda s: s.with_columns(d=dice(F.col("n")))).graph(), spark)


def test_an_aggregate_of_the_clock_is_refused(spark: SparkSession) -> None:
    made = Pipeline("chance")
    rows = made.read("rows", generator.source(COLUMNS))
    rows.key_by("user").aggregate("last", at="max(now())").write("out", console.sink())
    with pytest.raises(PipelineError, match=r"'last', column 'at': max\(now\(\)\): now\(\) returns another value"):
        analyse(made.graph(), spark)


def test_deterministic_columns_and_all_after_operators_are_accepted(spark: SparkSession) -> None:
    analyse(pipeline(lambda s: s, lambda s: s.with_columns(at="current_timestamp()", r=F.rand())).graph(), spark)
    analyse(pipeline(lambda s: s.transform(plain)).graph(), spark)
    fine = {
        "a": "'rand() and now()'",
        "b": "date '2020-01-01'",
        "c": "unix_timestamp(timestamp '2020-01-01 00:00:00')",
        "d": "explode(array(1, 2))",
        "e": "named_struct('now', 1).now /* rand() */",
    }
    analyse(pipeline(lambda s: s.with_columns(**fine)).graph(), spark)


def test_function_names_are_parsed_as_in_spark() -> None:
    assert list(varying_names(sql('f(rand /* ( */ (1), "uuid()", `a``rand`(1))'))) == ["rand()"]
    assert list(varying_names(sql("current_date"), {"current_date"})) == []
    assert list(varying_names(F.call_function("uuid"))) == ["uuid()"]


class Counts(KeyedProcess):
    seen = 0
    words: ClassVar[list[str]] = []
    how = "instance"
    total = ValueState("n bigint")
    output = "user string, n bigint"

    def process(self, key: Any, rows: Any, ctx: Any) -> Any:
        if self.how == "instance":
            self.seen += len(rows)
        elif self.how == "content":
            self.words.append(key.user)
        elif self.how == "class":
            Counts.seen += 1
        elif self.how == "state":
            self.total = len(rows)
        elif self.how == "new":
            self.other = 1
        elif self.how == "dict":
            self.__dict__["other"] = 1
        return [(key.user, self.limit)]

    @functools.cached_property
    def limit(self) -> int:
        return 7


@pytest.mark.parametrize("how", ["instance", "content", "class", "state", "new", "dict", "nothing"])
def test_state_in_attributes_of_an_object_is_refused(how: str) -> None:
    seen, words = Counts.seen, list(Counts.words)
    instance = type("Counts", (Counts,), {"how": how})()
    row_table = pa.Table.from_pylist([{"user": "ann"}])
    try:
        if how == "nothing":
            with read_only(instance, "Operator 'counts'"):
                assert instance.process(type("K", (), {"user": "ann"}), row_table.to_pylist(), None) == [("ann", 7)]
            instance.seen = 5  # attributes are writable again afterwards
            return
        kinds = (AttributeError, AuthorError)
        with pytest.raises(kinds, match=r"ValueState|is a state") as refused, read_only(instance, "Operator 'counts'"):
            instance.process(type("K", (), {"user": "ann"}), row_table.to_pylist(), None)
        name = {"content": "words", "state": "total", "new": "other", "dict": "other"}.get(how, "seen")
        assert f"Counts.{name}" in str(refused.value)
    finally:
        Counts.seen, Counts.words[:] = seen, words


class KeepsBatch(BatchFunction):
    output = "user string"

    def process_batch(self, batch: pa.Table, states: Any, ctx: Any) -> pa.Table:
        self.last = batch.num_rows
        return batch.select(["user"])


@pytest.mark.parametrize("verb", ["process", "process_batch"])
def test_an_epoch_that_writes_a_setting_is_aborted_with_the_fix(spark: SparkSession, verb: str) -> None:
    made = Pipeline("chance")
    keyed = made.read("rows", generator.source(COLUMNS)).key_by("user")
    stream = keyed.process(Counts) if verb == "process" else keyed.process_batch(KeepsBatch)
    stream.write("out", console.sink())
    with (
        Harness(made, spark) as test,
        pytest.raises(EpochAborted, match=r"Operator '(counts|keeps_batch)'.*declare a state"),
    ):
        test.epoch(rows=[("ann", 1)])


class Typed(KeyedProcess):
    seen = 0
    share: float = 0.5
    names: ClassVar[tuple[str, ...]] = ()
    nothing = None
    output = "n bigint"

    def process(self, key: Any, rows: Any, ctx: Any) -> Any:
        return []


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"seen": "abc"}, "setting 'seen' must be int, not 'abc'"),
        ({"seen": "5"}, "setting 'seen' must be int"),
        ({"seen": True}, "setting 'seen' must be int"),
        ({"seen": 1.5}, "setting 'seen' must be int"),
        ({"share": "0.1"}, "setting 'share' must be float"),
        ({"names": (1,)}, "setting 'names'"),
    ],
)
def test_setting_must_have_the_type_of_its_default(setting: dict[str, Any], message: str) -> None:
    keyed = Pipeline("chance").read("rows", generator.source(COLUMNS)).key_by("user")
    with pytest.raises(PipelineError, match="Operator 'typed': Typed: ") as refused:
        keyed.process(Typed, **setting)
    assert message in refused.value.message


def test_settings_of_the_right_type_are_accepted() -> None:
    made = Pipeline("chance")
    keyed = made.read("rows", generator.source(COLUMNS)).key_by("user")
    keyed.process(Typed, seen=7, share=1, names=("a",), nothing="anything")
    (node,) = made.graph().operators
    found: Any = node.operator.process  # type: ignore[attr-defined]
    assert (found.seen, found.share, found.names, found.nothing) == (7, 1.0, ("a",), "anything")
