"""Aborted epochs: which are run again, and which end the attempt at once."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from epochal.contracts.catalog import VersionOrder
from epochal.engine.answers import Answers
from epochal.engine.bases import PendingBases
from epochal.engine.commits import BackgroundCommits, CommitQueue
from epochal.engine.compaction import Compaction
from epochal.engine.coordinator import Coordinator
from epochal.engine.failures import failure_of
from epochal.engine.job import EpochPlan, EpochRunner, Participants
from epochal.engine.loop import EpochLoop
from epochal.engine.position import Position
from epochal.engine.program import CurrentProgram, Program
from epochal.engine.reconfiguration import Reconfigurations
from epochal.engine.retention import Retention
from epochal.engine.settings import Configuration
from epochal.engine.transactions import TransactionOrders
from epochal.errors import EpochAborted, MalformedRecord, SchemaError, SinkUnavailable, SourceError, SparkLost
from epochal.snapshots.manifest import DeltaFile
from epochal.snapshots.store import SnapshotStore
from epochal.tasks.reporting import Reporting, author_error
from epochal.testing.memory_catalog import MemoryCatalog, MemoryCatalogState
from epochal.testing.simulated import SimulatedSource, World
from tests.programs import program_of


class Failing(EpochRunner):
    """Each epoch fails as a task's error does: with its text, in an exception of Spark's."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def run(self, plan: EpochPlan, timeout_seconds: float) -> Answers:
        try:
            with Reporting("Operator 'delays'", plan.scope.epoch, step="T2", subtask=0):
                raise self._error
        except Exception as error:  # noqa: BLE001 as Spark does
            raise RuntimeError(f"Job aborted due to stage failure: {error}") from None

    def deltas(self, handle: object) -> tuple[DeltaFile, ...]:
        return ()


def epochs_that_fail(error: Exception, folder: Path) -> tuple[int, str]:
    """How many epochs were tried, and the type of the attempt's failure."""
    configuration = Configuration(tolerable_failed_epochs=3, epoch_interval_seconds=0)
    store, catalog = SnapshotStore(str(folder)), MemoryCatalog(MemoryCatalogState(), 1)
    point = catalog.begin_attempt()
    participants = Participants({"in": SimulatedSource(World(store, [(1, 1)]), random.Random(1))})
    current = CurrentProgram(program_of(configuration, participants, Failing(error), store=store.url))
    queue, position, bases = CommitQueue(catalog, current), Position(point.branch, 1, None), PendingBases()
    coordinator = Coordinator(current, catalog, store, queue, position, bases)
    retention = Retention(store, current, Compaction(store, position, bases, current))

    def no_other(order: VersionOrder) -> Program:
        raise AssertionError

    loop = EpochLoop(
        coordinator=coordinator,
        commits=BackgroundCommits(queue),
        catalog=catalog,
        transactions=TransactionOrders(catalog, queue, []),
        reconfigurations=Reconfigurations(coordinator, queue, retention, catalog, no_other, lambda _: None),
        sleep=lambda seconds: None,
    )
    with pytest.raises(EpochAborted) as raised:
        loop.run()
    return len(catalog.state.epochs), failure_of(raised.value).type


def raised_by(error: Exception, cause: Exception | None = None) -> Exception:
    """What a task makes of an exception of the author's code."""
    error.__cause__ = cause
    return author_error("Operator 'delays', key (origin='JFK')", error)


@pytest.mark.parametrize(
    ("error", "slug"),
    [
        (raised_by(LookupError("no such plane")), "author-error"),
        (MalformedRecord("A record of flights.json does not fit the declared schema."), "malformed-record"),
        (SchemaError("Operator 'delays' gave a string for 'worst'."), "invalid-schema"),
        (SparkLost("Spark's JVM does not answer any more."), "spark-lost"),
    ],
)
def test_what_would_fail_again_ends_the_attempt_at_once(error: Exception, slug: str, tmp_path: Path) -> None:
    assert epochs_that_fail(error, tmp_path) == (1, slug)


@pytest.mark.parametrize(
    ("error", "slug"),
    [
        (raised_by(ConnectionResetError("reset by peer")), "author-error-transient"),
        (raised_by(ValueError("no answer"), TimeoutError("timed out")), "author-error-transient"),
        (SourceError("flights.json is not there any more."), "source-error"),
        (SinkUnavailable("The broker is away."), "sink-unavailable"),
        (ZeroDivisionError("of our own"), "epoch-aborted"),
    ],
)
def test_what_may_pass_is_run_again_in_the_next_epochs(error: Exception, slug: str, tmp_path: Path) -> None:
    assert epochs_that_fail(error, tmp_path) == (4, slug)
