"""Directives ``optimize`` in a driver: carried out beside the loop, one after another, and answered once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from epochal.backends.files import FilesBackend
from epochal.contracts.backend import TableCompaction
from epochal.contracts.catalog import Directive, Failure, ManifestReference, OptimizeResult
from epochal.engine.job import Participants
from epochal.engine.optimization import Optimizations
from epochal.errors import CatalogUnavailable, SinkError
from epochal.testing.memory_catalog import MemoryCatalog, MemoryCatalogState
from tests.kit.programs import current_program
from tests.kit.waiting import eventually

DONE = TableCompaction(files_removed=9, files_added=1, bytes_removed=900, bytes_added=300, version=12)


class TableOf(FilesBackend):
    """A sink whose compaction waits for the test."""

    def __init__(self, folder: Path) -> None:
        super().__init__(str(folder))
        self.may_end, self.calls = threading.Event(), 0
        self.error: Exception | None = None

    def optimize(self, note: Callable[[str], None]) -> TableCompaction:
        self.calls += 1
        note("compacting: 9 of 9 files")
        assert self.may_end.wait(20)
        if self.error is not None:
            raise self.error
        return DONE


@dataclass
class Answers(MemoryCatalog):
    answers: dict[str, tuple[Failure | None, OptimizeResult | None]] = field(default_factory=dict)
    notes: list[tuple[str, str]] = field(default_factory=list)
    away: bool = False

    def complete(
        self,
        directive: str,
        head: ManifestReference | None,
        failure: Failure | None = None,
        result: OptimizeResult | None = None,
    ) -> None:
        assert directive not in self.answers
        self.answers[directive] = failure, result

    def note_progress(self, directive: str, progress: str) -> None:
        if self.away:
            raise CatalogUnavailable("no control plane answers")
        self.notes.append((directive, progress))


class Driver:
    def __init__(self, folder: Path) -> None:
        self.sink = TableOf(folder)
        self.catalog = Answers(MemoryCatalogState(), attempt=1)
        self.optimizations = Optimizations(
            self.catalog, current_program(participants=Participants(sinks={"out": self.sink}))
        )

    def deliver(self, *ids: str, sink: str = "out") -> None:
        """Deliver the directives that are not answered, as each heartbeat does."""
        for id in ids:
            if id not in self.catalog.answers:
                self.optimizations.carry_out(Directive(id=id, kind="optimize", arguments={"sink": sink}))

    def deliver_until_answered(self, *ids: str) -> None:
        def answered() -> bool:
            self.deliver(*ids)
            return self.catalog.answers.keys() >= set(ids)

        eventually(answered, 20)


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    return Driver(tmp_path)


def test_a_compaction_runs_beside_the_loop_and_is_answered_with_its_result(driver: Driver) -> None:
    driver.deliver("a")
    eventually(lambda: driver.catalog.notes == [("a", "compacting: 9 of 9 files")])
    driver.deliver("a")
    assert driver.catalog.answers == {}
    driver.sink.may_end.set()
    driver.deliver_until_answered("a")
    failure, result = driver.catalog.answers["a"]
    assert failure is None and result is not None
    assert (result.sink, result.files_removed, result.version) == ("out", 9, 12)
    assert driver.sink.calls == 1


def test_directives_are_carried_out_one_after_another(driver: Driver) -> None:
    driver.deliver("a", "b")
    eventually(lambda: driver.sink.calls == 1)
    driver.deliver("a", "b")
    assert driver.sink.calls == 1
    driver.sink.may_end.set()
    driver.deliver_until_answered("a", "b")
    assert driver.sink.calls == 2


def test_a_directive_that_was_withdrawn_does_not_hold_up_the_next_one(driver: Driver) -> None:
    driver.sink.may_end.set()
    driver.deliver("a")
    eventually(lambda: driver.sink.calls == 1)
    driver.deliver_until_answered("b")
    assert driver.sink.calls == 2


def test_an_error_is_the_answer_and_the_driver_continues(driver: Driver) -> None:
    driver.sink.error, _ = SinkError("the table does not exist any more"), driver.sink.may_end.set()
    driver.deliver_until_answered("a")
    failure, result = driver.catalog.answers["a"]
    assert result is None and failure is not None
    assert (failure.type, failure.message) == ("sink-error", "the table does not exist any more")


def test_a_lost_note_does_not_end_the_compaction(driver: Driver) -> None:
    driver.catalog.away = True
    driver.sink.may_end.set()
    driver.deliver_until_answered("a")
    assert driver.catalog.answers["a"][0] is None and driver.catalog.notes == []


def test_a_sink_that_the_running_version_lacks_is_refused(driver: Driver) -> None:
    driver.deliver("a", sink="gone")
    failure, _ = driver.catalog.answers["a"]
    assert failure is not None and failure.type == "not-found" and "'gone'" in failure.message
