"""Re-keying: an offline Spark job that writes a snapshot with another number of key groups.

The number of key groups determines the key group of every row, so that no epoch can change it. The job reads the state
by cells of its old key groups, assigns each row to a new key group, and writes bases. The result is the first snapshot
of a new branch whose parent is the old snapshot; it has neither input nor output.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from epochal.contracts.catalog import Change, ManifestReference
from epochal.contracts.conditions import Command
from epochal.contracts.configuration import ExecutionOrders
from epochal.contracts.identity import EpochKey, EpochScope
from epochal.engine.assembly import assemble
from epochal.engine.compaction_job import base_row, written_bases
from epochal.engine.epoch_input import conditions_at_rest
from epochal.engine.job import EpochPlan
from epochal.engine.manifests import manifest_of
from epochal.engine.program import Program
from epochal.engine.recovery import restore_sources
from epochal.errors import IncompatibleState
from epochal.pipeline.graph import Graph
from epochal.snapshots.base_files import base_schema
from epochal.snapshots.chain import Chain
from epochal.snapshots.compaction import write_base
from epochal.snapshots.in_flight import slices_in_flight
from epochal.snapshots.lineage import read_chains
from epochal.snapshots.manifest import BaseFile, Manifest
from epochal.snapshots.merge_policy import bytes_of, divided, pieces_of, rows_of
from epochal.snapshots.merging import merged
from epochal.snapshots.store import SnapshotStore
from epochal.state.accepted_differences import check_acceptance
from epochal.state.column_bytes import column
from epochal.state.evolution import compare
from epochal.state.key_codec import KeyCodec
from epochal.state.keygroups import Groups
from epochal.state.table import GROUP, StateScope, StateTable
from epochal.tasks.arrow_tasks import map_in_arrow

CELL = "_cell"


def rekey(
    orders: ExecutionOrders, graph: Graph, spark: SparkSession, head: ManifestReference, at: EpochKey
) -> ManifestReference:
    """Write the snapshot ``at``: the state of ``head`` in the number of key groups that ``orders`` has.

    It takes effect when the catalog names the manifest. Raises ``IncompatibleState``, ``SnapshotError``.
    """
    store = SnapshotStore(orders.store)
    before = store.read_manifest(head)
    program = assemble(orders.model_copy(update={"shadow": True}), graph, spark, store)
    changes = compare(before.tables, program.participants.tables, acceptance=orders.acceptance)
    check_acceptance(changes, orders.acceptance)
    problems = [problem for change in changes for problem in change.problems]
    problems += _lost_instances(before, program)
    if problems:
        raise IncompatibleState(f"Snapshot {before.key} cannot be re-keyed. {' '.join(problems)}")
    if flying := _lost(program, before):
        raise IncompatibleState(
            f"Snapshot {before.key} cannot be re-keyed: the records in flight in {', '.join(sorted(flying))} would be "
            "lost. Start the application, and stop it when the loop has none."
        )
    restore_sources(store, head, program.participants.sources)
    chains = read_chains(store, head, [table.id for table in before.tables])
    maximum = orders.configuration.max_parallelism
    work = [
        _Rekeying(store, table, chains[table.id], before.max_parallelism, maximum, _subtasks(program, table), at)
        for table in before.tables
        if table.durable
    ]
    bases = [base for each in work for base in _bases(spark, each)]
    detail = {"max_parallelism": [before.max_parallelism, maximum], "by": orders.by, "message": orders.message}
    conditions = conditions_at_rest(before).opened("command", commands=[Command(kind="rekey")])
    scope = EpochScope(orders.application, at, orders.attempt, head.key)
    rekeyed = manifest_of(
        _as_before(program, before),
        head,
        EpochPlan(scope, conditions, slices={}, chains=chains),
        datetime.now(UTC),
        bases=bases,
        source_checkpoints={name: source.checkpoint() for name, source in program.participants.sources.items()},
        due=before.due,
        changes=[Change(kind="rekey", detail={name: value for name, value in detail.items() if value})],
    )
    return store.write_manifest(rekeyed.model_copy(update={"loops": before.loops}))


def _lost_instances(before: Manifest, program: Program) -> Iterator[str]:
    """Problems of partial state with more instances than the new parallelism; no task here could merge them."""
    for table in before.tables:
        instances, parallelism = before.parallelism_of(table.operator), _subtasks(program, table)
        if table.scope is StateScope.PARTIAL and parallelism < instances:
            yield (
                f"State table {table.id!r} is partial state, with {instances} instances: rescale the "
                f"application to {parallelism} first, and let it run an epoch."
            )


def _subtasks(program: Program, table: StateTable) -> int:
    """Number of subtasks of a table's operator, which may be one that the program no longer has."""
    return program.subtasks.get(table.operator, program.configuration.parallelism)


def _lost(program: Program, before: Manifest) -> set[str]:
    """Internal sources with records that no file of the snapshot holds. Records in loops have files without key groups,
    which are kept."""
    return set(slices_in_flight(program.participants.sources, before)) - set(before.loops)


def _as_before(program: Program, before: Manifest) -> Program:
    """``program`` with the code and the tables of the snapshot; those of a newer version take effect later."""
    orders = program.orders.model_copy(update={"artifact": before.artifact, "parameters": before.parameters})
    return replace(program, orders=orders, participants=replace(program.participants, tables=before.tables))


@dataclass(frozen=True)
class _Rekeying:
    """Re-keying of one state table from ``old`` to ``new`` key groups, by cells of both."""

    store: SnapshotStore
    table: StateTable
    chain: Chain
    old: int
    new: int
    parallelism: int
    at: EpochKey

    @property
    def from_cells(self) -> tuple[range, ...]:
        return self._cells(self.old)

    @property
    def to_cells(self) -> tuple[range, ...]:
        return self._cells(self.new)

    def _cells(self, max_parallelism: int) -> tuple[range, ...]:
        every = range(max_parallelism)
        return divided(every, pieces_of(every, bytes_of([self.chain]), rows_of(self.chain), self.parallelism))


def _bases(spark: SparkSession, work: _Rekeying) -> list[BaseFile]:
    """The new bases of a table, at least one file."""
    schema = from_arrow_schema(_placed_schema(work.table))
    old, new = len(work.from_cells), len(work.to_cells)
    placed = spark.range(0, old, 1, old).mapInArrow(_Place(work), schema)
    writing = map_in_arrow(placed.repartitionById(new, F.col(CELL)), _Write(work), "base string")
    bases = written_bases(writing, f"Re-keying {work.table.id!r}")
    present, nothing = {base.groups for base in bases}, base_schema(work.table).empty_table()
    empty = [cell for cell in work.to_cells if cell not in present]
    return [*bases, *(write_base(work.store, work.table, work.at, cell, nothing) for cell in empty)]


def _placed_schema(table: StateTable) -> pa.Schema:
    return base_schema(table).insert(0, pa.field(CELL, pa.int32(), nullable=False))


@dataclass(frozen=True)
class _Place:
    """Task on executors: rows of old cells with their new key groups and cells."""

    work: _Rekeying

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        work = self.work
        cells = len(work.to_cells)
        for batch in batches:
            for number in batch.column(0).to_pylist():
                rows = merged(work.store, work.table, work.chain, work.from_cells[number])
                rows, placed = redistributed(work.table, rows, work.old, work.new)
                columns = [pa.array((placed % cells).astype(np.int32)), pa.array(placed.astype(np.int32))]
                columns += [rows.column(name).combine_chunks() for name in rows.column_names if name != "_kg"]
                yield from pa.table(columns, schema=_placed_schema(work.table)).to_batches()


@dataclass(frozen=True)
class _Write:
    """Task on executors: writes one new cell, in order, as a file."""

    work: _Rekeying

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        work = self.work
        schema = _placed_schema(work.table)
        rows = pa.Table.from_batches([batch.cast(schema) for batch in batches], schema=schema)
        if not rows.num_rows:
            return
        groups = work.to_cells[rows.column(CELL)[0].as_py()]
        keys = KeyCodec(work.table.key_schema).encode_array(rows)
        places = pa.table({"group": rows.column("_kg"), "key": keys})
        order = pc.sort_indices(places, sort_keys=[("group", "ascending"), ("key", "ascending")])
        yield base_row(write_base(work.store, work.table, work.at, groups, rows.take(order)))


def redistributed(table: StateTable, rows: pa.Table, before: int, after: int) -> tuple[pa.Table, Groups]:
    """``rows`` redistributed from ``before`` to ``after`` key groups, and the new key group of each.

    Rows with a key keep the key, which determines the new group. Elements of operator and union state get new
    addresses, since the key group is part of the address: they are numbered by (``_index``, ``_group``), the order of
    their lists, and assigned to the new groups in turn. The new addresses are unique, keep the order, and are spread
    evenly. Instances of partial state do not change; there must be a key group for each.
    """
    match table.scope:
        case StateScope.KEYED | StateScope.BROADCAST | StateScope.PARTIAL:
            return rows, table.key_groups(rows, after)
        case StateScope.OPERATOR | StateScope.UNION:
            (index,) = table.sub_key_schema
            place = column(rows, index).to_numpy() * before + table.key_groups(rows, before)
            groups = (place % after).astype(np.int32)
            for field, values in ((table.owner_schema.field(GROUP.name), groups), (index, place // after)):
                position = rows.schema.get_field_index(field.name)
                rows = rows.set_column(position, field, pa.array(values, field.type))
            return rows, groups
