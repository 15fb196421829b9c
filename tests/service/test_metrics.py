"""``/metrics``: exactly the documented metrics are exposed, with correct values for each application."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from epochal.contracts.catalog import Failure
from epochal.contracts.identity import EpochKey
from epochal.contracts.measurements import (
    DriverReport,
    Durations,
    Load,
    Moment,
    OperatorLoad,
    SourceReport,
    Totals,
    Work,
)
from epochal.errors import Fenced
from epochal.service.catalog.metrics import EndedOperations
from epochal.service.domain.snapshots import ReplicaLag
from epochal.service.runtime.metrics import Metrics, Node
from epochal.service.runtime.replicas.follower import FollowedApplication
from epochal.service.runtime.replicas.lag import ReplicaLags
from epochal.service.runtime.replicas.serving import ServedReplicas

if TYPE_CHECKING:
    from tests.service.conftest import Plane

DOCS = Path(__file__).parents[2] / "docs/operations/observability.md"
ROW = re.compile(r"^\| `(epochal_\w+)` \| (\w+) \|([^|]*)\| (catalog|node) \|", re.MULTILINE)
ONCE = Durations(counts=(0, 0, 1) + (0,) * 12, seconds=0.04)


def driver_report(number: int, **moment: object) -> DriverReport:
    totals = Totals(
        epochs=ONCE,
        steps={"E1": ONCE, "R": ONCE},
        tasks={"T2": ONCE},
        sinks={"out": ONCE},
        compactions=ONCE,
        failed_compactions=1,
        subtasks={"totals": (Work(7, 0.5), Work(3, 1.5))},
        read_bytes={"memory": 3, "disk": 5, "store": 7},
        parts={"spark": 0.5, "python": 1.5},
    )
    return DriverReport(number=number, totals=totals, moment=Moment.model_validate(moment))


def exposed(plane: Plane) -> list[Sample]:
    """Samples of a new renderer, since answers are cached for some seconds."""
    text = Metrics(plane.control.database).render().decode()
    return [sample for family in text_string_to_metric_families(text) for sample in family.samples]


def value(samples: list[Sample], name: str, **labels: str) -> float:
    (found,) = [sample.value for sample in samples if sample.name == name and sample.labels == labels]
    return found


def test_exactly_the_documented_metrics_are_exposed(plane: Plane) -> None:
    plane.application()
    driver = plane.driver()
    driver.running()
    driver.epoch(sinks={"out": 2})
    driver.catalog.report(
        driver_report(
            1,
            sources={"in": SourceReport(records=7, files=2, read_until=datetime.now(UTC))},
            blocked_sinks={"out": datetime.now(UTC)},
            idle_at=datetime.now(UTC),
            state_rows=3,
            state_bytes=400,
            load=Load(version=1, parallelism=2, epoch=1, operators={"totals": OperatorLoad(skew=1.4)}),
        )
    )
    documented = {name: (kind, labels(cells)) for name, kind, cells, _ in ROW.findall(DOCS.read_text())}
    assert len(documented) == len(ROW.findall(DOCS.read_text())) > 40

    families = {
        family.name + ("_total" if family.type == "counter" else ""): family
        for family in text_string_to_metric_families(plane.client.get("/metrics").text)
    }
    families = {name: family for name, family in families.items() if not name.endswith("_created")}
    assert set(families) == set(documented)
    for name, family in families.items():
        kind, expected = documented[name]
        assert family.type == kind, name
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == expected, name


def labels(cells: str) -> set[str]:
    return {label for label in cells.replace(" ", "").split(",") if label}


def test_counters_continue_across_attempts_and_end_with_the_application(plane: Plane) -> None:
    plane.application()
    first = plane.driver()
    first.running()
    first.epochs(2)
    first.catalog.report(driver_report(1))
    first.catalog.report(driver_report(3))
    first.catalog.report(driver_report(2, state_rows=9))  # arrived after a later report
    first.catalog.finish(Failure(type="author-error", message="m"))
    second = plane.driver()
    second.running()
    second.catalog.open_epoch(3, second.head_key)
    second.catalog.abort_epoch(3, Failure(type="sink-unavailable", message="m"))
    second.catalog.report(driver_report(1))

    found = exposed(plane)
    assert value(found, "epochal_epoch_seconds_count", application="flights") == 2
    assert value(found, "epochal_epoch_seconds_bucket", application="flights", le="0.025") == 0
    assert value(found, "epochal_epoch_seconds_bucket", application="flights", le="0.05") == 2
    assert value(found, "epochal_sink_commit_seconds_sum", application="flights", sink="out") == pytest.approx(0.08)
    assert value(found, "epochal_failed_compactions_total", application="flights") == 2
    assert value(found, "epochal_state_read_bytes_total", **{"application": "flights", "from": "disk"}) == 10
    assert value(found, "epochal_epoch_part_seconds_total", application="flights", part="python") == 3.0
    subtask = {"application": "flights", "operator": "totals", "subtask": "1"}
    assert value(found, "epochal_subtask_rows_total", **subtask) == 6
    assert value(found, "epochal_subtask_busy_seconds_total", **subtask) == 3.0
    assert value(found, "epochal_committed_epochs_total", application="flights") == 2
    assert value(found, "epochal_rows_in_total", application="flights") == 1 + 2
    assert value(found, "epochal_attempts_total", application="flights") == 2
    assert value(found, "epochal_restarts_total", application="flights") == 1
    assert value(found, "epochal_aborted_epochs_total", application="flights", cause="sink") == 1
    assert value(found, "epochal_aborted_epochs_total", application="flights", cause="other") == 0
    assert not [sample for sample in found if sample.name == "epochal_state_rows"]

    second.catalog.finish(None)
    ended = exposed(plane)
    assert value(ended, "epochal_epoch_seconds_count", application="flights") == 2
    assert not [sample for sample in ended if sample.name == "epochal_sink_blocked_seconds"]
    assert not [sample for sample in ended if sample.name == "epochal_last_commit_timestamp_seconds"]
    assert plane.client.delete("/v1/applications/flights").is_success
    assert not [sample for sample in exposed(plane) if "application" in sample.labels]


def test_report_of_a_replaced_driver_is_refused(plane: Plane) -> None:
    plane.application()
    lost = plane.driver()
    lost.running()
    plane.control.ledger.attempt_ended(lost.execution, lost.attempt, "lost", Failure(type="t", message="m"))
    plane.driver().catalog.report(driver_report(1))
    with pytest.raises(Fenced):
        lost.catalog.report(driver_report(2))
    assert value(exposed(plane), "epochal_epoch_seconds_count", application="flights") == 1


def test_lag_continues_in_the_next_attempt(plane: Plane) -> None:
    plane.application()
    first = plane.driver()
    ago = datetime.now(UTC) - timedelta(seconds=90)
    first.catalog.report(driver_report(1, sources={"in": SourceReport(records=5, read_until=ago)}, idle_at=ago))
    plane.control.ledger.attempt_ended(first.execution, first.attempt, "lost", Failure(type="t", message="m"))
    plane.driver().catalog.report(
        driver_report(1, sources={"in": SourceReport(records=8), "new": SourceReport(files=1)})
    )
    found = exposed(plane)
    assert value(found, "epochal_source_lag_records", application="flights", source="in") == 8
    assert value(found, "epochal_source_lag_files", application="flights", source="new") == 1
    assert 90 <= value(found, "epochal_source_lag_seconds", application="flights", source="in") < 600
    assert value(found, "epochal_idle_timestamp_seconds", application="flights") == pytest.approx(ago.timestamp())
    seconds = [sample.labels["source"] for sample in found if sample.name == "epochal_source_lag_seconds"]
    assert seconds == ["in"]  # unknown for the other source


def test_ended_operations_are_counted_once(plane: Plane) -> None:
    ended = EndedOperations()
    moment = datetime.now(UTC)

    def read(seconds: int) -> None:
        with plane.control.database.reading() as session:
            ended.read(session, moment + timedelta(seconds=seconds))

    plane.application()
    plane.driver().running()
    read(1)
    assert not ended.ended  # the start precedes the first read
    assert plane.post("/v1/applications/flights/stop")["state"] == "running"
    read(2)
    plane.control.ledger.execution_ended(plane.get("/v1/applications/flights")["execution"], "stopped", None)
    for seconds in (3, 4, 50, 100, 500):
        read(seconds)
    assert ended.ended == {("stop", "succeeded"): 1}
    assert len(ended._seen) == 0


def test_lookups_are_counted_for_existing_applications(plane: Plane) -> None:
    metrics = Metrics(plane.control.database, Node())
    plane.application()
    metrics.observe("GET", "/v1/applications/{name}/state/{table}/keys", 200, 0.0004, "flights")
    metrics.observe("GET", "/v1/applications/{name}/state/{table}/keys", 200, 0.0004, "missing")
    metrics.render()  # reads the list of applications
    text = metrics.render().decode()
    assert 'epochal_lookup_seconds_bucket{application="flights",le="0.00025"} 0.0' in text
    assert 'epochal_lookup_seconds_bucket{application="flights",le="0.0005"} 1.0' in text
    assert 'application="missing"' not in text


def test_stalled_replicas_report_their_lag(plane: Plane) -> None:
    plane.application()
    driver = plane.driver()
    driver.epochs(3)
    branch = driver.point.branch
    places = {"flights": EpochKey(branch, 3)}
    replicas = cast(ServedReplicas, Followed(places))
    assert ReplicaLags(plane.control.database, replicas)() == {"flights": ReplicaLag(0, 0.0)}
    places["flights"] = EpochKey(branch, 1)
    lags = ReplicaLags(plane.control.database, replicas)
    assert lags()["flights"].epochs == 2 and lags()["flights"].seconds > 0
    places.clear()
    assert lags()["flights"].epochs == 2  # cached
    assert ReplicaLags(plane.control.database, replicas)()["flights"].epochs == 3


class Followed:
    def __init__(self, places: Mapping[str, EpochKey]) -> None:
        self._places = places

    def application(self, name: str) -> FollowedApplication | None:
        at = self._places.get(name)
        return None if at is None else FollowedApplication(at.branch, at=at)
