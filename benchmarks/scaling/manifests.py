"""Size and times of the manifest of an epoch, by subtasks and tables."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from benchmarks.figure import Figure, Panel
from epochal.contracts.conditions import Clock, EpochConditions
from epochal.snapshots import store as stores
from epochal.snapshots.manifest import DeltaFile, FileReference, Manifest
from epochal.snapshots.store import SnapshotStore
from epochal.state.table import Column, StateKind, StateTable

SUBTASKS, TABLES, TIMES = (1, 8, 64, 512), (1, 20), 7
SMALL = (1, 4)


def manifests(folder: Path, quick: bool) -> Figure:
    lines: dict[str, dict[str, list[tuple[float, float]]]] = {"kB": {}, "write, ms": {}, "read, ms": {}}
    for tables in TABLES:
        for subtasks in SMALL if quick else SUBTASKS:
            found = _measure(folder / f"{tables}-{subtasks}", subtasks, tables)
            for panel, value in zip(lines.values(), found, strict=True):
                panel.setdefault(f"{tables} tables" if tables > 1 else "1 table", []).append((float(subtasks), value))
    return Figure(
        "scale-manifests",
        "The manifest, by subtasks and tables",
        "subtasks",
        True,
        [Panel(f"manifest, {y}", series) for y, series in lines.items()],
        "Each subtask has changed each table, with one file each. Written with its hash and synced; read and\n"
        f"checked, as by a recovering driver; median of {TIMES}.",
    )


def _measure(folder: Path, subtasks: int, tables: int) -> tuple[float, float, float]:
    """Kilobytes of the manifest, and milliseconds to write and to read it."""
    store = SnapshotStore(str(folder))
    written, read = [], []
    for epoch in range(1, TIMES + 1):
        manifest = _manifest(epoch, subtasks, tables)
        began = time.perf_counter()
        reference = store.write_manifest(manifest)
        written.append(time.perf_counter() - began)
        stores._manifests.clear()
        read.append(_seconds(lambda: store.read_manifest(reference)))  # noqa: B023  called immediately
    return len(manifest.encode()) / 1e3, median(written) * 1e3, median(read) * 1e3


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _manifest(epoch: int, subtasks: int, tables: int) -> Manifest:
    declared = tuple(
        StateTable(
            id=f"table-{number}",
            operator=f"operator-{number}",
            kind=StateKind.VALUE,
            key=(Column(name="key", type="bigint"),),
            value=tuple(Column(name=f"value_{column}", type="double") for column in range(5)),
        )
        for number in range(tables)
    )
    deltas = tuple(
        DeltaFile(
            table=table.id,
            subtask=subtask,
            parallelism=subtasks,
            file=FileReference(
                path=f"main/{table.id}/delta/{epoch}-{subtask}-{'c' * 32}.parquet",
                sha256=f"{subtask:064x}",
                bytes=100_000,
                rows=1_000,
            ),
        )
        for table in declared
        for subtask in range(subtasks)
    )
    return Manifest(
        application="scale",
        branch="main",
        epoch=epoch,
        parent=None,
        execution="x",
        attempt=1,
        artifact="0" * 64,
        parallelism=subtasks,
        max_parallelism=512,
        tables=declared,
        deltas=deltas,
        conditions=EpochConditions(clock=Clock(epoch_time=0)),
        created_at=datetime.now(UTC),
    )
