"""Contract tests for sinks that deliver at least once or idempotently. See :mod:`epochal.testing.contract`.

The tasks of such a sink write directly to the target: rows are visible before the commit decision, and a repeated task
writes its rows again. No row is ever missing.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Sequence

import pytest

from epochal.contracts.backend import SinkBackend
from epochal.contracts.configuration import Delivery
from epochal.contracts.handle import Handle
from epochal.contracts.identity import EpochKey, EpochScope
from epochal.testing.sink_contract import (
    APPLICATION,
    BRANCH,
    SCHEMA,
    Row,
    SinkHarness,
    batch,
    epoch,
    pre_commit,
    rows,
    same,
    start,
)


class DirectSinkHarness(SinkHarness):
    """A harness for one delivery of the sink, beside ``exactly_once``."""

    @abstractmethod
    def make(self, delivery: Delivery | None = None) -> SinkBackend:
        """Return a new backend as :meth:`SinkHarness.make` does. ``delivery`` defaults to the delivery under test."""


class DirectSinkContract:
    """Contract tests of a direct sink. Subclass it and override the fixture ``harness``.

    ``replaces``: a repeated row replaces the earlier one.
    """

    replaces = False

    @pytest.fixture
    def harness(self) -> DirectSinkHarness:
        raise NotImplementedError("override the fixture 'harness' with a DirectSinkHarness for an empty target")

    @pytest.fixture
    def backend(self, harness: DirectSinkHarness) -> SinkBackend:
        return begun(harness.make())

    def expect(self, harness: SinkHarness, once: Sequence[Row], again: Sequence[Row] = ()) -> None:
        """Check that all rows of ``once`` are visible, plus at most the rows of ``again``."""
        visible = harness.visible()
        if self.replaces:
            assert same(visible, list(once))
            return
        found, least = counted(visible), counted(once)
        assert not least - found, "a row is missing"
        assert not found - least - counted(again), "a row is there twice that was not run again"

    def test_what_a_task_pre_committed_is_there_and_stays(
        self, harness: DirectSinkHarness, backend: SinkBackend
    ) -> None:
        handles = [pre_commit(backend, epoch(1), rows(subtask, subtask + 10), subtask) for subtask in range(3)]
        written = rows(0, 1, 2, 10, 11, 12)
        assert same(harness.visible(), written)
        backend.commit(epoch(1), handles)
        backend.commit(epoch(1), handles)
        harness.make().commit(epoch(1), handles)
        backend.sweep(epoch(1), handles)
        assert same(harness.visible(), written)
        assert harness.leftovers() == []

    def test_a_handle_counts_what_it_stands_for(self, backend: SinkBackend) -> None:
        handle = pre_commit(backend, epoch(1), rows(1, 2, 3), subtask=4)
        assert (handle.owner, handle.subtask, handle.rows) == ("out", 4, 3)
        assert handle.bytes > 0
        assert pre_commit(backend, epoch(1), []).rows == 0

    def test_epochs_without_rows(self, harness: DirectSinkHarness, backend: SinkBackend) -> None:
        backend.commit(epoch(1), [pre_commit(backend, epoch(1), [])])
        backend.commit(epoch(2), [])
        backend.commit(epoch(5, parent=2), [pre_commit(backend, epoch(5, parent=2), rows(5))])
        assert same(harness.visible(), rows(5))

    def test_a_task_that_runs_twice(self, harness: DirectSinkHarness, backend: SinkBackend) -> None:
        pre_commit(backend, epoch(1), rows(1, 2))
        again = pre_commit(backend, epoch(1), rows(1, 2))
        backend.commit(epoch(1), [again])
        self.expect(harness, rows(1, 2), again=rows(1, 2))

    def test_the_slice_of_an_aborted_epoch_is_there_again(
        self, harness: DirectSinkHarness, backend: SinkBackend
    ) -> None:
        aborted = pre_commit(backend, epoch(1), rows(1))
        backend.abort(epoch(1), [aborted])
        backend.abort(epoch(1), [aborted])
        backend.sweep(epoch(1), [])
        after = epoch(2, parent=0)
        backend.commit(after, [pre_commit(backend, after, rows(1, 2))])
        self.expect(harness, rows(1, 2), again=rows(1))

    def test_a_later_attempt_goes_on(self, harness: DirectSinkHarness, backend: SinkBackend) -> None:
        handle = pre_commit(backend, epoch(1), rows(1))
        successor = harness.make()
        successor.check(SCHEMA)
        successor.recover(epoch(1, attempt=2))
        successor.commit(epoch(1, attempt=2), [handle])
        after = epoch(2, attempt=2)
        successor.commit(after, [pre_commit(successor, after, rows(2))])
        self.expect(harness, rows(1, 2))
        harness.end(successor)

    def test_discard_never_raises(self, harness: DirectSinkHarness, backend: SinkBackend) -> None:
        untouched, written = start(backend, epoch(1), 0), start(backend, epoch(1), 1)
        written.write(batch(rows(1, 2)))
        for transaction in (untouched, written, written):
            transaction.discard()
        self.expect(harness, harness.visible(), again=rows(1, 2))
        assert harness.leftovers() == []

    def test_what_was_prepared_exactly_once_is_applied(self, harness: DirectSinkHarness) -> None:
        """The delivery changes while an epoch is decided but not yet committed."""
        before = begun(harness.make("exactly_once"))
        before.commit(epoch(1), [pre_commit(before, epoch(1), rows(1))])
        prepared = pre_commit(before, epoch(2), rows(2))
        assert same(harness.visible(), rows(1))
        after = begun(harness.make(), epoch(2, attempt=2))
        after.commit(epoch(2, attempt=2), [prepared])
        after.commit(epoch(2, attempt=2), [prepared])
        third = epoch(3, attempt=2)
        after.commit(third, [pre_commit(after, third, rows(3))])
        self.expect(harness, rows(1, 2, 3))
        assert harness.leftovers() == []

    def test_exactly_once_may_follow(self, harness: DirectSinkHarness, backend: SinkBackend) -> None:
        first = pre_commit(backend, epoch(1), rows(1))
        backend.commit(epoch(1), [first])
        self.decided(harness, backend, 1, [first])
        after = begun(harness.make("exactly_once"), epoch(1, attempt=2))
        second = pre_commit(after, epoch(2, attempt=2), rows(2))
        assert same(harness.visible(), rows(1))
        after.commit(epoch(2, attempt=2), [second])
        after.commit(epoch(2, attempt=2), [second])
        assert same(harness.visible(), rows(1, 2))

    def decided(self, harness: DirectSinkHarness, backend: SinkBackend, number: int, handles: Sequence[Handle]) -> None:
        """Write the manifest of an epoch, for sinks that read it."""


def begun(backend: SinkBackend, scope: EpochScope | None = None) -> SinkBackend:
    backend.check(SCHEMA)
    backend.recover(scope or EpochScope(APPLICATION, EpochKey(BRANCH, 0), 1, None))
    return backend


def counted(found: Sequence[Row]) -> Counter[tuple[object, object]]:
    return Counter((row["id"], row["name"]) for row in found)
