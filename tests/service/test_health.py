"""Health, metrics and the OpenAPI document."""

from __future__ import annotations

import asyncio
import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import select, text

from epochal.contracts.catalog import EpochCounts, EpochTerms, Failure, ShownWatermarks
from epochal.service.api import openapi
from epochal.service.catalog.models import Branch, SkippedTotals
from tests.service.listed_problems import listed_problems
from tests.service.problems import check_problem

if TYPE_CHECKING:
    from tests.service.conftest import Plane


def test_health_and_readiness_are_public_and_metrics_count_requests(plane: Plane) -> None:
    anonymous = plane.as_bearer(None)
    assert anonymous.get("/healthz").json() == anonymous.get("/readyz").json() == {"status": "ok"}
    plane.application()
    driver = plane.driver()
    driver.running()
    driver.epoch()

    metrics = plane.client.get("/metrics").text
    assert 'epochal_applications{state="running"} 1.0' in metrics
    assert 'epochal_epochs{state="committed"} 1.0' in metrics and 'epochal_epochs{state="aborted"} 0.0' in metrics
    assert 'epochal_request_seconds_count{method="POST",path="/v1/applications",status="201"} 1.0' in metrics


def test_watermarks_are_metrics_of_the_head(plane: Plane) -> None:
    plane.application()
    driver = plane.driver()
    for number, seconds in ((1, 100), (2, 200)):
        parent = driver.head.key if driver.head else None
        driver.catalog.open_epoch(number, parent)
        driver.head, before = driver.manifest(number), driver.head
        marks = {
            "at": ShownWatermarks(fire=datetime.fromtimestamp(seconds, UTC)),
            "joined": ShownWatermarks(),
            "ended": ShownWatermarks(ended=True),
        }
        terms = EpochTerms(watermarks=marks)
        driver.catalog.prepare_epoch(number, before.key if before else None, driver.head, EpochCounts(), terms)
        driver.catalog.commit_epoch(number)
    lines = [line for line in plane.client.get("/metrics").text.splitlines() if line.startswith("epochal_watermark")]
    assert lines == ['epochal_watermark_timestamp_seconds{application="flights",place="at"} 200.0']


def test_dropped_rows_are_counted_over_all_branches(plane: Plane) -> None:
    """Counts survive a rollback, and exclude aborted epochs."""
    plane.application()
    driver = plane.driver()
    counts = EpochCounts(late_rows={"hourly": 2}, rejected_rows={"at": 1})
    terms = EpochTerms(watermarks={"at": ShownWatermarks(), "hourly": ShownWatermarks()})
    for number in (1, 2):
        parent = driver.head.key if driver.head else None
        driver.catalog.open_epoch(number, parent)
        driver.head = driver.manifest(number)
        driver.catalog.prepare_epoch(number, parent, driver.head, counts, terms)
        driver.catalog.commit_epoch(number)
        driver.catalog.commit_epoch(number)
    driver.catalog.open_epoch(3, driver.head.key)
    driver.catalog.abort_epoch(3, Failure(type="t", message="m"))
    record = plane.client.get("/v1/applications/flights/epochs/2").json()
    assert record["late_rows"] == {"hourly": 2} and record["dropped_timers"] == {} and record["next_due"] is None

    with plane.control.database.writing() as session:
        branch = session.scalars(select(Branch)).one()
        other = {column.name: getattr(branch, column.name) for column in Branch.__table__.columns}
        session.add(Branch(**{**other, "id": "flights-2", "kind": "rollback"}))
        session.flush()
        session.add(SkippedTotals(branch="flights-2", kind="late", place="hourly", total=3))
        session.add(SkippedTotals(branch="flights-2", kind="dropped", place="reminders", total=5))
    assert dropped_rows(plane) == {
        'epochal_late_rows_total{application="flights",place="hourly"} 7.0',
        'epochal_late_rows_total{application="flights",place="at"} 0.0',
        'epochal_rejected_rows_total{application="flights",place="at"} 2.0',
        'epochal_rejected_rows_total{application="flights",place="hourly"} 0.0',
        'epochal_dropped_timers_total{application="flights",place="reminders"} 5.0',
    }


def dropped_rows(plane: Plane) -> set[str]:
    lines = plane.client.get("/metrics").text.splitlines()
    return {line for line in lines if line.startswith(("epochal_late", "epochal_rejected", "epochal_dropped"))}


def test_a_catalog_of_another_version_is_not_ready(plane: Plane) -> None:
    with plane.control.database.writing() as session:
        session.execute(text("UPDATE alembic_version SET version_num = '9999'"))
        session.execute(text("UPDATE installation SET oldest_reader = '9999'"))

    check_problem(plane.client.get("/readyz"), 503, "catalog-version")
    assert plane.client.get("/healthz").status_code == 200


PLANS = ("/v1/collections/plan", "/v1/backups/prune/plan")
"""These calls change nothing, although they need a role that may."""
CALLS = "/v1/applications/{name}/entries/{entry}"
"""Calls of entries are repeated by their request ids instead of an idempotency key."""


CALLBACK = "/v1/session/callback"
PUBLIC = {"/healthz", "/readyz", "/v1/session/methods", "/v1/session/login", CALLBACK}


def test_the_openapi_document_is_complete(plane: Plane) -> None:
    document = plane.as_bearer(None).get("/openapi.json").json()

    assert document["openapi"].startswith("3.1")
    assert len(document["paths"]) > 25
    record = document["components"]["schemas"]["EpochRecord"]["properties"]
    assert all("description" in record[name] for name in ("late_rows", "rejected_rows", "dropped_timers", "watermarks"))
    slugs: set[str] = set()
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            where = f"{method} {path}"
            assert "default" not in operation["responses"], where
            statuses = [status for status in operation["responses"] if int(status) >= 400]
            assert not any("HTTPValidationError" in str(operation["responses"][status]) for status in statuses), where
            secured = path not in PUBLIC
            assert bool(operation.get("security")) == secured and "500" in statuses, where
            assert ("401" in statuses) == (secured or path == CALLBACK), where
            slugs |= {slug for status in statuses for slug in listed_problems(operation, status)}
            keys = [p for p in operation.get("parameters", []) if p["name"] == "Idempotency-Key"]
            changes = operation.get("x-role") in ("operator", "author", "admin") and path not in {*PLANS, CALLS}
            assert len(keys) == (changes and method != "get"), where
    explained = (Path(__file__).parents[2] / "docs/reference/errors.md").read_text()
    assert [slug for slug in sorted(slugs) if f"`{slug.rpartition(':')[2]}`" not in explained] == []


def test_references_of_the_openapi_document_resolve(plane: Plane) -> None:
    document = plane.as_bearer(None).get("/openapi.json").json()
    references = set(re.findall(r'"\$ref": "([^"]+)"', json.dumps(document)))
    assert "#/components/schemas/Call" in references  # of a body that the endpoint itself parses
    for reference in references:
        part = document
        for name in reference.removeprefix("#/").split("/"):
            assert name in part, reference
            part = part[name]


def test_schemas_of_answers_that_omit_fields_have_their_fields(plane: Plane) -> None:
    schemas = plane.as_bearer(None).get("/openapi.json").json()["components"]["schemas"]
    counts, column = schemas["EpochCounts"]["properties"], schemas["ValueColumn"]
    assert {"rows_in", "rows_out", "state_rows", "state_bytes", "late_rows"} <= counts.keys()
    assert column["properties"].keys() == {"name", "type", "default", "since", "internal"}
    assert column["required"] == ["name", "type"]


def test_the_openapi_document_is_generated_outside_the_event_loop(
    plane: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes half a second, which would delay other requests."""
    made, in_loop = openapi._document, list[bool]()

    def document(*about: Any) -> Any:
        try:
            in_loop.append(asyncio.get_running_loop() is not None)
        except RuntimeError:
            in_loop.append(False)
        return made(*about)

    monkeypatch.setattr(openapi, "_document", document)
    first, second = (plane.as_bearer(None).get("/openapi.json") for _ in range(2))
    assert (first.status_code, first.content, in_loop) == (200, second.content, [False])
