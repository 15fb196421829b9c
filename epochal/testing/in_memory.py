"""Sources and sinks of the harness: rows that a test supplies, and rows that it reads."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import ArrayType, DataType, MapType, StructType, TimestampType

from epochal.contracts.backend import SinkBackend, SinkTransaction
from epochal.contracts.handle import Handle
from epochal.contracts.identity import EpochScope, TaskScope
from epochal.contracts.inbox import CallBatch, GivenCalls
from epochal.contracts.source import Slice, SliceLimits, Source
from epochal.declarations.entry import ENTRIES
from epochal.declarations.names import closest, listed
from epochal.declarations.spark_errors import at
from epochal.errors import InvalidInput, SourceError
from epochal.operators.entries.plan import EntrySource
from epochal.pipeline.graph import Graph, Node, SourceNode, StaticNode
from epochal.state.type_names import quoted

InputRows = DataFrame | Sequence[Mapping[str, Any]] | Sequence[tuple[Any, ...]]
Schema = str | StructType


class InMemorySource(Source):
    """A source whose slices are DataFrames of the test, one per epoch.

    ``frames``: the DataFrames of this source in the previous version, whose positions continue.
    """

    def __init__(self, name: str, schema: StructType, frames: list[DataFrame] | None = None) -> None:
        self._name = name
        self._schema = schema
        self.frames = [] if frames is None else frames
        self._counts: dict[int, int] = {}
        self._position = 0

    @property
    def kind(self) -> str:
        return "in-memory"

    @property
    def ended(self) -> bool:
        return self._position >= len(self.frames)

    def schema(self, spark: SparkSession) -> StructType:
        return self._schema

    def give(self, frame: DataFrame, count: int | None = None) -> None:
        """Set the rows of the next epoch, and their number if it is known."""
        if count is not None:
            self._counts[len(self.frames)] = count
        self.frames.append(frame)

    def restore(self, checkpoint: dict[str, Any] | None, slices: Sequence[Slice]) -> None:
        self._position = len(slices) + (checkpoint or {}).get("position", 0)

    def checkpoint(self) -> dict[str, Any]:
        return {"position": self._position}

    def limit_to_available(self) -> None:
        """All input is available."""

    def most_rows(self, slice: Slice) -> int | None:
        return self._counts.get(slice.start["position"])

    def plan(self, limits: SliceLimits) -> Slice | None:
        if self._position >= len(self.frames):
            return None
        return Slice(start={"position": self._position}, end={"position": self._position + 1})

    def accept(self, slice: Slice) -> None:
        self._position = slice.end["position"]

    def read(self, spark: SparkSession, slice: Slice) -> DataFrame:
        frame = self.frames[slice.start["position"]]
        missing = [name for name in self._schema.names if name not in frame.columns]
        if missing:
            raise SourceError(f"The rows given to source {self._name!r} have no column {', '.join(missing)}.")
        rows: DataFrame = frame.select(*map(quoted, self._schema.names))
        return rows

    def acknowledge(self, slice: Slice) -> None:
        """Nothing to acknowledge."""


class CapturingSink(SinkBackend):
    """A sink that stores committed rows in a folder, for the test to read."""

    def __init__(self, name: str, folder: str) -> None:
        self._name = name
        self._folder = folder

    @property
    def kind(self) -> str:
        return "captured"

    @property
    def target(self) -> str:
        return f"captured:{self._folder}/{self._name}"

    def check(self, schema: pa.Schema) -> None:
        """Accept any columns."""

    def start(self, task: TaskScope) -> _CapturingTransaction:
        return _CapturingTransaction(task, self._staging(task.epoch))

    def commit(self, epoch: EpochScope, handles: Sequence[Handle]) -> None:
        for handle in handles:
            staged = Path(handle.payload["path"])
            if staged.exists():
                staged.rename(self._committed(epoch) / staged.name)

    def abort(self, epoch: EpochScope, handles: Sequence[Handle]) -> None:
        for handle in handles:
            Path(handle.payload["path"]).unlink(missing_ok=True)

    def recover(self, epoch: EpochScope) -> None:
        """The folder has no other writers."""

    def sweep(self, epoch: EpochScope, keep: Sequence[Handle]) -> int:
        kept = {handle.payload["path"] for handle in keep}
        lost = [path for path in self._staging(epoch).glob("*.parquet") if str(path) not in kept]
        for path in lost:
            path.unlink()
        return len(lost)

    def rows(self, epoch: EpochScope, schema: pa.Schema) -> pa.Table:
        """The committed rows of an epoch."""
        return _read(self._committed(epoch), schema)

    def undecided_rows(self, epoch: EpochScope, schema: pa.Schema) -> pa.Table:
        """The rows that the tasks of an epoch have written, before the epoch is decided."""
        return _read(self._staging(epoch), schema)

    def _staging(self, epoch: EpochScope) -> Path:
        return Path(self._folder) / "staged" / self._name / str(epoch.epoch)

    def _committed(self, epoch: EpochScope) -> Path:
        folder = Path(self._folder) / "committed" / self._name / str(epoch.epoch)
        folder.mkdir(parents=True, exist_ok=True)
        return folder


def _read(folder: Path, schema: pa.Schema) -> pa.Table:
    tables = [pq.read_table(path) for path in sorted(folder.glob("*.parquet"))]
    return pa.concat_tables([schema.empty_table(), *tables], promote_options="permissive")


class _CapturingTransaction(SinkTransaction):
    def __init__(self, task: TaskScope, folder: Path) -> None:
        self._task = task
        self._path = folder / f"{task.subtask}-{uuid4().hex}.parquet"
        self._batches: list[pa.RecordBatch] = []

    def write(self, batch: pa.RecordBatch) -> None:
        self._batches.append(batch)

    def pre_commit(self) -> Handle:
        rows = sum(batch.num_rows for batch in self._batches)
        if rows:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(pa.Table.from_batches(self._batches), self._path)
        return Handle(
            owner=self._task.owner, subtask=self._task.subtask, rows=rows, bytes=0, payload={"path": str(self._path)}
        )

    def discard(self) -> None:
        self._path.unlink(missing_ok=True)


class CallsOfTest(GivenCalls):
    """The calls of entries of a test."""

    def __init__(self) -> None:
        super().__init__(())
        self._calls = 0

    def add(self, entry: str, calls: Sequence[Mapping[str, Any]]) -> list[str]:
        """The ids of the calls."""
        first = self._calls + 1
        self._calls += len(calls)
        ids = tuple(f"call-{number}" for number in range(first, first + len(calls)))
        texts = tuple(json.dumps(dict(call)) for call in calls)
        self._batches += (CallBatch(entry=entry, first=first, request_ids=ids, arguments=texts),)
        return list(ids)


def stand_ins(
    graph: Graph,
    spark: SparkSession,
    calls: CallsOfTest,
    schemas: Mapping[str, Schema],
    tables: Mapping[str, InputRows],
    before: Mapping[str, Source],
) -> tuple[Graph, dict[str, Source]]:
    """The graph with sources of the test, and these sources by name.

    ``schemas``: the columns of sources whose columns are unavailable; ``tables``: the rows of static tables;
    ``before``: the sources of the previous version. Raises ``InvalidInput``, ``SourceError``, ``SchemaError``.
    """
    static = [node.name for node in graph.static_tables]
    _check_names("source or static table", schemas, [*(node.name for node in graph.sources), *static])
    _check_names("static table", tables, static)
    sources: dict[str, Source] = {}

    def replaced(node: Node) -> Node:
        if isinstance(node, SourceNode):
            source = sources[node.name] = _source(node, spark, calls, schemas.get(node.name), before)
            return replace(node, make=lambda: source)
        if isinstance(node, StaticNode) and node.name in tables:
            declared = schemas.get(node.name)
            rows = tables[node.name]
            if not isinstance(rows, DataFrame):
                columns = _struct(declared) if declared is not None else node.read(spark).schema
                rows = frame_of(f"table {node.name!r}", rows, columns, spark)
            frame = within(rows, spark)
            return replace(node, read=lambda session: frame)
        return node

    return replace(graph, nodes=tuple(map(replaced, graph.nodes))), sources


def frame_of(what: str, rows: InputRows, schema: StructType, spark: SparkSession) -> DataFrame:
    """``rows`` of ``what`` as a DataFrame of this session. Missing columns of a dict are null. Raises
    ``InvalidInput``."""
    if isinstance(rows, DataFrame):
        return within(rows, spark)
    names = schema.names
    for row in rows:
        if isinstance(row, Mapping) and (unknown := [name for name in row if name not in names]):
            hint = closest(unknown[0], names) or f" There are {listed(names)}."
            raise InvalidInput(f"A row of {what} has an unknown column {unknown[0]!r}.{hint}")
    values = [tuple(row.get(name) for name in names) if isinstance(row, Mapping) else tuple(row) for row in rows]
    timed = [number for number, field in enumerate(schema) if _has_timestamps(field.dataType)]
    if timed:
        values = [_with_zones(row, schema) if len(row) == len(names) else row for row in values]
    try:
        return spark.createDataFrame(values, schema)
    except Exception as error:
        raise InvalidInput(f"The rows of {what} do not match its columns ({schema.simpleString()}): {error}") from (
            error
        )


def within(frame: DataFrame, spark: SparkSession) -> DataFrame:
    """Copy a DataFrame of any session to this session, so that only the settings of this session apply."""
    if frame.sparkSession is spark:
        return frame
    return spark.createDataFrame(frame.toArrow(), frame.schema)


def _source(
    node: SourceNode, spark: SparkSession, calls: CallsOfTest, declared: Schema | None, before: Mapping[str, Source]
) -> Source:
    source = node.make()
    if node.name == ENTRIES and isinstance(source, EntrySource):
        source.connect(calls)
        return source
    earlier = before.get(node.name)
    frames = earlier.frames if isinstance(earlier, InMemorySource) else None
    with at(f"Source {node.name!r}"):
        if declared is not None:
            return InMemorySource(node.name, _struct(declared), frames)
        try:
            return InMemorySource(node.name, source.schema(spark), frames)
        except SourceError as error:
            raise SourceError(
                f"{error.message} A test can run without the source: declare its columns, schemas={{{node.name!r}: "
                f"'id bigint, ..'}}."
            ) from error


def _struct(schema: Schema) -> StructType:
    if isinstance(schema, StructType):
        return schema
    parsed = DataType.fromDDL(schema)
    return parsed if isinstance(parsed, StructType) else StructType().add("value", parsed)


def _check_names(what: str, declared: Mapping[str, Any], names: Sequence[str]) -> None:
    for name in declared:
        if name not in names:
            raise InvalidInput(f"There is no {what} {name!r}; there are: {', '.join(names) or 'none'}.")


def _has_timestamps(type: DataType) -> bool:
    return isinstance(type, TimestampType) or '"timestamp"' in type.json()


def _with_zones(value: Any, type: DataType) -> Any:
    """``value`` with UTC in each datetime of a ``timestamp`` that has no zone: Python would take that of the machine,
    and a driver's session has UTC."""
    if value is None or not _has_timestamps(type):
        return value
    match type:
        case TimestampType():
            naive = isinstance(value, datetime) and value.tzinfo is None
            return value.replace(tzinfo=UTC) if naive else value
        case ArrayType():
            return [_with_zones(item, type.elementType) for item in value]
        case MapType():
            return {_with_zones(key, type.keyType): _with_zones(item, type.valueType) for key, item in value.items()}
        case StructType() if isinstance(value, Mapping):
            return {name: _with_zones(item, type[name].dataType) for name, item in value.items()}
        case StructType():
            return tuple(_with_zones(item, field.dataType) for item, field in zip(value, type, strict=True))
    return value
