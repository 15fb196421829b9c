"""What holds for every call: problems, pagination, idempotency, limits, health, the OpenAPI document."""

from __future__ import annotations

import json
import logging
import socket
import threading
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from sqlalchemy import select, text

from epochal import errors
from epochal.contracts.catalog import EpochCounts, EpochTerms, Failure, ShownWatermarks
from epochal.service.catalog.database import Database
from epochal.service.catalog.models import Branch, LeftOut
from epochal.service.problems import STATUSES, Problem, problem_of, status_of
from epochal.service.settings import Limits, Settings
from tests.waiting import eventually

if TYPE_CHECKING:
    from tests.service.conftest import Plane


def every_error() -> list[type[errors.EpochalError]]:
    found, looking = [], [errors.EpochalError]
    while looking:
        looking += (error := looking.pop()).__subclasses__()
        found.append(error)
    return found


@pytest.mark.parametrize("error", every_error(), ids=lambda error: error.__name__)
def test_every_error_has_a_problem(error: type[errors.EpochalError]) -> None:
    problem = problem_of(error("what happened"))

    assert problem.type == f"urn:epochal:problem:{error.slug}"
    assert problem.status in STATUSES.values() and problem.status == status_of(error())
    assert problem.title and problem.detail == "what happened"


def check_problem(answer: httpx.Response, status: int, slug: str) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    body = answer.json()
    Problem.model_validate(body)
    assert body["type"] == f"urn:epochal:problem:{slug}"
    assert body["status"] == status
    assert body["instance"] == answer.request.url.path
    assert body["request"] == answer.headers["x-request-id"]
    return dict(body)


def test_unknown_paths_and_methods_are_problems(plane: Plane) -> None:
    check_problem(plane.client.get("/v1/nothing"), 404, "no-such-path")
    check_problem(plane.client.get("/v1/applications/"), 404, "no-such-path")
    answer = plane.client.patch("/v1/applications")
    check_problem(answer, 405, "method-not-allowed")
    assert answer.headers["allow"]


def test_what_is_no_http_request_is_a_problem(plane: Plane) -> None:
    with socket.create_connection(("127.0.0.1", plane.settings.port), timeout=30) as connection:
        connection.sendall("GET /v1/größe HTTP/1.1\r\n\x00\r\n\r\n".encode())
        head, _, body = b"".join(iter(lambda: connection.recv(4096), b"")).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert b"content-type: application/problem+json" in head
    assert Problem.model_validate_json(body).type == "urn:epochal:problem:invalid-input"


@pytest.mark.parametrize(
    ("content", "fields"),
    [
        (b"{", None),
        (b"[]", [""]),
        (b"{}", ["artifact", "name"]),
        (b'{"name": "flights", "artifact": "x", "colour": 1}', ["artifact", "colour"]),
        (
            json.dumps({"name": "a", "artifact": "a" * 64, "configuration": {"parallelism": "two"}}).encode(),
            ["configuration.parallelism"],
        ),
        (b"\xff\xfe\x00", None),
    ],
)
def test_invalid_requests_name_their_fields(plane: Plane, content: bytes, fields: list[str] | None) -> None:
    answer = plane.client.post("/v1/applications", content=content, headers={"content-type": "application/json"})

    if fields is None:
        assert answer.status_code in (400, 422) and "type" in answer.json()
    else:
        body = check_problem(answer, 422, "invalid-request")
        assert sorted(item["field"] for item in body["errors"]) == (fields if fields != [""] else ["body"])


@pytest.mark.parametrize(
    "path", ["/v1/applications/%00", "/v1/applications/a%00b/epochs", "/v1/operations/%F0%9F%8D%8E"]
)
def test_odd_names_are_not_found(plane: Plane, path: str) -> None:
    assert plane.client.get(path).status_code == 404


@pytest.mark.parametrize(
    "query", [{"limit": 0}, {"limit": 501}, {"limit": "x"}, {"cursor": "x"}, {"cursor": "WzFd"}, {"cursor": "W10"}]
)
def test_bad_paging_is_refused(plane: Plane, query: dict[str, Any]) -> None:
    assert plane.client.get("/v1/applications", params=query).status_code == 422


def test_unforeseen_errors_show_nothing_but_an_id(plane: Plane, caplog: pytest.LogCaptureFixture) -> None:
    with plane.control.database.writing() as session:
        session.execute(text("ALTER TABLE operations RENAME COLUMN progress TO other"))
        session.execute(text("UPDATE alembic_version SET version_num = version_num"))

    def broken(*_arguments: object) -> None:
        raise RuntimeError("the secret is 1234")

    object.__setattr__(plane.control, "operations", type("Broken", (), {"page": broken})())
    with caplog.at_level(logging.ERROR, logger="epochal.requests"):
        answer = plane.client.get("/v1/operations", headers={"X-Request-Id": "my-request"})

    body = check_problem(answer, 500, "internal")
    assert "1234" not in answer.text and "Traceback" not in answer.text
    assert body["request"] == "my-request" and "my-request" in caplog.text and "1234" in caplog.text


def test_a_catalog_that_is_away_is_503_without_details(plane: Plane, caplog: pytest.LogCaptureFixture) -> None:
    with plane.control.database.writing() as session:
        session.execute(text("ALTER TABLE artifacts RENAME TO elsewhere"))
    answer = plane.client.get("/v1/artifacts")

    check_problem(answer, 503, "catalog-unavailable")
    assert "artifacts" not in answer.json()["detail"] and answer.headers["retry-after"] == "1"


def test_request_ids_are_kept_when_they_are_safe(plane: Plane) -> None:
    assert plane.client.get("/healthz", headers={"X-Request-Id": "abc-1"}).headers["x-request-id"] == "abc-1"
    assert (
        plane.client.get("/healthz", headers={"X-Request-Id": "a b<script>"}).headers["x-request-id"] != "a b<script>"
    )


def test_bodies_are_limited_declared_or_not(settings: Settings, serve: Callable[..., Any]) -> None:
    small = settings.model_copy(update={"limits": Limits(body_bytes=1000, artifact_bytes=2000)})
    with serve(small) as (_, token):
        headers = {"Authorization": f"Bearer {token}"}
        with httpx.Client(base_url=settings.url, headers=headers, trust_env=False) as client:
            check_problem(client.post("/v1/applications", content=b"x" * 1001), 413, "body-too-large")
            check_problem(client.post("/v1/applications", content=iter([b"x" * 600] * 3)), 413, "body-too-large")
            check_problem(
                client.post("/v1/applications", content=iter([b"x" * 600] * 3), headers={"Idempotency-Key": "k"}),
                413,
                "body-too-large",
            )
            artifact = client.post("/v1/artifacts", params={"filename": "a.py"}, content=b"#" * 2000)
            assert artifact.status_code == 201
            too_large = client.post("/v1/artifacts", params={"filename": "a.py"}, content=b"#" * 2001)
            check_problem(too_large, 413, "body-too-large")


@pytest.mark.parametrize("key", ["", "Idempotency-Key: k\r\n"])
@pytest.mark.parametrize("framing", ["Content-Length: 100", "Transfer-Encoding: chunked"])
def test_a_body_that_was_cut_off_is_not_taken_for_a_whole_one(plane: Plane, framing: str, key: str) -> None:
    announced = plane.post("/v1/imports", 201, bytes=100, sha256="0" * 64)
    part = b"# the first line\n"
    body = part if framing.startswith("Content-Length") else b"%x\r\n%s\r\n" % (len(part), part)
    for method, path in (
        ("POST", "/v1/artifacts?filename=cut.py"),
        ("PUT", f"/v1/imports/{announced['id']}/content?offset=0"),
        ("POST", "/v1/applications"),
    ):
        with socket.create_connection((plane.settings.host, plane.settings.port)) as connection:
            head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n{framing}\r\n{key}"
            authorization = f"Authorization: {plane.client.headers['authorization']}"
            connection.sendall(f"{head}{authorization}\r\n\r\n".encode() + body)
    eventually(lambda: sum(writes_answered(plane).values()) == 4)
    assert writes_answered(plane) == {"201": 1, "400": 3}
    assert plane.get("/v1/artifacts")["items"] == []
    assert plane.get(f"/v1/imports/{announced['id']}")["received"] == 0


def writes_answered(plane: Plane) -> Counter[str]:
    """Calls that were no GET, by status."""
    found: Counter[str] = Counter()
    for line in plane.client.get("/metrics").text.splitlines():
        if line.startswith("epochal_request_seconds_count") and 'method="GET"' not in line:
            found[line.split('status="')[1].partition('"')[0]] += round(float(line.split()[-1]))
    return found


def walk(plane: Plane, path: str, limit: int) -> list[Any]:
    """All items, page by page."""
    items: list[Any] = []
    cursor = None
    while True:
        page = plane.get(path, limit=limit, **({} if cursor is None else {"cursor": cursor}))
        assert len(page["items"]) <= limit
        items += page["items"]
        cursor = page["next_cursor"]
        if cursor is None:
            return items


def test_every_list_is_paged_completely_and_in_order(plane: Plane) -> None:
    for name in ("a", "b", "c", "d", "e"):
        plane.artifact(note=name)
        plane.application(name)
        plane.token("read", f"token-{name}")
    driver = plane.driver("a")
    driver.running()
    driver.epochs(5)
    plane.post("/v1/applications/a/stop")
    driver.stop()
    for name in ("s1", "s2", "s3"):
        plane.post("/v1/applications/a/savepoints", name=name)
    for _ in range(2):
        plane.post("/v1/applications/a/versions", 201, configuration={"parallelism": 3})

    for path, expected in (
        ("/v1/applications", 5),
        ("/v1/artifacts", 6),
        ("/v1/operations", 11),
        ("/v1/tokens", 6),
        ("/v1/audit", None),
        ("/v1/applications/a/versions", 3),
        ("/v1/applications/a/executions", 1),
        ("/v1/applications/a/epochs", 5),
        ("/v1/applications/a/snapshots", 5),
        ("/v1/applications/a/savepoints", 3),
    ):
        whole = plane.get(path, limit=500)
        assert whole["next_cursor"] is None
        assert expected is None or len(whole["items"]) == expected, path
        for limit in (1, 2, 3):
            assert walk(plane, path, limit) == whole["items"], path


def test_epochs_and_lineage_are_paged_across_branches(plane: Plane) -> None:
    plane.application()
    driver = plane.driver()
    driver.running()
    driver.epochs(4)
    plane.post("/v1/applications/flights/fork", 201, name="copy", epoch=3, shadow=True)
    child = plane.driver("copy")
    child.running()
    child.epochs(2)

    assert [item["epoch"] for item in walk(plane, "/v1/applications/copy/epochs", 2)] == [5, 4, 3, 2, 1]
    nodes: list[Any] = []
    query: dict[str, Any] = {"limit": 2}
    while "cursor" not in query or query["cursor"] is not None:
        page = plane.get("/v1/applications/copy/lineage", **query)
        nodes += page["nodes"]
        query["cursor"] = page["next_cursor"]
    assert nodes == plane.get("/v1/applications/copy/lineage")["nodes"]
    assert len(nodes) == 6


def test_a_repeated_call_is_answered_and_not_repeated(plane: Plane) -> None:
    body = {"name": "flights", "artifact": plane.artifact(), "parameters": {"out": "/x"}}
    key = {"Idempotency-Key": "create-flights"}
    first = plane.client.post("/v1/applications", json=body, headers=key)
    again = plane.client.post("/v1/applications", json=body, headers=key)

    assert first.status_code == again.status_code == 201
    assert first.content == again.content
    assert "idempotency-replayed" not in first.headers and again.headers["idempotency-replayed"] == "true"
    assert len(plane.get("/v1/operations")["items"]) == 1
    assert plane.client.post("/v1/applications", json=body).status_code == 409


def test_a_refusal_is_repeated_too(plane: Plane) -> None:
    key = {"Idempotency-Key": "k"}
    first = plane.client.post("/v1/applications/flights/start", headers=key)
    plane.application(start=False)
    again = plane.client.post("/v1/applications/flights/start", headers=key)

    assert first.status_code == again.status_code == 404


def test_a_key_is_good_for_one_request_of_one_token(plane: Plane) -> None:
    plane.application(start=False)
    key = {"Idempotency-Key": "k"}
    assert plane.client.post("/v1/applications/flights/start", json={}, headers=key).status_code == 202
    other_body = plane.client.post("/v1/applications/flights/start", json={"savepoint": "s"}, headers=key)
    check_problem(other_body, 422, "idempotency-key-reused")
    other_path = plane.client.post("/v1/applications/flights/stop", json={}, headers=key)
    check_problem(other_path, 422, "idempotency-key-reused")

    other_token = plane.as_bearer(plane.token("operate"))
    assert other_token.post("/v1/applications/flights/stop", json={}, headers=key).status_code == 202
    assert plane.as_bearer(None).post("/v1/applications/flights/start", headers=key).status_code == 401
    assert plane.client.post("/v1/applications/x/start", headers={"Idempotency-Key": "k" * 201}).status_code == 422


def test_a_forbidden_call_leaves_no_trace_of_its_key(plane: Plane) -> None:
    reader = plane.as_bearer(plane.token("read"))
    for _ in range(2):
        answer = reader.post("/v1/applications/flights/start", headers={"Idempotency-Key": "k"})
        assert answer.status_code == 403 and "idempotency-replayed" not in answer.headers


def test_what_only_reads_takes_no_key_and_writes_nothing(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    plane.application(start=False)
    writes: list[object] = []
    writing = Database.writing

    def counted(database: Database, *arguments: Any) -> Any:
        writes.append(arguments)
        return writing(database, *arguments)

    monkeypatch.setattr(Database, "writing", counted)
    key = {"Idempotency-Key": "k"}
    lookup = plane.client.post("/v1/applications/flights/state/t/lookup", json={"keys": []}, headers=key)
    plan = plane.client.post("/v1/collections/plan", json={}, headers=key)
    nowhere = plane.client.post("/v1/nowhere", json={}, headers=key)
    assert (lookup.status_code, plan.status_code, nowhere.status_code) == (404, 200, 404)
    assert writes == []
    assert plane.client.post("/v1/applications/flights/start", headers=key).status_code == 202
    assert writes


def test_of_calls_at_once_with_one_key_one_is_carried_out(plane: Plane) -> None:
    body = {"name": "flights", "artifact": plane.artifact(), "parameters": {"out": "/x"}}
    answers: list[httpx.Response] = []

    def call() -> None:
        client = plane.as_bearer(plane.settings.admin_token_file.read_text().strip())
        answers.append(client.post("/v1/applications", json=body, headers={"Idempotency-Key": "k"}, timeout=30))

    threads = [threading.Thread(target=call) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert {answer.status_code for answer in answers} <= {201, 409}
    created = [answer for answer in answers if answer.status_code == 201]
    assert created and len({answer.content for answer in created}) == 1
    assert len(plane.get("/v1/operations")["items"]) == 1


def test_a_repeated_token_request_does_not_tell_the_token_again(plane: Plane) -> None:
    body, key = {"name": "reader", "scope": "read"}, {"Idempotency-Key": "k"}
    first = plane.client.post("/v1/tokens", json=body, headers=key).json()
    again = plane.client.post("/v1/tokens", json=body, headers=key)

    assert again.status_code == 201 and again.json() == {**first, "token": None}


def test_health_readiness_and_metrics(plane: Plane) -> None:
    anybody = plane.as_bearer(None)
    assert anybody.get("/healthz").json() == anybody.get("/readyz").json() == {"status": "ok"}
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


def test_what_was_left_out_is_counted_over_all_branches(plane: Plane) -> None:
    """A rollback takes nothing back of what ran, and an epoch that is aborted has left nothing out."""
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
        session.add(LeftOut(branch="flights-2", kind="late", place="hourly", total=3))
        session.add(LeftOut(branch="flights-2", kind="dropped", place="reminders", total=5))
    assert left_out(plane) == {
        'epochal_late_rows_total{application="flights",place="hourly"} 7.0',
        'epochal_late_rows_total{application="flights",place="at"} 0.0',
        'epochal_rejected_rows_total{application="flights",place="at"} 2.0',
        'epochal_rejected_rows_total{application="flights",place="hourly"} 0.0',
        'epochal_dropped_timers_total{application="flights",place="reminders"} 5.0',
    }


def left_out(plane: Plane) -> set[str]:
    lines = plane.client.get("/metrics").text.splitlines()
    return {line for line in lines if line.startswith(("epochal_late", "epochal_rejected", "epochal_dropped"))}


def test_a_catalog_of_another_version_is_not_ready(plane: Plane) -> None:
    with plane.control.database.writing() as session:
        session.execute(text("UPDATE alembic_version SET version_num = '9999'"))

    check_problem(plane.client.get("/readyz"), 503, "catalog-version")
    assert plane.client.get("/healthz").status_code == 200


def test_the_openapi_document(plane: Plane) -> None:
    document = plane.as_bearer(None).get("/openapi.json").json()

    assert document["openapi"].startswith("3.1")
    assert len(document["paths"]) > 25
    record = document["components"]["schemas"]["EpochRecord"]["properties"]
    assert all("description" in record[name] for name in ("late_rows", "rejected_rows", "dropped_timers", "watermarks"))
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            where = f"{method} {path}"
            problem = operation["responses"]["default"]["content"]["application/problem+json"]
            assert problem["schema"] == {"$ref": "#/components/schemas/Problem"}, where
            assert "422" not in operation["responses"], where
            assert bool(operation.get("security")) == (path not in ("/healthz", "/readyz")), where
            keys = [p for p in operation.get("parameters", []) if p["name"] == "Idempotency-Key"]
            changes = operation.get("x-scope") in ("operate", "admin") and path != "/v1/collections/plan"
            assert len(keys) == (changes and method != "get"), where
    json.dumps(document)
