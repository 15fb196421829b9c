"""Upgrades of a running application over HTTP, with a real driver; state and output are compared with plain Python."""

from __future__ import annotations

import pytest

from epochal.errors import Conflict, EpochalError, IncompatibleState, OptionError
from tests.service.reconfiguration.conftest import (
    BY_SENSOR,
    PIPELINE,
    RAISING,
    SENSORS,
    WITH_COUNT,
    WITHOUT_LONGEST,
    Sensors,
)

FACTOR = ("totals.total", "longest.value")
"""Columns whose meaning the parameter ``factor`` changes."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.long  # kills during it: simulation, unit/test_rekey_in_flight.py
@pytest.mark.claim("Thesis, 4.5.5")
def test_running_application_is_rescaled_and_upgraded_without_a_restart(sensors: Sensors) -> None:
    """One driver runs all versions, since a change takes seconds, and so does the start of a driver. Changes that
    would lose state have their own test, since each check analyses a pipeline in a JVM."""
    sensors.feed()
    check_rescale_up_and_down(sensors)
    check_rescale_of_operators(sensors)
    check_failed_first_epoch_restores_the_version(sensors)
    check_upgrade_evolves_state(sensors)
    assert sensors.attempts() == 1


def check_rescale_up_and_down(sensors: Sensors) -> None:
    """3 does not divide the maximum parallelism, so that an aggregate needs another plan."""
    epochs = []
    for parallelism in (3, 1):
        operation = sensors.done(sensors.handle.versions.rescale(parallelism, message="more work"))
        epochs.append(operation.result["epoch"])
        sensors.feed()
        sensors.check()
    assert sensors.attempts() == 1
    assert sensors.changes(epochs[0])["rescale"]["parallelism"] == [2, 3]
    assert sensors.changes(epochs[0])["rescale"]["message"] == "more work"
    assert sensors.changes(epochs[1])["rescale"]["parallelism"] == [3, 1]
    manifest = sensors.handle.snapshots.get(epochs[0])
    assert manifest.parallelism == 3


def check_rescale_of_operators(sensors: Sensors) -> None:
    """Between epochs, up and down, beside an application with one subtask."""
    epochs = []
    for operators in ({"totals": 5}, {"totals": None, "longest": 3}, {"longest": None}):
        operation = sensors.done(sensors.handle.versions.rescale(operators=operators))
        epochs.append(operation.result["epoch"])
        sensors.feed()
        sensors.check()
    assert sensors.attempts() == 1
    recorded = [sensors.changes(epoch)["rescale"]["parallelisms"] for epoch in epochs]
    assert recorded == [{"totals": [1, 5]}, {"totals": [5, 1], "longest": [1, 3]}, {"longest": [3, 1]}]
    manifest = sensors.handle.snapshots.get(epochs[1]).manifest
    assert (manifest["parallelism"], manifest["parallelisms"]) == (1, {"longest": 3})
    assert {delta["parallelism"] for delta in manifest["deltas"] if delta["table"] == "longest.state"} <= {3}
    with pytest.raises(OptionError, match=r"no operator 'longst'.* Did you mean 'longest'"):
        sensors.handle.versions.rescale(operators={"longst": 3})


def check_failed_first_epoch_restores_the_version(sensors: Sensors) -> None:
    (before, *_) = sensors.handle.versions.list()
    version = sensors.handle.versions.create(sensors.artifact(RAISING), accept_changed=BY_SENSOR)
    with pytest.raises(EpochalError, match="this version is wrong"):
        sensors.done(version.operation)
    given_up = sensors.handle.versions.list()[0]
    assert given_up.number == before.number + 1 and given_up.failure is not None
    assert sensors.client.applications.get(sensors.name).version == before.number
    sensors.until(lambda: sensors.events_in_state() == len(sensors.rows))
    sensors.feed()
    sensors.check()


def check_upgrade_evolves_state(sensors: Sensors) -> None:
    version = sensors.handle.versions.create(sensors.artifact(WITH_COUNT), message="count what was seen")
    assert version.operation is not None
    upgraded = sensors.done(version.operation).result["epoch"]
    before = {sensor: row["longest"] for sensor, row in sensors.state("longest.state").items()}
    assert {row["seen"] for row in sensors.state("longest.state").values()} == {0}
    sensors.feed(10 * SENSORS)
    sensors.check()
    assert {row["seen"] for row in sensors.state("longest.state").values()} == {10}
    assert all(row["longest"] >= before[sensor] for sensor, row in sensors.state("longest.state").items())
    change = sensors.changes(upgraded)["upgrade"]
    assert (change["message"], change["version"], change["tables"]) == (
        "count what was seen",
        version.number,
        {"longest.state": "evolved"},
    )
    assert sensors.client.applications.get(sensors.name).version == version.number


@pytest.mark.long  # compared: tests/unit/test_state_evolution.py, test_preflight_comparison.py; refused: tests/service
def test_dropped_state_is_refused_without_consent(sensors: Sensors) -> None:
    sensors.feed()
    versions = [version.number for version in sensors.handle.versions.list()]
    artifact = sensors.artifact(WITHOUT_LONGEST)
    report = sensors.handle.versions.preflight(artifact)
    assert not report.ok and "--allow-dropped-state longest.state" in report.comparison.problems[0]
    with pytest.raises(IncompatibleState, match=r"longest\.state"):
        sensors.handle.versions.create(artifact)
    with pytest.raises(OptionError, match="max_parallelism"):
        sensors.handle.versions.rescale(9)
    now = sensors.client.applications.get(sensors.name)
    with pytest.raises(OptionError, match="epochal rekey"):
        sensors.handle.versions.create(configuration={**now.configuration, "max_parallelism": 16})
    assert [version.number for version in sensors.handle.versions.list()] == versions
    consenting = {**now.configuration, "allow_dropped_state": ["longest.state"]}
    version = sensors.handle.versions.create(artifact, configuration=consenting)
    sensors.done(version.operation)
    sensors.feed()
    tables = [table.table for table in sensors.handle.state_tables()]
    assert tables == ["kept.events", "steered.last", "steered.rows", "totals"]
    assert sensors.attempts() == 1


@pytest.mark.long
def test_incompatible_types_are_refused(sensors: Sensors) -> None:
    sensors.feed(10)
    narrowed = PIPELINE.replace('ValueState("longest int")', 'ValueState("longest smallint")')
    with pytest.raises(IncompatibleState, match="'longest' cannot become smallint from int"):
        sensors.handle.versions.create(sensors.artifact(narrowed))
    rescoped = PIPELINE.replace('scope="operator"', 'scope="union"')
    with pytest.raises(IncompatibleState, match=r"'kept\.events': operator state cannot become union state"):
        sensors.handle.versions.create(sensors.artifact(rescoped))
    assert [version.number for version in sensors.handle.versions.list()] == [1]


@pytest.mark.long
def test_parameters_and_settings_change_at_an_epoch_boundary(sensors: Sensors) -> None:
    sensors.feed(46)
    now = sensors.client.applications.get(sensors.name)
    version = sensors.handle.versions.create(
        parameters={**now.parameters, "factor": 3},
        configuration={**now.configuration, "epoch_interval_seconds": 0.2},
        accept_changed=FACTOR,
    )
    epoch = sensors.done(version.operation).result["epoch"]
    changes = sensors.changes(epoch)
    assert changes["parameters"]["changed"] == {"factor": [None, 3]}
    assert changes["configuration"]["changed"] == {"epoch_interval_seconds": [0.1, 0.2]}
    sensors.feed(46)
    rows = sensors.rows
    expected = sum(row["value"] for row in rows[:46]) + 3 * sum(row["value"] for row in rows[46:])
    assert sum(row["total"] for row in sensors.state("totals").values()) == expected
    assert sensors.attempts() == 1


@pytest.mark.long
def test_trial_repeats_epochs_and_compares_the_results(sensors: Sensors) -> None:
    for _ in range(3):
        sensors.feed(69)
    same = sensors.trial()
    assert same.same and same.epochs == 2
    assert {table.table: table.rows for table in same.tables} == {
        "totals": 23,
        "longest.state": 23,
        "kept.events": 21,
        "steered.last": 7,
        "steered.rows": 23,
    }
    assert all(sink.committed == sink.before == sink.after > 0 for sink in same.sinks)
    now = sensors.client.applications.get(sensors.name)
    other = sensors.trial(parameters={**now.parameters, "factor": 2}, accept_changed=FACTOR)
    assert not other.same
    totals = next(table for table in other.tables if table.table == "totals")
    assert totals.different > 20 and totals.examples[0]["before"]["events"] == totals.examples[0]["after"]["events"]
    out = next(sink for sink in other.sinks if sink.sink == "out")
    assert out.committed == out.before == out.after > 20
    assert out.only_before == out.only_after > 20
    assert {example["version"] for example in out.examples} <= {"before", "after"}
    assert {"sensor", "events", "total"} == set(out.examples[0]["row"])
    sensors.check()
    assert len(sensors.handle.versions.list()) == 1


@pytest.mark.long
def test_change_of_spark_resources_restarts_the_application(sensors: Sensors) -> None:
    sensors.feed(46)
    now = sensors.client.applications.get(sensors.name)
    changed = {**now.configuration, "spark": {"spark.sql.session.timeZone": "UTC"}}
    assert sensors.handle.versions.preflight(configuration=changed).restarts
    version = sensors.handle.versions.create(configuration=changed)
    sensors.done(version.operation)
    sensors.feed(46)
    sensors.check()
    assert sensors.client.applications.get(sensors.name).execution != now.execution


@pytest.mark.long
def test_rekeyed_application_continues(sensors: Sensors) -> None:
    sensors.feed()
    with pytest.raises(Conflict, match="only one that is stopped can be re-keyed"):
        sensors.handle.versions.rekey(32)
    sensors.done(sensors.client.applications.stop(sensors.name))
    before = sensors.head()
    rekeying = sensors.handle.versions.rekey(32, parallelism=3, message="room to grow")
    with pytest.raises(Conflict, match=f"rekey {rekeying.id}"):
        sensors.client.applications.start(sensors.name)
    result = sensors.done(rekeying).result
    assert (result["version"], result["epoch"]) == (2, before + 1)
    assert sensors.handle.versions.list()[0].configuration["max_parallelism"] == 32
    assert sensors.head() == before + 1
    sensors.check()
    sensors.done(sensors.client.applications.start(sensors.name))
    sensors.feed()
    sensors.check()
    manifest = sensors.handle.snapshots.get(sensors.head()).manifest
    assert (manifest["max_parallelism"], manifest["parallelism"]) == (32, 3)
    assert sensors.changes(before + 1)["rekey"]["max_parallelism"] == [8, 32]
    assert sensors.changes(before + 2) == {}
