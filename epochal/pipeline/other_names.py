"""Methods of Spark's and Flink's streams that have other names here, and the verb to use instead.

For a missing attribute, streams, tables, keyed and windowed streams suggest the verb to use. Type checkers do not see
this: for them the attribute does not exist.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from epochal.declarations.names import closest
from epochal.errors import PipelineError

_KEY_BY = "key_by(..)"
_AGGREGATE = "key_by(..).aggregate(name, column='sum(..)'), which keeps its values over all epochs"
_PROCESS = "key_by(..).process(..) with a KeyedProcess, or process_batch(..) for Arrow tables"
_TOP = "top(count, by=..), which keeps the first rows of each key or window"
_LOOK = "write(name, console.sink()) to print rows, and epochal.testing.Harness in tests: a stream has no end"
_SETTING = "a setting of the application, such as epoch_interval_seconds: epochal run and epochal submit take it"
_WINDOW = "with_watermark(..).key_by(..).window(tumbling(..))"
_SELECT = "select(..), which takes SQL text and expressions of epochal.functions"
_COLUMNS = "epochal check, which prints the columns of every step"
_NEEDLESS = "no replacement: the engine plans each epoch as one job"


def _each(text: str, *names: str) -> dict[str, str]:
    return dict.fromkeys(names, text)


_ROWS: Final[Mapping[str, str]] = {
    **_each(_SELECT, "selectExpr", "map", "flatMap", "withColumnRenamed", "withColumnsRenamed", "toDF", "unpivot"),
    **_each("select('*', 'explode(..) AS each')", "explode", "flatmap"),
    "withColumn": "with_column(name, column)",
    "withColumns": "with_columns(name=column)",
    **_each("with_columns(name=\"coalesce(name, ..)\")", "fillna", "na", "replace"),
    "dropna": "where('name IS NOT NULL')",
    **_each("union(..), which matches columns by name", "unionByName", "unionAll"),
    **_each("map_pandas(function, schema)", "mapInPandas", "mapPartitions"),
    "mapInArrow": "map_arrow(function, schema)",
    **_each("where('xxhash64(id) % 100 < 5'), which chooses the same rows in every run", "sample", "sampleBy"),
    **_each(_NEEDLESS, "cache", "persist", "unpersist", "checkpoint", "localCheckpoint", "repartition", "coalesce"),
    **_each("join(.., on=..)", "crossJoin", "joinWith", "lateralJoin", "coGroup"),
    **_each(_COLUMNS, "printSchema", "schema", "columns", "dtypes", "explain", "isStreaming"),
    "alias": "names of columns only: a stream needs no alias",
}  # fmt: skip
"""Methods that streams and tables have in common."""

STREAM: Final[Mapping[str, str]] = {
    **_ROWS,
    **_each(_KEY_BY, "groupBy", "groupby", "group_by", "groupByKey", "keyBy", "partitionBy"),
    **_each(_AGGREGATE, "agg", "aggregate", "count", "sum", "avg", "mean", "min", "max", "rollup", "cube", "reduce"),
    **_each("write(name, sink)", "writeStream", "writeTo", "foreachBatch", "foreach", "addSink", "sinkTo", "to_sink"),
    **_each("with_watermark(column, delay)", "withWatermark", "assignTimestampsAndWatermarks", "watermark"),
    **_each("drop_duplicates(.., within=..)", "dropDuplicates", "dropDuplicatesWithinWatermark"),
    **_each("key_by(..).distinct(name), or drop_duplicates(..)", "distinct"),
    **_each(_TOP, "limit", "head", "take", "first", "tail", "orderBy", "sort", "sortWithinPartitions", "offset"),
    **_each(_LOOK, "show", "collect", "toPandas", "toArrow", "toLocalIterator", "print"),
    **_each(_WINDOW, "window", "timeWindow", "windowAll", "session_window"),
    **_each(
        _PROCESS, "process", "process_batch", "applyInPandas", "applyInPandasWithState", "transformWithState",
        "transformWithStateInPandas", "mapGroupsWithState", "flatMapGroupsWithState",
    ),
    **_each(_SETTING, "trigger", "outputMode", "option", "options", "queryName", "start", "awaitTermination"),
    **_each("key_by(..).process(..), or join(.., how='left_anti') with a table", "intersect", "subtract", "exceptAll"),
    **_each("connect(control, broadcast=True, order_by=..)", "broadcast"),
    **_each("side(name)", "getSideOutput", "side_output"),
    **_each("pipeline.feedback(..)", "iterate"),
    **_each("transform(function), whose function gets a DataFrame", "createOrReplaceTempView", "rdd"),
    "pivot": "aggregate(name, column=\"sum(..) FILTER (WHERE ..)\") for each value",
}  # fmt: skip

_IN_TABLES = "transform(lambda frame: ..), whose function gets the whole table as a DataFrame"
TABLE: Final[Mapping[str, str]] = {
    **_ROWS,
    **_each(
        _IN_TABLES, "groupBy", "groupby", "group_by", "agg", "aggregate", "count", "distinct", "dropDuplicates",
        "drop_duplicates", "limit", "orderBy", "sort", "top", "key_by", "sample",
    ),
    **_each("stream.join(table, on=..), and write(..) of the result", "write", "writeStream", "show", "collect"),
}  # fmt: skip

_BEFORE = "the verb before key_by(..)"
KEYED: Final[Mapping[str, str]] = {
    **_each(
        "aggregate(name, column='sum(..)')",
        "agg", "count", "sum", "avg", "mean", "min", "max", "reduce", "fold", "rollup", "cube", "pivot",
    ),
    **_each(
        "process(..) with a KeyedProcess, or process_batch(..) for Arrow tables",
        "applyInPandas", "applyInArrow", "applyInPandasWithState", "transformWithState", "transformWithStateInPandas",
        "mapGroupsWithState", "flatMapGroupsWithState", "mapGroups", "flatMapGroups", "apply", "map", "flatMap",
    ),
    **_each("drop_duplicates(..)", "dropDuplicates", "dropDuplicatesWithinWatermark"),
    **_each("top(count, by=..)", "limit", "head", "first", "sort", "orderBy"),
    **_each(
        _BEFORE,
        "select", "where", "filter", "with_column", "with_columns", "drop", "transform", "union", "map_arrow",
        "map_pandas", "with_watermark", "join", "latest", "connect", "key_by", "process_any", "process_partial",
        "standing_queries", "selectExpr", "withColumn", "withWatermark",
    ),
    **_each("window(tumbling(..))", "timeWindow", "tumbling", "sliding", "session"),
    **_each("a verb such as aggregate(..), then write(name, sink)", "write", "writeStream", "show", "collect"),
}  # fmt: skip

WINDOWED: Final[Mapping[str, str]] = {
    name: KEYED[name]
    for name in KEYED
    if KEYED[name] not in (KEYED["dropDuplicates"], _BEFORE, KEYED["tumbling"], KEYED["applyInPandas"])
} | {
    **_each("process(..) with a KeyedProcess", *(name for name in KEYED if KEYED[name] == KEYED["applyInPandas"])),
    **_each("the verb before key_by(..).window(..)", *(name for name in KEYED if KEYED[name] == _BEFORE)),
    **_each("key_by(..).drop_duplicates(..)", "drop_duplicates", "distinct", "dropDuplicates"),
    **_each("window(.., allowed_lateness=..)", "allowedLateness"),
}

CONNECTED: Final[Mapping[str, str]] = _each("key_by(..).process(..) with a BroadcastProcess", "process", "keyBy", "map")


class UnknownVerb(PipelineError, AttributeError):
    """A stream has no verb of this name."""


class NamesVerbs:
    """Suggests the verb to use if an attribute is missing."""

    _other_names: Mapping[str, str] = {}

    if not TYPE_CHECKING:  # type checkers must report missing attributes

        def __getattr__(self, name: str) -> object:
            kind = type(self).__name__
            if name.startswith("_"):  # requested by copy, pickle and similar modules
                raise AttributeError(f"{kind!r} object has no attribute {name!r}", name=name, obj=self)
            instead = self._other_names.get(name)
            if instead is not None:
                raise UnknownVerb(f"{kind} has no {name}. Use {instead}.")
            verbs = [verb for verb in dir(type(self)) if not verb.startswith("_")]
            raise UnknownVerb(f"{kind} has no verb {name!r}.{closest(name, verbs) or ' ' + _LISTED.format(kind)}")


_LISTED = "docs/how-to/write-a-pipeline.md lists the verbs of a {}."
