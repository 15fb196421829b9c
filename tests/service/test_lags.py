"""Lags of the sources of all applications in one request."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from typer.testing import CliRunner

from epochal.cli.main import app
from epochal.client import Client
from epochal.contracts.catalog import Failure
from epochal.contracts.measurements import DriverReport, Load, Moment, SourceReport, StateSize, Work
from epochal.engine.meter import Meter

if TYPE_CHECKING:
    from tests.service.conftest import Driver, Plane


def test_the_rate_and_what_an_application_waits_for_are_listed(plane: Plane) -> None:
    plane.application()
    driver = plane.driver()
    since = datetime.now(UTC) - timedelta(seconds=30)
    load = Load(version=1, parallelism=2, epoch=9, seconds=40, rows_read={"a": 600, "b": 200}, rows_written={"out": 8})
    moment = Moment(
        sources={"a": SourceReport(records=7)},
        blocked_sinks={"table": since},
        store_away_since=since,
        load=load,
        tables={"totals": StateSize(rows=5, bytes=600)},
    )
    driver.catalog.report(DriverReport(number=1, moment=moment))
    item = lags(plane)["flights"]
    assert item["rows_per_second"] == 20.0
    assert list(item["blocked_sinks"]) == ["table"]
    assert datetime.fromisoformat(item["store_away_since"]) == since

    shown = plane.get("/v1/applications/flights/load")
    assert shown["sources"] == {"a": {"records": 7, "files": None, "seconds": None, "reachable": True, "rows": 600}}
    assert shown["sinks"]["out"] == {"rows": 8, "blocked_since": None}
    assert datetime.fromisoformat(shown["sinks"]["table"]["blocked_since"]) == since
    assert shown["tables"] == {"totals": {"rows": 5, "bytes": 600}}
    with Client(plane.settings.url, token=plane.admin_token) as client:
        assert client.application("flights").load().sources["a"].rows == 600


def reported(driver: Driver, number: int, **sources: SourceReport) -> None:
    driver.catalog.report(DriverReport(number=number, moment=Moment(sources=sources)))


def lags(plane: Plane) -> dict[str, Any]:
    return {item["application"]: item for item in plane.get("/v1/lags")["items"]}


def test_all_applications_are_listed_with_the_lag_of_each_source(plane: Plane) -> None:
    for name in ("flights", "other", "silent"):
        plane.application(name)
    ago = datetime.now(UTC) - timedelta(seconds=90)
    flights, other = plane.driver(), plane.driver("other")
    reported(flights, 1, kafka=SourceReport(records=7, read_until=ago), folder=SourceReport(files=2, reachable=False))
    reported(other, 1, kafka=SourceReport(records=0, read_until=ago))
    found = lags(plane)
    assert list(found) == ["flights", "other", "silent"]
    kafka, folder = found["flights"]["sources"]["kafka"], found["flights"]["sources"]["folder"]
    assert 90 <= kafka.pop("seconds") < 600
    assert kafka == {"records": 7, "files": None, "reachable": True}
    assert folder == {"records": None, "files": 2, "seconds": None, "reachable": False}
    assert found["other"]["sources"]["kafka"]["seconds"] == 0.0
    assert (found["silent"]["reported_at"], found["silent"]["sources"]) == (None, {})
    with Client(plane.settings.url, token=plane.admin_token) as client:
        assert [item.application for item in client.applications.lags()] == list(found)


def test_lags_of_an_ended_attempt_are_not_shown(plane: Plane) -> None:
    plane.application()
    driver = plane.driver()
    reported(driver, 1, kafka=SourceReport(records=7))
    plane.control.ledger.attempt_ended(driver.execution, driver.attempt, "lost", Failure(type="t", message="m"))
    successor = plane.driver()
    assert lags(plane)["flights"]["sources"] == {}
    reported(successor, 1, kafka=SourceReport(records=9))
    assert lags(plane)["flights"]["sources"]["kafka"]["records"] == 9
    successor.catalog.finish(None)
    assert lags(plane)["flights"]["sources"] == {}


def test_a_page_continues_by_name_and_requires_a_token(plane: Plane) -> None:
    for name in ("flights", "other"):
        plane.application(name, start=False)
    first = plane.get("/v1/lags", limit=1)
    second = plane.get("/v1/lags", limit=1, cursor=first["next_cursor"])
    assert [page["items"][0]["application"] for page in (first, second)] == ["flights", "other"]
    assert second["next_cursor"] is None
    assert plane.as_bearer(None).get("/v1/lags").status_code == 401


def test_operators_have_no_figures_before_the_window_has_an_epoch(plane: Plane) -> None:
    """The first epoch of an attempt is not part of the window. An epoch without rows has figures, which are zeros."""
    plane.application()
    driver = plane.driver()
    driver.running()
    seconds = iter(range(1000))
    meter = Meter(lambda: float(next(seconds)))
    path = "/v1/applications/flights/load"

    meter.operators_worked(1, 1, 2, {"totals": [Work(7, 3.0), Work(5, 1.0)]}, read={"in": 12})
    driver.catalog.report(meter.report())
    load = plane.get(path)
    assert (load["epoch"], load["operators"], load["busy_share"]) == (1, {}, 0.0)
    assert load["seconds"] > 0
    runner = CliRunner()
    shown = runner.invoke(app, ["show", "flights"], env=plane.environment)
    assert shown.exit_code == 0 and "busy" not in shown.output

    meter.operators_worked(2, 1, 2, {"totals": [Work(0, 0.0), Work(0, 0.0)]}, read={"in": 0})
    driver.catalog.report(meter.report())
    totals = plane.get(path)["operators"]["totals"]
    assert (totals["rows"], totals["busy_seconds"], totals["subtasks"]) == (0, 0.0, 2)

    meter.operators_worked(3, 1, 2, {"totals": [Work(4, 1.0), Work(4, 1.0)]})
    driver.catalog.report(meter.report())
    assert plane.get(path)["operators"]["totals"]["rows"] == 8
    shown = runner.invoke(app, ["show", "flights"], env=plane.environment)
    assert "busy for" in shown.output and "totals" in shown.output
