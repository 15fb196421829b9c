"""Size of a store relative to the live state, if every epoch changes 5 % of the keys and old epochs are collected.

Live state is one set of bases at the head. The store is measured after each collection; the largest size counts.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from benchmarks import engine, inputs, pipelines
from benchmarks.result import Result, at_most, number
from epochal.service.catalog.database import Database
from epochal.service.commands.collections import Collection, CollectionRequest
from epochal.snapshots.compaction import compact
from epochal.snapshots.discovery import discover
from epochal.snapshots.lineage import read_chains
from epochal.snapshots.store import SnapshotStore

KEYS, TOUCHED = 1_000_000, 50_000
EPOCHS, EPOCHS_A_TURN = 100, 10
RETAINED = 5


def run(folder: Path) -> list[Result]:
    settings = engine.configuration(folder, retained_epochs=RETAINED, compact_after_bytes=0)
    inputs.write_every_key(folder / "input" / "!every-key.parquet", KEYS)
    inputs.write_files(folder / "input", EPOCHS, TOUCHED, KEYS)
    store = SnapshotStore(str(folder / "run" / "store"))
    sizes = []
    with engine.engine_session(settings) as spark:
        for _ in range(EPOCHS // EPOCHS_A_TURN):
            engine.run_epochs(pipelines.aggregate(folder / "input"), spark, folder / "run", settings, EPOCHS_A_TURN)
            database = Database(f"sqlite:///{folder / 'run' / 'catalog.sqlite'}")
            Collection(database, store).run(CollectionRequest(timedelta(0)))
            database.close()
            sizes.append(sum(file.bytes for file in store.entries()))
    live = _live_bytes(store, SnapshotStore(str(folder / "live")))
    how = (
        f"{EPOCHS} epochs touching {TOUCHED * 100 // KEYS} % each, {RETAINED} retained, collected every {EPOCHS_A_TURN}"
    )
    return [
        number("live state", live / 1e6, "MB", f"{KEYS:,} keys, one set of bases", digits=1),
        number("store, median", sorted(sizes)[len(sizes) // 2] / live, "times", how),
        at_most("store against live state, largest", max(sizes) / live, 3, "times"),
    ]


def _live_bytes(store: SnapshotStore, aside: SnapshotStore) -> int:
    head = max(discover(store).roots, key=lambda reference: reference.epoch)
    manifest = store.read_manifest(head)
    chains = read_chains(store, head, [table.id for table in manifest.tables])
    for file in store.entries():
        aside.write(file.path, store.read(file.path))
    return sum(
        base.file.bytes
        for table in manifest.tables
        for base in compact(aside, table, chains[table.id], manifest.max_parallelism)
    )
