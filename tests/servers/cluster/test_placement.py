"""Placement on a Spark standalone cluster whose workers have caches of their own, as on machines of their own."""

from __future__ import annotations

import os
import re
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from epochal.testing.invariants import violations
from epochal.testing.servers.spark_standalone import StandaloneCluster, standalone_cluster
from tests.kit.servers import or_skipped
from tests.service.fault.faulty_application import Drivers, FaultyApplication

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.server, pytest.mark.timeout(900)]

WORKERS, SUBTASKS, EPOCHS = 3, 6, 12
EXECUTORS = {"spark.executor.cores": "2", "spark.executor.memory": "512m", "spark.cores.max": str(2 * WORKERS)}
ROWS = 60


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[StandaloneCluster]:
    yield from or_skipped(standalone_cluster(WORKERS, 2, private=tmp_path / "run" / "cache"))


def event(number: int) -> dict[str, object]:
    return {"event": number, "sensor": f"s{number % 50}", "value": number * 37 % 100}


def feed(application: FaultyApplication, epochs: range) -> None:
    for epoch in epochs:
        application.feed_rows([event(number) for number in range(epoch * ROWS, (epoch + 1) * ROWS)])


def machines_of(application: FaultyApplication, epoch: int) -> tuple[str, ...]:
    """The machine of each subtask of ``streaks`` in an epoch."""
    (record,) = [record for record in application.epochs if record.epoch == epoch and record.manifest is not None]
    return tuple(application.store.read_manifest(record.manifest).machines["streaks"])


def visited(application: FaultyApplication, epochs: range) -> list[set[str]]:
    """The machines that each subtask of any operator has run on in some epochs."""
    found: list[set[str]] = [set() for _ in range(SUBTASKS)]
    for record in application.epochs:
        if record.epoch in epochs and record.manifest is not None:
            manifest = application.store.read_manifest(record.manifest)
            assert manifest.machines.keys() == {"totals", "streaks"}
            for machines in manifest.machines.values():
                for subtask, machine in enumerate(machines):
                    found[subtask].add(machine)
    return found


@pytest.mark.parametrize("max_parallelism", [96, 100])
def test_subtasks_stay_on_the_machine_that_has_their_state(
    machines: StandaloneCluster, tmp_path: Path, max_parallelism: int
) -> None:
    configuration = {"parallelism": SUBTASKS, "max_parallelism": max_parallelism, "state_backend": "heap", **EXECUTORS}
    application = FaultyApplication(tmp_path, Drivers(), configuration)
    feed(application, range(EPOCHS))
    # The executors come one after the other: the first epochs may run on some of them only.
    driver = application.start(epochs=EPOCHS, master=machines.master_url)
    assert driver.wait() == 0, driver.log_end()
    stayed = visited(application, range(4, EPOCHS + 1))
    assert [len(found) for found in stayed] == [1] * SUBTASKS
    assert len(set.union(*stayed)) == WORKERS

    # Another driver finds the state where it is.
    feed(application, range(EPOCHS, EPOCHS + 6))
    driver = application.start(epochs=6, master=machines.master_url)
    assert driver.wait() == 0, driver.log_end()
    assert visited(application, range(EPOCHS + 3, EPOCHS + 7)) == stayed
    assert violations(application.history, application.oracles) == []


def test_only_the_subtasks_of_a_lost_executor_move(machines: StandaloneCluster, tmp_path: Path) -> None:
    configuration = {"parallelism": SUBTASKS, "max_parallelism": 96, "state_backend": "lmdb", **EXECUTORS}
    application = FaultyApplication(tmp_path, Drivers(), configuration)
    feed(application, range(EPOCHS))
    interrupted = application.fault("T2.processed", "delay", epoch=6, seconds=10)
    driver = application.start(task_faults=[interrupted], epochs=EPOCHS, master=machines.master_url)
    try:
        driver.wait_until(lambda: application.fired(interrupted))
        os.kill(machines.executors()[0], signal.SIGKILL)
        assert driver.wait() == 0, driver.log_end()
    finally:
        driver.kill()
    before, after = (visited(application, epochs) for epochs in (range(4, 6), range(10, EPOCHS + 1)))
    assert [len(found) for found in (*before, *after)] == [1] * 2 * SUBTASKS
    left = {machine for one, other in zip(before, after, strict=True) if one != other for machine in one}
    assert len(left) <= 1
    assert violations(application.history, application.oracles) == []


def test_stragglers_of_a_slow_machine_move_once(machines: StandaloneCluster, tmp_path: Path) -> None:
    configuration = {"parallelism": SUBTASKS, "max_parallelism": 96, "state_backend": "heap", **EXECUTORS}
    application = FaultyApplication(tmp_path, Drivers(), configuration)
    slow = tmp_path / "run" / "cache" / "slow"  # in a folder of which each machine has its own
    (machines.folder / "private-0" / slow.name).touch()
    epochs = 50
    feed(application, range(epochs))
    driver = application.start(epochs=epochs, master=machines.master_url, parameters={"slow": slow})
    assert driver.wait() == 0, driver.log_end()
    before, after = machines_of(application, 10), machines_of(application, epochs)
    log = driver.log.read_text()
    stragglers = [int(subtask) for subtask in re.findall(r"subtask (\d+): a straggler, moved to another machine", log)]
    (slow_machine,) = {before[subtask] for subtask in stragglers}
    assert len(stragglers) == len(set(stragglers))  # one of the two, if the other has more rows than its peers
    assert all(after[subtask] != slow_machine for subtask in stragglers)
    assert sum(one != other for one, other in zip(before, after, strict=True)) == 2 * len(stragglers)
    assert Counter(after) == Counter(before) and set(Counter(after).values()) == {2}
    assert violations(application.history, application.oracles) == []
