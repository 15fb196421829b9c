"""The leading control plane rescales applications automatically; answers of ``load``."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from epochal.contracts.catalog import Failure
from epochal.contracts.measurements import (
    DriverReport,
    Load,
    LoadSample,
    Moment,
    OperatorLoad,
    PlacementReport,
    SubtaskLoad,
    Totals,
    Work,
)
from epochal.service.catalog.autoscaling import ScalingRepository
from epochal.service.catalog.types import now
from epochal.service.commands import autoscaling
from epochal.service.domain.autoscaling import Situation
from epochal.service.domain.ports import Leading
from epochal.service.runtime.housekeeping import Housekeeping

if TYPE_CHECKING:
    from tests.service.conftest import Driver, Plane

SCALED = {"autoscaling": {"greatest": 4, "grow_after_seconds": 10, "cool_down_seconds": 60}}
MINUTES = timedelta(minutes=5)


def load(version: int = 1, parallelism: int = 2, busy: float = 19.0, lag: float | None = 3.0) -> Load:
    skewed = OperatorLoad(
        rows=6000,
        busy_seconds=busy,
        skew=1.75,
        skewed=True,
        largest=SubtaskLoad(subtask=1, rows=5250, busy_seconds=9.0),
        stragglers=(SubtaskLoad(subtask=0, rows=750, busy_seconds=10.0),),
    )
    return Load(
        version=version,
        parallelism=parallelism,
        epoch=7,
        seconds=40.0,
        busy_share=0.25,
        operators={"totals": skewed},
        samples=(LoadSample(10.0, busy, lag),),
    )


def report(driver: Driver, number: int, found: Load | None) -> None:
    totals = Totals(subtasks={"totals": (Work(750, 10.0), Work(5250, 9.0))})
    driver.catalog.report(DriverReport(number=number, totals=totals, moment=Moment(load=found)))


@pytest.fixture
def later(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> Callable[[timedelta], None]:
    """Moves the autoscaler's clock ahead without ageing the reports; only the test makes the autoscaler look."""
    plane.control.housekeeping.close()
    situation = ScalingRepository.situation

    def advance(by: timedelta) -> None:
        monkeypatch.setattr(autoscaling, "now", lambda: now() + by)

        def unaged(self: ScalingRepository, application: Any, moment: Any) -> Situation | None:
            return situation(self, application, moment - by)

        monkeypatch.setattr(ScalingRepository, "situation", unaged)

    return advance


def rescalings(plane: Plane) -> list[Any]:
    items = plane.get("/v1/operations")["items"]
    return [item for item in items if item["kind"] == "rescale"]


def test_a_busy_application_is_rescaled_after_its_cool_down(plane: Plane, later: Callable[[timedelta], None]) -> None:
    plane.application(configuration=SCALED)
    driver = plane.driver()
    driver.running()
    report(driver, 1, load())
    scaler = plane.control.autoscaling
    scaler.look()
    assert not rescalings(plane)
    answer = plane.get("/v1/applications/flights/load")
    assert answer["autoscaling"]["parallelism"] is None and "cooled down" in answer["autoscaling"]["reason"]

    later(MINUTES)
    scaler.look()
    (operation,) = rescalings(plane)
    assert operation["state"] == "running"
    (version, _) = plane.get("/v1/applications/flights/versions")["items"]
    assert version["configuration"]["parallelism"] == 4 and version["created_by"] == "autoscaler"
    assert version["message"] == "autoscaling: its subtasks were busy for 95% of 10 s"
    assert version["configuration"]["autoscaling"]["greatest"] == 4
    (entry,) = [item for item in plane.get("/v1/audit")["items"] if item["token"] == "autoscaler"]
    assert entry["action"] == "POST /v1/applications/{name}/rescale" and entry["outcome"] == 202
    assert entry["target"] == "/v1/applications/flights/rescale"

    scaler.look()  # a running rescale is not repeated
    assert len(rescalings(plane)) == 1
    reason = plane.get("/v1/applications/flights/load")["autoscaling"]["reason"]
    assert reason == f"an operation is under way: rescale {operation['id']}"
    (directive,) = driver.running()
    assert directive.kind == "reconfigure" and directive.arguments["configuration"]["parallelism"] == 4


def test_operators_are_rescaled_by_their_work(plane: Plane, later: Callable[[timedelta], None]) -> None:
    """A merge has no number of its own: its work counts for the operator whose answers it merges."""
    nodes = [
        {"id": 1, "name": "totals", "type": "process_partial"},
        {"id": 2, "name": "totals-merge", "type": "merge_answers", "description": {"scaled_as": "totals"}},
        {"id": 3, "name": "light", "type": "aggregate"},
    ]
    policy = {**SCALED["autoscaling"], "greatest": 16, "per_operator": True}
    plane.application(artifact=plane.artifact(nodes=nodes), configuration={"autoscaling": policy})
    driver = plane.driver()
    driver.running()
    work = {"totals": (2, 20.0), "totals-merge": (2, 16.0), "light": (2, 0.1)}
    operators = {name: OperatorLoad(subtasks=number, busy_seconds=busy) for name, (number, busy) in work.items()}
    samples = (LoadSample(10.0, 1.0, 0.0, 0.9),)
    report(driver, 1, load().model_copy(update={"operators": operators, "samples": samples}))
    later(MINUTES)
    plane.control.autoscaling.look()
    (version, _) = plane.get("/v1/applications/flights/versions")["items"]
    configuration = version["configuration"]
    assert (configuration["parallelism"], configuration["parallelisms"]) == (2, {"totals": 4})
    assert version["message"] == "autoscaling: its subtasks were busy for 90% of 10 s"


def test_the_placement_is_that_of_the_latest_report(plane: Plane) -> None:
    plane.application()
    path = "/v1/applications/flights/placement"
    nothing = {"epoch": None, "machines": {}, "moves": 0, "unplaced": None, "read_bytes": {}, "reported_at": None}
    assert plane.get(path) == {"application": "flights", **nothing, "moved_stragglers": []}
    driver = plane.driver()
    driver.running()
    found = PlacementReport(epoch=3, machines={"totals": ("a-1", "b-2")}, moves=1, read_bytes={"disk": 7})
    driver.catalog.report(DriverReport(number=1, moment=Moment(placement=found)))
    answer = plane.get(path)
    assert answer["machines"] == {"totals": ["a-1", "b-2"]} and answer["read_bytes"] == {"disk": 7}
    assert (answer["epoch"], answer["moves"], answer["unplaced"]) == (3, 1, None) and answer["reported_at"]


def test_a_failed_rescale_is_retried_with_growing_pauses(plane: Plane, later: Callable[[timedelta], None]) -> None:
    plane.application(configuration=SCALED)
    driver = plane.driver()
    driver.running()
    report(driver, 1, load())
    minutes = 0
    for tries, pause in ((1, 2), (2, 2), (3, 4), (4, 8)):
        minutes += pause
        later(timedelta(minutes=minutes) - timedelta(seconds=70))
        plane.control.autoscaling.look()
        assert len(rescalings(plane)) == tries - 1
        later(timedelta(minutes=minutes))
        plane.control.autoscaling.look()
        assert len(rescalings(plane)) == tries
        (directive,) = driver.running()
        driver.catalog.complete(directive.id, driver.head, Failure(type="author-error", message="no"))
        minutes = 0  # the next pause counts from the end of the operation
    failed = [item["state"] for item in rescalings(plane)]
    assert failed == ["failed"] * 4


def test_reports_of_another_version_or_parallelism_are_ignored(
    plane: Plane, later: Callable[[timedelta], None]
) -> None:
    plane.application(configuration=SCALED)
    plane.application("unscaled")
    driver = plane.driver()
    driver.running()
    later(MINUTES)
    for number, found in enumerate([None, load(version=2), load(parallelism=3), load(busy=10.0)], start=1):
        report(driver, number, found)
        plane.control.autoscaling.look()
    assert not rescalings(plane)
    assert plane.get("/v1/applications/unscaled/load")["autoscaling"] is None


class Term:
    def __init__(self, leading: Leading | None) -> None:
        self._leading = leading

    def leading(self) -> Leading | None:
        return self._leading

    def open(self) -> None: ...

    def close(self) -> None: ...


def test_only_the_leader_rescales(plane: Plane, later: Callable[[timedelta], None]) -> None:
    plane.application(configuration=SCALED)
    driver = plane.driver()
    driver.running()
    report(driver, 1, load())
    later(MINUTES)
    for leading, count in ((None, 0), (Leading(term=1, since=now()), 1)):
        housekeeping = Housekeeping(Term(leading))
        autoscaling.AutoscalingService(plane.control.database, plane.control.versions, housekeeping)
        housekeeping.look()
        assert len(rescalings(plane)) == count


def test_a_manual_rescale_must_be_within_the_bounds(plane: Plane) -> None:
    plane.application(configuration=SCALED)
    refused = plane.post("/v1/applications/flights/rescale", 422, parallelism=5)
    assert "parallelism 5 is not between autoscaling.least 1 and autoscaling.greatest 4" in refused["detail"]
    refused = plane.post(
        "/v1/applications/flights/versions", 422, configuration={"autoscaling": {"least": 3, "greatest": 2}}
    )
    assert "least 3 is above greatest 2" in str(refused)


def test_load_reports_busy_time_by_operator_and_subtask(plane: Plane) -> None:
    plane.application()
    path = "/v1/applications/flights/load"
    assert plane.get(path)["operators"] == {} and plane.get(path)["reported_at"] is None
    driver = plane.driver()
    driver.running()
    report(driver, 1, load())
    answer = plane.get(path)
    assert (answer["epoch"], answer["parallelism"], answer["busy_share"], answer["lag_seconds"]) == (7, 2, 0.25, 3.0)
    totals = answer["operators"]["totals"]
    assert totals["skewed"] and totals["largest"] == {"subtask": 1, "rows": 5250, "busy_seconds": 9.0}
    assert [one["subtask"] for one in totals["stragglers"]] == [0]
    driver.catalog.finish(None)
    assert plane.get(path)["operators"] == {}
