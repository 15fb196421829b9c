"""A slice's ranges as a DataFrame. Tasks read the ranges in parallel; Spark parses the JSON that tasks leave to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import pyarrow as pa

from epochal.backends.kafka.avro import parsed
from epochal.backends.kafka.connection import Connection
from epochal.connectors import json_objects
from epochal.connectors.kafka.decoding import (
    CORRUPT,
    METADATA,
    MISFIT,
    OFFSET,
    PARTITION,
    TOMBSTONES,
    TOPIC,
    VALUE,
    AvroDecoder,
    BytesDecoder,
    Columns,
    TextDecoder,
    Tombstones,
    ValueDecoder,
)
from epochal.connectors.kafka.json_values import JsonDecoder, arrow_fields, field_column
from epochal.connectors.kafka.offsets import OffsetRange, grouped
from epochal.connectors.kafka.reading import ReadRanges
from epochal.contracts.source import PARTITION as SOURCE_PARTITION
from epochal.errors import MalformedRecord, OptionError, SchemaError
from epochal.pipeline.definitions import check_choice
from epochal.state.type_names import quoted
from epochal.tasks.reporting import MARKER

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Observation, SparkSession
    from pyspark.sql.types import StructField, StructType

_PARSED = "_epochal_parsed"
_OF_TOPIC, _OF_PARTITION = "_epochal_of_topic", "_epochal_of_partition"
Malformed = Literal["fail", "drop"]
FORMATS = ("json", "string", "raw", "avro")


@dataclass(frozen=True)
class RecordFormat:
    """The columns of a record. ``ddl``: schema for JSON; ``None`` for the formats that tasks decode."""

    value: ValueDecoder
    ddl: str | None
    metadata: tuple[tuple[str, str], ...]
    key_format: str
    malformed: Malformed
    tombstones: Tombstones = "row"

    def schema(self, spark: SparkSession) -> StructType:
        """The columns of the source. Raises ``SchemaError`` for invalid DDL and for a duplicate column."""
        from pyspark.sql.pandas.types import from_arrow_schema
        from pyspark.sql.types import StructType

        columns = self._columns()
        values = self._json_schema() if self.ddl is not None else from_arrow_schema(columns.value.schema)
        added = from_arrow_schema(pa.schema([(name, columns.type_of(what)) for name, what in self.metadata]))
        names = [each.name.casefold() for each in (*values, *added)]
        for name in names:
            if names.count(name) > 1:
                raise SchemaError(f"The Kafka source has column {name!r} twice: rename it, metadata={{'other': ..}}.")
        return StructType([*values, *added])

    def frame(
        self,
        spark: SparkSession,
        connection: Connection,
        ranges: Sequence[OffsetRange],
        dropped: Observation | None,
        unread: frozenset[str] = frozenset(),
    ) -> DataFrame:
        """The records of exactly these ranges. ``dropped`` counts the dropped records, which do not fit the schema.

        ``unread``: columns that are not read; reading them raises an error.
        """
        from pyspark.sql.pandas.types import from_arrow_schema

        columns = self._columns(unread)
        groups = tuple(grouped(ranges, tasks=max(1, spark.sparkContext.defaultParallelism)))
        task = ReadRanges(connection, groups, columns)
        read = spark.range(0, len(groups), 1, len(groups)).mapInArrow(task, from_arrow_schema(columns.schema))
        checked = self._checked(self._parsed(read, unread), dropped) if columns.marking else read
        return checked.select(
            *(_absent(field) if field.name in unread else _own(field) for field in self.schema(spark))
        )

    def partitioned(
        self,
        spark: SparkSession,
        connection: Connection,
        ranges: Sequence[OffsetRange],
        dropped: Observation | None,
        unread: frozenset[str] = frozenset(),
    ) -> DataFrame:
        """Like :meth:`frame`, with an additional column: topic and number of each record's partition."""
        located = replace(self, metadata=(*self.metadata, (_OF_TOPIC, "topic"), (_OF_PARTITION, "partition")))
        frame = located.frame(spark, connection, ranges, dropped, unread)
        partition = f"concat_ws('/', {_OF_TOPIC}, {_OF_PARTITION}) AS {SOURCE_PARTITION}"
        return frame.selectExpr(*map(quoted, self.schema(spark).names), partition)

    def _columns(self, unread: frozenset[str] = frozenset()) -> Columns:
        """Columns of the tasks. For JSON, the fields that tasks can decode, and the texts that Spark has to parse."""
        value, fields, json = self.value, self._read_in_tasks(), self.ddl is not None
        if fields is not None:
            value = JsonDecoder(fields)
            of_fields = {field_column(number) for number, name in enumerate(fields.names) if name in unread}
            unread = unread - set(fields.names) | of_fields
        refusing = not json and self.malformed == "fail"
        return Columns(
            value,
            self.metadata,
            self.key_format,
            located=json,
            refusing=refusing,
            unread=unread,
            tombstones=self.tombstones,
        )

    def _read_in_tasks(self) -> pa.Schema | None:
        """The JSON fields that tasks decode; ``None`` if Spark parses all values."""
        return None if self.ddl is None else arrow_fields(self._json_schema())

    def _parsed(self, frame: DataFrame, unread: frozenset[str] = frozenset()) -> DataFrame:
        if self.ddl is None:
            return frame
        from pyspark.sql import functions as F

        schema = self._json_schema()
        parsed = frame.withColumn(_PARSED, json_objects.parsed(F.col(VALUE), schema, {}))
        fits = json_objects.fits(F.col(_PARSED), F.col(VALUE), {})
        unfit = F.when(~fits, F.lit("its value is not one JSON object that fits the schema"))
        where = F.format_string("offset %d of topic %s, partition %d: ", *map(F.col, (OFFSET, TOPIC, PARTITION)))
        of_tasks = {name: field_column(number) for number, name in enumerate(schema.names) if name not in unread}
        fields = {name: json_objects.record(F.col(_PARSED))[name] for name in of_tasks}
        read = [name for name in of_tasks.values() if name in frame.columns]
        if read:
            left = F.col(VALUE).isNotNull()
            fields = {name: F.when(left, field).otherwise(F.col(of_tasks[name])) for name, field in fields.items()}
        others = [F.col(name) for name in frame.columns if name not in (VALUE, CORRUPT, *read)]
        reason = F.coalesce(F.col(CORRUPT), unfit)
        named = [field.alias(name) for name, field in fields.items()]
        return parsed.select(*named, *others, F.when(reason.isNotNull(), F.concat(where, reason)).alias(CORRUPT))

    def _checked(self, frame: DataFrame, dropped: Observation | None) -> DataFrame:
        from pyspark.sql import functions as F

        fit = F.col(CORRUPT).isNull()
        if dropped is not None:
            return frame.observe(dropped, F.count(F.col(CORRUPT)).alias("rows")).where(fit)
        return frame.where(F.when(fit, F.lit(True)).otherwise(F.raise_error(_failure()).cast("boolean")))

    def _json_schema(self) -> StructType:
        from pyspark.errors import PySparkException
        from pyspark.sql.types import StructType

        try:
            schema = StructType.fromDDL(self.ddl or "")
        except PySparkException as error:
            raise SchemaError(
                f"The schema of the Kafka source cannot be read: {self.ddl!r}. {str(error).strip().splitlines()[0]}"
            ) from error
        if not isinstance(schema, StructType):
            raise SchemaError(f"The schema of the Kafka source is {self.ddl!r}: write 'column type, ..'.")
        return schema


def record_format(
    what: str,
    format: str,
    schema: str | None,
    value: str,
    metadata: Sequence[str] | Mapping[str, str],
    key_format: str,
    malformed: Malformed,
    tombstones: Tombstones = "row",
) -> RecordFormat:
    """Create the format from the source's options.

    Raises ``OptionError`` for an invalid combination, ``SchemaError`` for an invalid Avro schema.
    """
    check_choice(what, "format", format, FORMATS)
    check_choice(what, "key_format", key_format, ("string", "raw"))
    check_choice(what, "malformed", malformed, ("fail", "drop"))
    check_choice(what, "tombstones", tombstones, TOMBSTONES)
    if (schema is not None) != (format in ("json", "avro")):
        need = "needs a schema" if schema is None else "takes no schema"
        raise OptionError(f"{what}: format={format!r} {need}; schema='origin string, delay int' is for JSON.")
    if isinstance(metadata, str):
        metadata = (metadata,)
    named = metadata.items() if isinstance(metadata, Mapping) else [(name, name) for name in metadata]
    for _, each in named:
        check_choice(what, "metadata", each, METADATA)
    return RecordFormat(
        value=_decoder(format, schema, value),
        ddl=schema if format == "json" else None,
        metadata=tuple(named),
        key_format=key_format,
        malformed=malformed,
        tombstones=tombstones,
    )


def _decoder(format: str, schema: str | None, value: str) -> ValueDecoder:
    if format == "avro":
        parsed(str(schema))
        return AvroDecoder(str(schema))
    if format == "raw":
        return BytesDecoder(value)
    return TextDecoder(value if format == "string" else VALUE)


def _own(field: StructField) -> Column:
    from pyspark.sql import functions as F

    return F.col(quoted(field.name))


def _absent(field: StructField) -> Column:
    """Placeholder for an unread column. Spark prunes it; evaluating it raises an error."""
    from pyspark.sql import functions as F

    error = F.raise_error(F.lit(f"Column {field.name!r} of the Kafka source is read, which was not foreseen: a bug."))
    return error.cast(field.dataType).alias(field.name)


def _failure() -> Column:
    """The record's error in the form that the driver parses, computed by Spark in the task."""
    from pyspark.sql import functions as F

    message = F.format_string(MISFIT, F.col(CORRUPT))
    failure = F.struct(F.lit(MalformedRecord.slug).alias("type"), message.alias("message"))
    return F.concat(F.lit(MARKER), F.to_json(failure))
