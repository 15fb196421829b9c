"""Tasks that fail after their pre-commit, with and without a retry by Spark: exact output, and no leftover files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from epochal.testing.invariants import violations

if TYPE_CHECKING:
    from tests.service.fault.faulty_application import NewApplication

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

AFTER_DURABLE = ("T3.delta-written", "T3.files.durable", "T3.pre-committed")


@pytest.mark.long  # test_kills_with_spark.py loses tasks at two of the points
def test_spark_retries_a_task_that_had_pre_committed(new_application: NewApplication) -> None:
    application = new_application(master="local[2,4]")
    application.feed(len(AFTER_DURABLE) + 1)
    faults = [application.fault(point, "raise", number) for number, point in enumerate(AFTER_DURABLE, start=2)]
    driver = application.start(task_faults=faults, epochs=len(AFTER_DURABLE) + 1)
    assert driver.wait() == 0, driver.log_end()
    assert all(application.fired(fault) for fault in faults)
    assert {record.state for record in application.epochs} == {"committed"}
    assert violations(application.history, application.oracles) == [], "lost runs leave no files, among other things"


def test_epoch_is_aborted_when_a_pre_committed_task_fails(
    new_tiered_application: NewApplication,
) -> None:
    application = new_tiered_application()
    application.feed(len(AFTER_DURABLE) + 1)
    faults = [application.fault(point, "raise", number) for number, point in enumerate(AFTER_DURABLE, start=2)]
    driver = application.start(task_faults=faults, epochs=len(AFTER_DURABLE) + 1)
    assert driver.wait() == 0, driver.log_end()
    aborted = [record for record in application.epochs if record.state == "aborted"]
    assert [record.epoch for record in aborted] == [2, 3, 4]
    for record, fault in zip(aborted, faults, strict=True):
        assert record.failure is not None
        assert f"fault injected at {fault.point}" in record.failure.message
    assert application.files_left == 0
    assert violations(application.history, application.oracles) == []
