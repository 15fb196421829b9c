"""State as a DataFrame: one state table at any epoch, read by Spark from the files of the snapshot store.

It merges bases and deltas: the newest row of each key, without deleted ones. Files are read by actions, only the needed
columns; filters on key columns are pushed down to the files.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import reduce
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from epochal.contracts.catalog import ManifestReference
from epochal.contracts.conditions import as_datetime
from epochal.errors import InvalidInput, NotFound
from epochal.snapshots import layout
from epochal.snapshots.lineage import history
from epochal.snapshots.manifest import FileReference, Manifest
from epochal.snapshots.reader import SnapshotReader
from epochal.snapshots.row_groups import column_names, concurrently, read_rows
from epochal.snapshots.store import SnapshotStore
from epochal.state.json_form import from_json, variant_text
from epochal.state.table import Column, Quotient, Shown, StateTable
from epochal.state.type_names import decimal_of, nested_type, quoted
from epochal.state.types import VARIANT

_EPOCH, _OPERATION, _ROW = "__epochal_epoch", "_op", "__epochal_row"
_EPOCH_IN_PATH = r"(?:/epochs/|/bases/[^/]+-)(\d{10,})(?:/[^/]+|-\d+-\d+-[0-9a-f]+\.parquet)$"
"""Epoch of a delta, and the latest epoch that a run has: of a key's rows, that of the greatest epoch is the newest."""
_LAST_INSTANT = datetime.max.replace(tzinfo=UTC)


class ControlPlaneClient(Protocol):
    """The part of :class:`epochal.Client` that finds the manifest of an epoch."""

    def application(self, name: str) -> Any: ...


def read_state(
    spark: SparkSession,
    store: str,
    table: str,
    *,
    epoch: int | str | None = None,
    application: str | None = None,
    client: ControlPlaneClient | None = None,
    branch: str | None = None,
) -> DataFrame:
    """A state table at a snapshot: its key, sub-key and value columns, one row per key.

    ``store`` is the snapshot store's path or URL, as Spark reaches it, too. Which snapshot:

    - with ``client`` and ``application``: a committed epoch of its lineage, the name of a savepoint or a tag, or (left
      out) the latest committed epoch. The control plane refuses expired epochs.
    - without: ``epoch`` on ``branch``, from the store alone; left out, the newest there is. A store does not record
      whether its newest epoch was decided: use the control plane if this matters. A store with one branch
      needs no ``branch``.

    The field of an aggregate that an upgrade added to existing keys has ``since`` in its metadata: it counts rows from
    this epoch on.

    Raises ``NotFound``, ``SnapshotExpired``, ``InvalidInput``; ``FileMissing`` when a manifest is missing.
    """
    files = SnapshotStore(store)
    if client is not None:
        if application is None or branch is not None:
            raise InvalidInput("With a client, name an application and no branch.")
        selector = "head" if epoch is None else epoch
        reference: ManifestReference = client.application(application).snapshots.get(selector).reference
    elif isinstance(epoch, str) or application is not None:
        raise InvalidInput(
            "Only a control plane can find names and applications: pass a client, or a branch and an epoch."
        )
    else:
        reference = _in_store(files, branch, epoch)
    return _frame(spark, SnapshotReader(files, reference), table)


def _in_store(store: SnapshotStore, branch: str | None, epoch: int | None) -> ManifestReference:
    newest = _newest(store, branch or _only_branch(store))
    if epoch is None:
        return newest
    reference: ManifestReference | None = newest
    for manifest in history(store, newest):
        if manifest.epoch == epoch:
            assert reference is not None  # it has led to this manifest
            return reference
        reference = manifest.parent
        if manifest.epoch < epoch:
            break
    raise NotFound(f"Store {store.url} has no epoch {epoch} among the ancestors of {newest.key}.")


def _only_branch(store: SnapshotStore) -> str:
    branches = sorted({path.partition("/")[0] for path in store.list("") if "/manifests/" in path})
    if len(branches) != 1:
        raise InvalidInput(f"Store {store.url} has the branches {', '.join(branches) or 'none'}: name one of them.")
    return branches[0]


def _newest(store: SnapshotStore, branch: str) -> ManifestReference:
    by_epoch = layout.by_epoch(
        path for path in store.list(layout.manifests(branch)) if not path.endswith(layout.TEMPORARY)
    )
    if not by_epoch:
        raise NotFound(f"Store {store.url} has no snapshot of branch {branch!r}.")
    # Of several manifests of one epoch only the last attempt's can be decided. A pack of an import has no manifest.
    newest = sorted(by_epoch[max(by_epoch)], key=_attempt, reverse=True)
    path, data = next((path, data) for path in newest if (data := store.manifest_bytes(path)))
    sha256 = hashlib.sha256(data).hexdigest()
    epoch = Manifest.decode(data, store.location(path)).epoch
    return ManifestReference(branch=branch, epoch=epoch, path=path, sha256=sha256)


def _attempt(path: str) -> int:
    return int(path.rpartition("/")[2].split("-")[1])


def _frame(spark: SparkSession, reader: SnapshotReader, id: str) -> DataFrame:
    table, chain = reader.table(id), reader.chain(id)
    deltas = [delta.file for link in chain.links for delta in link.deltas]
    deltas += [base.file for base in chain.bases if base.deletes]
    frames = _read(spark, reader.store, table, [base.file for base in chain.bases if not base.deletes], delta=False)
    frames += _read(spark, reader.store, table, deltas, delta=True)
    keys, values = [column.name for column in table.address], [column.name for column in table.value]
    if not frames:
        return _shown(spark.createDataFrame([], _ddl((*table.address, *table.value))), table)
    rows = reduce(lambda left, right: left.unionByName(right), frames)
    newest = F.max_by(F.struct(_OPERATION, *map(quoted, values)), _EPOCH).alias(_ROW)
    state = rows.groupBy(*map(quoted, keys)).agg(newest).where(F.col(f"{_ROW}.{_OPERATION}") == "put")
    selected: list[SparkColumn | str] = [*map(quoted, keys)]
    selected += [F.col(f"{_ROW}.{quoted(value)}").alias(value) for value in values]
    return _shown(_without_expired(state.select(*selected), table, table.horizon(chain.clock)), table)


def _without_expired(state: DataFrame, table: StateTable, horizon: int | None) -> DataFrame:
    if horizon is None or table.expires is None:
        return state
    name = table.expires.column
    (type,) = (column.type for column in (*table.full_key, *table.value) if column.name == name)
    column = F.col(quoted(name))
    latest = F.lit(horizon)
    if type != "bigint":
        instant = as_datetime(horizon) or _LAST_INSTANT
        latest = F.lit(f"{instant:%Y-%m-%d %H:%M:%S.%f}{'' if type == 'timestamp_ntz' else '+00:00'}").cast(type)
    return state.where(column.isNull() | (column > latest))


def _read(
    spark: SparkSession, store: SnapshotStore, table: StateTable, files: Sequence[FileReference], *, delta: bool
) -> list[DataFrame]:
    """Frames with the columns of a delta and the epoch; files without a column that has a default are read
    separately. ``delta``: the files have ``_op``."""
    columns = (*table.full_key, *table.value)
    if delta:
        columns = (Column(name=_OPERATION, type="string"), *columns)
    packed = [file for file in files if file.within is not None]
    frames = [_of_packs(spark, store, table, packed, columns)] if packed else []
    apart = [file for file in files if file.within is None]
    for absent, some in _by_absent_columns(store, table, apart).items():
        paths = [store.location(file.path) for file in some]
        frame = spark.read.schema(_ddl(columns)).parquet(*paths)
        for column in table.value:
            if column.name in absent:
                frame = frame.withColumn(column.name, _literal(from_json(column.default, column), column.type))
        epoch: SparkColumn = F.regexp_extract("_metadata.file_path", _EPOCH_IN_PATH, 1).cast("bigint")
        frame = frame.withColumn(_EPOCH, epoch)
        frames.append(frame if delta else frame.withColumn(_OPERATION, F.lit("put")))
    return frames


def _of_packs(
    spark: SparkSession,
    store: SnapshotStore,
    table: StateTable,
    files: Sequence[FileReference],
    columns: Sequence[Column],
) -> DataFrame:
    """Rows of small deltas, which Spark cannot read from packs: this process reads them."""

    def read(file: FileReference) -> pa.Table:
        place = layout.place_of(file.path)
        assert place is not None  # a delta's name, made by this package
        rows = read_rows(store, table, file, None).select([column.name for column in columns])
        return rows.append_column(_EPOCH, pa.repeat(pa.scalar(place.epoch, pa.int64()), rows.num_rows))

    rows = pa.concat_tables(concurrently(read, files))
    frame = spark.createDataFrame(rows)
    return frame.select(*(F.col(quoted(column.name)).cast(column.type) for column in columns), _EPOCH)


def _literal(value: Any, type: str) -> SparkColumn:
    """A value, in the form of Arrow's ``as_py``, as a column of a type."""
    if value is None:
        return F.lit(None).cast(type)
    if type == VARIANT:
        return F.parse_json(F.lit(variant_text(value["value"], value["metadata"])))
    nested = nested_type(type)
    if nested is None:
        return F.lit(value).cast(type)
    if nested.kind == "array":
        return F.array(*(_literal(element, nested.types[0]) for element in value)).cast(type)
    if nested.kind == "map":
        parts = (_literal(part, of) for pair in value for part, of in zip(pair, nested.types, strict=True))
        return F.create_map(*parts).cast(type)
    fields = zip(nested.names, nested.types, strict=True)
    return F.struct(*(_literal(value[name], of).alias(name) for name, of in fields)).cast(type)


def _by_absent_columns(
    store: SnapshotStore, table: StateTable, files: Sequence[FileReference]
) -> dict[frozenset[str], list[FileReference]]:
    """Files by their missing columns with defaults. Spark reads other missing columns as null."""
    defaults = frozenset(column.name for column in table.value if column.default is not None)
    found: dict[frozenset[str], list[FileReference]] = defaultdict(list)
    if not defaults:
        return {frozenset(): list(files)} if files else {}
    present = concurrently(lambda file: column_names(store, table, file), files)
    for file, names in zip(files, present, strict=True):
        found[defaults - names].append(file)
    return found


def _shown(state: DataFrame, table: StateTable) -> DataFrame:
    """State with the columns that look-ups compute."""
    for shown in table.shown:
        if isinstance(shown, Quotient) and decimal_of(shown.type) is None:
            dividend, divisor = F.col(quoted(shown.dividend)), F.col(quoted(shown.divisor))
            value = F.when(divisor != 0, dividend.cast("double") / divisor)
        else:  # Spark's own division of decimals, for one, keeps fewer digits than its average.
            value = _computed(shown)
        state = state.withColumn(shown.name, value)
    return _with_since(state, table)


def _with_since(state: DataFrame, table: StateTable) -> DataFrame:
    """State with ``since`` in the metadata of columns that do not count all rows."""
    since = table.partial_since
    if not since:
        return state
    columns = {name: F.col(quoted(name)) for name in state.columns}
    partial = {name: columns[name].alias(name, metadata={"since": epoch}) for name, epoch in since.items()}
    return state.select(*(columns | partial).values())


def _computed(shown: Quotient | Shown) -> SparkColumn:
    names = (shown.dividend, shown.divisor) if isinstance(shown, Quotient) else shown.columns

    def compute(*arrays: pa.Array) -> pa.Array:
        values = shown.over(pa.table(list(arrays), names=list(names)))
        return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values

    function = F.arrow_udf(compute, shown.type)  # type: ignore[attr-defined]
    column: SparkColumn = function(*(F.col(quoted(name)) for name in names))
    return column


def _ddl(columns: Sequence[Column]) -> str:
    return ", ".join(f"{quoted(column.name)} {column.type}" for column in columns)
