"""Check whether other declarations of state tables and loops can continue from a snapshot and its files."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from epochal.contracts.catalog import ManifestReference
from epochal.contracts.conditions import drained
from epochal.contracts.configuration import NOTHING_ACCEPTED, Acceptance
from epochal.snapshots.in_flight import against_going_on
from epochal.snapshots.lineage import history
from epochal.snapshots.manifest import Manifest
from epochal.snapshots.store import SnapshotStore
from epochal.state.evolution import TableChange, compare
from epochal.state.table import Column, StateScope, StateTable


@dataclass(frozen=True)
class Continuation:
    """Result of the check. ``changes``: change of each state table; ``problems``: reasons against continuing."""

    changes: tuple[TableChange, ...]
    problems: tuple[str, ...]


def continuation(
    store: SnapshotStore,
    snapshot: ManifestReference,
    tables: Sequence[StateTable],
    loops: Mapping[str, Sequence[Column]],
    may_drop: Collection[str],
    subtasks: Mapping[str, int],
    acceptance: Acceptance = NOTHING_ACCEPTED,
) -> Continuation:
    """Check whether ``tables``, and ``loops`` with their columns, can continue from ``snapshot``.

    ``subtasks``: the number of subtasks of each operator. :func:`epochal.state.evolution.compare` describes
    ``may_drop`` and ``acceptance``."""
    manifest = store.read_manifest(snapshot)
    changes = compare(manifest.tables, tables, may_drop, acceptance)
    problems = [problem for change in changes for problem in change.problems]
    problems += against_going_on(manifest.loops, loops, may_drop)
    problems += against_shrinking(manifest, tables, subtasks)
    return Continuation(changes, (*end_of_input(manifest), *problems, *revived_columns(store, snapshot, tables)))


def end_of_input(manifest: Manifest) -> tuple[str, ...]:
    """Problem of continuing from a drained snapshot, independent of declarations."""
    parent = None if manifest.parent is None else manifest.parent.epoch
    return (drained(manifest.epoch, parent),) if manifest.drained else ()


def against_shrinking(manifest: Manifest, tables: Iterable[StateTable], subtasks: Mapping[str, int]) -> Iterator[str]:
    """Problems of partial state tables with more instances than subtasks and no function to reconcile them.

    ``subtasks``: the number of subtasks of each operator."""
    existing = {table.id for table in manifest.tables if table.scope is StateScope.PARTIAL}
    for table in tables:
        if table.id not in existing or table.reconcile is not None:
            continue
        instances, parallelism = manifest.parallelism_of(table.operator), subtasks[table.operator]
        if parallelism < instances:
            yield (
                f"State table {table.id!r} is partial state with {instances} instances and no reconcile "
                f"function: at parallelism {parallelism} some instances would be lost. Declare the state with "
                "reconcile=.. (in a program: only add to it, or write it only through Global), or keep the "
                f"parallelism at {instances} or more."
            )


def revived_columns(store: SnapshotStore, head: ManifestReference, tables: Iterable[StateTable]) -> Iterator[str]:
    """Problems of columns that are declared again after they were dropped, while files still have their old values.

    Bases written after the column was dropped do not have it, and end the search.
    """
    by_id = {table.id: table for table in tables}
    added = {
        id: _names(by_id[id]) - before for id, before in _declared(store.read_manifest(head)).items() if id in by_id
    }
    base_at = None
    for manifest in history(store, head):
        if base_at is None and manifest.bases:
            base_at = manifest.bases[0].at
        declared = _declared(manifest)
        for id in list(added):
            if id not in declared:
                del added[id]
                continue
            for name in sorted(added[id] & declared[id]):
                added[id].discard(name)
                yield (
                    f"State table {id!r}: column {name!r} was dropped after epoch {manifest.epoch}, and its old values "
                    "are still in files that are read. Give the new column another name, or wait for new bases."
                )
        if not any(added.values()) or manifest.key == base_at:
            return


def _declared(manifest: Manifest) -> dict[str, set[str]]:
    return {table.id: _names(table) for table in manifest.tables}


def _names(table: StateTable) -> set[str]:
    return {column.name for column in table.value}
