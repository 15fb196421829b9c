"""Compaction as a Spark job: merges on executors, with few concurrent tasks, which leaves slots to epochs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from epochal.engine.failures import failure_of
from epochal.errors import EpochalError, SnapshotError
from epochal.snapshots.compaction import MergeJob, merge_runs
from epochal.snapshots.manifest import BaseFile
from epochal.snapshots.store import SnapshotStore

_RESULT = pa.schema([pa.field("base", pa.string(), nullable=False)])


@dataclass(frozen=True)
class SparkMerging:
    """Runs all jobs and then returns their files. ``slots``: number of concurrent tasks, fewer than the cluster's
    slots."""

    spark: SparkSession
    store: SnapshotStore
    slots: int

    def __call__(self, jobs: Sequence[MergeJob]) -> Iterator[BaseFile]:
        """Raises ``SnapshotError`` when a task failed finally; garbage collection removes its files."""
        shares = min(self.slots, len(jobs))
        task = _Task(self.store, tuple(jobs), shares)
        # A separate session, since the epoch timeout cancels all jobs of the epochs' session.
        frame = self.spark.newSession().range(0, shares, 1, shares).mapInArrow(task, "base string")
        yield from written_bases(frame, "The compaction on Spark")


def written_bases(frame: DataFrame, what: str) -> list[BaseFile]:
    """Run a job whose tasks write bases and return them as JSON; sorted by table, key groups and age. Raises
    ``SnapshotError``."""
    try:
        rows = frame.collect()
    except EpochalError:
        raise
    except Exception as error:  # Spark's errors have no common root that Spark Connect shares
        raise SnapshotError(f"{what} failed: {failure_of(error).message}") from error
    bases = [BaseFile.model_validate_json(row.base) for row in rows]
    return sorted(bases, key=lambda base: (base.table, base.first_group, base.age))


def base_row(base: BaseFile) -> pa.RecordBatch:
    """Result row of a task."""
    return pa.RecordBatch.from_pydict({"base": [base.model_dump_json()]}, schema=_RESULT)


@dataclass(frozen=True)
class _Task:
    """Task on executors: runs every ``shares``-th job, so that the merges of all tables are spread."""

    store: SnapshotStore
    jobs: tuple[MergeJob, ...]
    shares: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for share in batch.column(0).to_pylist():
                for _, jobs in groupby(self.jobs[share :: self.shares], key=lambda job: job.table.id):
                    for base in merge_runs(self.store, jobs):
                        yield base_row(base)
