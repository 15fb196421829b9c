"""Manifests of epochs: run, replayed in a trial, or written by a job without input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from epochal.contracts.catalog import Change, EpochCounts, ManifestReference
from epochal.contracts.conditions import Due
from epochal.engine.job import Collected, EpochPlan, Participants
from epochal.engine.program import Program
from epochal.snapshots.chain import cached_extras
from epochal.snapshots.in_flight import held_after
from epochal.snapshots.manifest import BaseFile, Manifest, SinkHandles, placement_extras, previous_extras
from epochal.state.watermarks import observed

NOTHING_RAN = Collected(operators={}, sinks={}, rows_in=0)


def _rejected(participants: Participants, collected: Collected) -> dict[str, int]:
    """Rejected rows by declaration of event time, and by sink (``sink orders``)."""
    by_sink = {
        f"sink {name}": sum(handle.rows for handle in collected.sinks.get(dead_letters.sink, ()))
        for name, dead_letters in participants.dead_letters.items()
    }
    return {name: rows for name, rows in {**collected.time.rejected, **by_sink}.items() if rows}


def manifest_of(
    program: Program,
    parent: ManifestReference | None,
    plan: EpochPlan,
    created_at: datetime,
    collected: Collected = NOTHING_RAN,
    *,
    bases: Sequence[BaseFile] = (),
    source_checkpoints: Mapping[str, dict[str, Any]] | None = None,
    changes: Sequence[Change] = (),
    due: Mapping[str, Due] | None = None,
    before: Manifest | None = None,
) -> Manifest:
    """Manifest of an epoch of ``program`` after ``parent``, from its plan and its result.

    ``due``: due times of operators that did not run. ``before``: the parent's manifest; its records in flight that no
    slice took remain, and so do the epochs that it records for sinks.
    """
    clock = observed(program.plan.time.graph, plan.conditions.clock, collected.time.latest)
    orders, participants = program.orders, program.participants
    parallelism = orders.configuration.parallelism
    state_handles = [handle for handles in collected.operators.values() for handle in handles]
    sink_handles = [handle for handles in collected.sinks.values() for handle in handles]
    return Manifest(
        application=orders.application,
        branch=plan.scope.branch,
        epoch=plan.scope.epoch,
        parent=parent,
        execution=orders.execution,
        attempt=plan.scope.attempt,
        artifact=orders.artifact,
        parameters=orders.parameters,
        parallelism=parallelism,
        parallelisms={name: number for name, number in program.subtasks.items() if number != parallelism},
        max_parallelism=orders.configuration.max_parallelism,
        slices=dict(plan.slices),
        tables=participants.tables,
        deltas=tuple(delta for handle in state_handles for delta in program.runner.deltas(handle)),
        bases=tuple(bases),
        source_checkpoints=dict(source_checkpoints or {}),
        sinks={
            name: SinkHandles(kind=backend.kind, target=backend.target, handles=collected.sinks.get(name, ()))
            for name, backend in participants.sinks.items()
        },
        loops={
            head.name: held_after(
                None if before is None else before.loops.get(head.name),
                plan.slices.get(head.name),
                collected.loops.get(head.name, ()),
                head.feedback.columns,
                head.feedback.aligned,
            )
            for head in program.graph.loops
        },
        changes=tuple(changes),
        extras={
            **cached_extras(
                (program.subtasks[handle.owner], handle.subtask, participants.operators[handle.owner].cached(handle))
                for handle in state_handles
            ),
            **placement_extras(collected.machines),
            **previous_extras(
                plan.scope.branch,
                before,
                [backend.target for backend in participants.sinks.values() if backend.needs_previous],
            ),
        },
        conditions=plan.conditions.seen(clock),
        event_times={name: dict(declared) for name, declared in program.plan.time.declared.items()},
        due={**(due or {}), **collected.due},
        counts=EpochCounts(
            rows_in=collected.rows_in,
            rows_out=sum(handle.rows for handle in sink_handles),
            state_rows=sum(handle.rows for handle in state_handles),
            state_bytes=sum(handle.bytes for handle in state_handles),
            late_rows={name: rows for name, rows in collected.time.late.items() if rows},
            rejected_rows=_rejected(participants, collected),
            dropped_timers=collected.dropped_timers,
        ),
        created_at=created_at,
    )
