"""One application version, ready to run: its graph planned, its sources and backends made, nothing written yet."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from epochal.contracts.backend import SinkBackend
from epochal.contracts.catalog import Change, ManifestReference
from epochal.contracts.registry import STATE_BACKENDS, find
from epochal.contracts.state import StateBackend
from epochal.engine.job import Participants
from epochal.engine.pipeline_plan import PipelinePlan, plan_pipeline
from epochal.engine.settings import ExecutionOrders
from epochal.errors import FileMissing, IncompatibleState
from epochal.pipeline.graph import Graph
from epochal.snapshots.continuation import continuation
from epochal.snapshots.manifest import Manifest
from epochal.snapshots.store import SnapshotStore
from epochal.state.evolution import compare


@dataclass(frozen=True)
class Program:
    """What an attempt runs, until a reconfiguration puts another in its place."""

    orders: ExecutionOrders
    graph: Graph
    plan: PipelinePlan
    participants: Participants


def assemble(orders: ExecutionOrders, graph: Graph, spark: SparkSession, store: SnapshotStore) -> Program:
    """Raises ``PipelineError``, ``SchemaError``, ``SourceError``, ``OptionError``: what cannot be run, and the fix."""
    sources = {node.name: node.make() for node in graph.sources}
    plan = plan_pipeline(graph, spark, sources)
    make_state: Callable[..., StateBackend] = find(STATE_BACKENDS, orders.configuration.state_backend)
    sinks: dict[str, SinkBackend] = {}
    if not orders.shadow:
        sinks = {node.name: node.backend(store) for node in graph.sinks}
    participants = Participants(
        sources=sources,
        operators={node.name: make_state(node.name, store, orders.cache_directory) for node in graph.operators},
        sinks=sinks,
        tables=plan.tables,
    )
    return Program(orders, graph, plan, participants)


def check_continues(
    store: SnapshotStore, reference: ManifestReference, orders: ExecutionOrders, participants: Participants
) -> None:
    """Raises ``IncompatibleState`` when these orders cannot go on from a snapshot."""
    head, configured = store.read_manifest(reference), orders.configuration.max_parallelism
    if head.max_parallelism != configured:
        raise IncompatibleState(
            f"Snapshot {head.key} has max_parallelism {head.max_parallelism}, the configuration says {configured}; it "
            f"cannot change once state exists. Set it to {head.max_parallelism}, or re-key the state (epochal rekey)."
        )
    found = continuation(store, reference, participants.tables, orders.configuration.allow_dropped_state)
    if found.problems:
        raise IncompatibleState(f"Snapshot {head.key} cannot be gone on from. {' '.join(found.problems)}")


def changes_since(
    store: SnapshotStore, reference: ManifestReference, orders: ExecutionOrders, participants: Participants
) -> list[Change]:
    """What the first epoch after a snapshot says of how it was made otherwise: design/epochs.md, reconfiguration."""
    head = store.read_manifest(reference)
    said: dict[str, Any] = {"version": orders.version, "by": orders.by, "message": orders.message}
    said = {name: value for name, value in said.items() if value is not None}
    found: list[Change] = []

    def changed(kind: str, **detail: Any) -> None:
        found.append(Change(kind=kind, detail={**detail, **said}))

    if head.artifact != orders.artifact:
        changed("upgrade", artifact=[head.artifact, orders.artifact], tables=_table_changes(head, participants))
    if head.parameters != orders.parameters:
        changed("parameters", changed=_differences(head.parameters, orders.parameters))
    if head.parallelism != orders.configuration.parallelism:
        changed("rescale", parallelism=[head.parallelism, orders.configuration.parallelism])
    targets = _targets(store, head)
    now = {name: sink.target for name, sink in participants.sinks.items()}
    if targets is not None and targets != now and not orders.shadow:
        changed("sinks", changed=_differences(targets, now))
    return found


def _targets(store: SnapshotStore, head: Manifest) -> dict[str, str] | None:
    """Where its sinks wrote. A rekey writes no output, and changes no sink; ``None``: nobody knows any more."""
    try:
        while head.parent is not None and any(change.kind == "rekey" for change in head.changes):
            head = store.read_manifest(head.parent)
    except FileMissing:
        return None
    return {name: sink.target for name, sink in head.sinks.items()}


def _table_changes(head: Manifest, participants: Participants) -> dict[str, str]:
    """State tables that are not as before, by what became of them."""
    compared = compare(head.tables, participants.tables)
    return {change.table: change.verdict for change in compared if change.verdict != "same"}


def _differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Name -> value before, value now; null where it is not there."""
    names = sorted({*before, *after})
    return {
        name: [before.get(name), after.get(name)]
        for name in names
        if (name in before) != (name in after) or before.get(name) != after.get(name)
    }
