"""Invariants of an application, checked on its store, its catalog and the folders of its sinks.

Each check returns one sentence per violation. The checks use what a reader sees (manifests, Parquet files, rows of the
catalog), not the engine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from epochal.contracts.catalog import EpochRecord, ManifestReference
from epochal.snapshots.manifest import Manifest
from epochal.snapshots.reader import SnapshotReader
from epochal.snapshots.store import SnapshotStore
from epochal.testing.oracle import Expectation, KeyedOracle, Rows, expectations, multiset, slices

OWNER_FILE = "_epochal.json"


@dataclass(frozen=True)
class History:
    """A branch without forks: its store, all its epochs in the catalog, and the folders of its files sinks."""

    store: SnapshotStore
    epochs: Sequence[EpochRecord]
    outputs: Mapping[str, Path]

    @property
    def decided(self) -> list[EpochRecord]:
        """Prepared and committed epochs, in order."""
        found = [record for record in self.epochs if record.state in ("prepared", "committed")]
        return sorted(found, key=lambda record: record.epoch)

    @cached_property
    def snapshots(self) -> list[tuple[ManifestReference, Manifest]]:
        """The manifest of every decided epoch, in order."""
        references = [record.manifest for record in self.decided]
        return [(reference, self.store.read_manifest(reference)) for reference in references if reference is not None]


def violations(history: History, operators: Sequence[KeyedOracle]) -> list[str]:
    """All violations of an application that has stopped."""
    return [
        *unfinished_epochs(history),
        *broken_lineage(history),
        *wrong_epochs(history, operators),
        *wrongly_visible(history),
        *orphans(history),
    ]


def unfinished_epochs(history: History) -> list[str]:
    """After a stop, every epoch is committed or aborted, and every decided epoch has a manifest."""
    found = [
        f"epoch {record.epoch} is {record.state}"
        for record in history.epochs
        if record.state not in ("committed", "aborted")
    ]
    return found + [f"epoch {record.epoch} has no manifest" for record in history.decided if record.manifest is None]


def broken_lineage(history: History) -> list[str]:
    """The parent of each snapshot is the previous one, and the slices of each source are contiguous."""
    found: list[str] = []
    parent: ManifestReference | None = None
    ends: dict[str, object] = {}
    for reference, manifest in history.snapshots:
        if manifest.parent != parent:
            found.append(f"epoch {manifest.epoch} builds on {manifest.parent}, not on {parent}")
        for source, slice in manifest.slices.items():
            if source in ends and slice.start != ends[source]:
                found.append(f"epoch {manifest.epoch}: {source} starts at {slice.start}, ended at {ends[source]}")
            ends[source] = slice.end
        parent = reference
    return found


def wrong_epochs(history: History, operators: Sequence[KeyedOracle]) -> list[str]:
    """State at every epoch, and the rows of each sink in every epoch, are equal to the sequential oracle."""
    found: list[str] = []
    inputs = (slices(manifest) for _, manifest in history.snapshots)
    for (reference, _), expected in zip(history.snapshots, expectations(operators, inputs), strict=True):
        found += wrong_state(history.store, reference, expected)
        found += _wrong_output(history, reference.epoch, expected)
    return found


def wrong_state(store: SnapshotStore, reference: ManifestReference, expected: Expectation) -> Iterator[str]:
    """Each state table of a snapshot is equal to the oracle."""
    reader = SnapshotReader(store, reference)
    for table, rows in expected.state.items():
        there = multiset(reader.read(table).to_pylist())
        if there != rows:
            yield f"state {table} at epoch {reference.epoch}: {_difference(there, rows)}"


def wrongly_visible(history: History) -> list[str]:
    """A sink shows exactly the decided epochs, at any time, also between crashes."""
    decided = {record.epoch for record in history.decided}
    return [
        f"sink {sink} shows epoch {epoch}, which was never decided"
        for sink, folder in history.outputs.items()
        for epoch in visible_epochs(folder)
        if epoch not in decided
    ]


def delivery_violations(expected: Sequence[Counter[Any]], again: Sequence[int], visible: Counter[Any]) -> list[str]:
    """Violations of a sink that delivers at least once: lost rows, and rows that are duplicated without a retry.

    ``expected``: the rows of each epoch. ``again``: the number of repeated runs of the tasks of each epoch.
    ``visible``: the rows of the target.
    """
    at_least = sum(expected, Counter())
    at_most = at_least + sum(
        (Counter({row: n * times for row, n in rows.items()}) for rows, times in zip(expected, again, strict=True)),
        Counter(),
    )
    found = [f"is lost: {row}" for row in sorted((at_least - visible).elements(), key=str)]
    for row, count in sorted((visible - at_most).items(), key=str):
        found.append(f"is there {count} too often: {row}" if row in at_least else f"was never given: {row}")
    return found


def orphans(history: History) -> list[str]:
    """Files of the branch that no decided manifest names, and files that a sink neither made visible nor removed."""
    named: set[str] = set()
    branches = {record.branch for record in history.epochs}
    for reference, manifest in history.snapshots:
        named.add(reference.path)
        named |= {delta.file.stored_in for delta in manifest.deltas} | {base.file.path for base in manifest.bases}
        named |= {manifest.queries.stored_in} if manifest.queries is not None else set()
    lost = [path for branch in sorted(branches) for path in history.store.list(branch) if path not in named]
    return [f"{path} is named by no manifest" for path in lost] + [
        f"{path} was left in the folder of sink {sink}"
        for sink, folder in history.outputs.items()
        for path in _left_in(folder)
    ]


def visible_epochs(folder: Path) -> list[int]:
    """The epochs that a files sink shows, in order."""
    return sorted(int(path.name.removeprefix("epoch=")) for path in folder.glob("epoch=*"))


def visible_rows(folder: Path, epoch: int) -> Rows:
    """The rows of an epoch in a files sink of Parquet."""
    files = sorted((folder / f"epoch={epoch:010}").glob("*.parquet"))
    return multiset(row for file in files for row in pq.ParquetFile(file).read().to_pylist())


def _wrong_output(history: History, epoch: int, expected: Expectation) -> Iterator[str]:
    for sink, rows in expected.output.items():
        there = visible_rows(history.outputs[sink], epoch)
        if there != rows:
            yield f"sink {sink}, epoch {epoch}: {_difference(there, rows)}"


def _difference(there: Rows, expected: Rows) -> str:
    return f"{_some(expected - there)} missing, {_some(there - expected)} too many"


def _some(rows: Rows) -> str:
    shown = ", ".join(str(dict(row)) for row in list(rows)[:2])
    return f"{rows.total()} rows" + (f" ({shown})" if shown else "")


def _left_in(folder: Path) -> Iterator[Path]:
    for path in folder.rglob("*"):
        visible = path.relative_to(folder).parts[0].startswith("epoch=")
        if path.is_file() and not visible and path.name != OWNER_FILE:
            yield path
