"""An upgrade compares declarations of event time by name."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from epochal.cli.lineage import _watermarks
from epochal.contracts.configuration import Configuration, ExecutionOrders
from epochal.declarations.event_time import EventTime, event_time
from epochal.engine.event_time import TimePlan
from epochal.engine.job import EpochRunner, Participants
from epochal.engine.planner import PipelinePlan
from epochal.engine.program import Program, changes_since
from epochal.pipeline.graph import Graph
from epochal.snapshots.store import SnapshotStore
from tests.kit.manifests import plain_manifest


class NeverRun(EpochRunner):
    def run(self, plan: object, timeout_seconds: float) -> None:  # type: ignore[override]
        raise NotImplementedError

    def deltas(self, handle: object) -> tuple[()]:
        return ()


def program(folder: Path, **declared: EventTime) -> Program:
    orders = ExecutionOrders(
        application="rides",
        execution="one",
        attempt=1,
        artifact="b" * 64,
        configuration=Configuration(),
        store=str(folder),
        cache_directory=str(folder),
    )
    time = TimePlan(declared={name: each.details() for name, each in declared.items()})
    return Program(orders, Graph("rides", ()), PipelinePlan({}, {}, time), Participants(), NeverRun())


def test_an_upgrade_lists_changed_declarations(tmp_path: Path) -> None:
    before = program(tmp_path, at=event_time("at", "10 seconds"), dropped=event_time("old", "1 second"))
    store = SnapshotStore(str(tmp_path))
    manifest = plain_manifest(
        1,
        application="rides",
        parallelism=before.configuration.parallelism,
        max_parallelism=before.configuration.max_parallelism,
        event_times={name: dict(details) for name, details in before.plan.time.declared.items()},
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
    )
    reference = store.write_manifest(manifest)
    assert store.read_manifest(reference) == manifest
    after = program(tmp_path, at=event_time("at", "5 seconds"), new=event_time("new", "1 second"))
    (change,) = changes_since(store, reference, after)
    assert change.kind == "upgrade"
    assert list(_watermarks(change.detail["event_times"])) == [
        "watermark at: delay 10 seconds → 5 seconds",
        "watermark dropped removed",
        "watermark new added",
    ]
    (same,) = changes_since(store, reference, before)
    assert "event_times" not in same.detail
