"""Rules for all calls: problems, pagination, limits."""

from __future__ import annotations

import json
import logging
import socket
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from sqlalchemy import text

from epochal import errors
from epochal.service.domain.setting_sections import Limits
from epochal.service.domain.settings import Settings
from epochal.wire.problems import STATUSES, Problem, problem_of, status_of
from tests.kit.waiting import eventually
from tests.service.problems import check_problem

if TYPE_CHECKING:
    from tests.service.conftest import Plane


def every_error() -> list[type[errors.EpochalError]]:
    found, pending = [], [errors.EpochalError]
    while pending:
        pending += (error := pending.pop()).__subclasses__()
        found.append(error)
    return found


@pytest.mark.parametrize("error", every_error(), ids=lambda error: error.__name__)
def test_every_error_has_a_problem(error: type[errors.EpochalError]) -> None:
    problem = problem_of(error("what happened"))

    assert problem.type == f"urn:epochal:problem:{error.slug}"
    assert problem.status in STATUSES.values() and problem.status == status_of(error())
    assert problem.title and problem.detail == "what happened"


def test_unknown_paths_and_methods_are_problems(plane: Plane) -> None:
    check_problem(plane.client.get("/v1/nothing"), 404, "no-such-path")
    check_problem(plane.client.get("/v1/applications/"), 404, "no-such-path")
    answer = plane.client.patch("/v1/applications")
    check_problem(answer, 405, "method-not-allowed")
    assert answer.headers["allow"]


def test_malformed_http_request_is_a_problem(plane: Plane) -> None:
    with socket.create_connection(("127.0.0.1", plane.settings.port), timeout=30) as connection:
        connection.sendall("GET /v1/größe HTTP/1.1\r\n\x00\r\n\r\n".encode())
        head, _, body = b"".join(iter(lambda: connection.recv(4096), b"")).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert b"content-type: application/problem+json" in head
    assert Problem.model_validate_json(body).type == "urn:epochal:problem:bad-request"


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
def test_names_with_special_characters_are_not_found(plane: Plane, path: str) -> None:
    assert plane.client.get(path).status_code == 404


@pytest.mark.parametrize("limit", [0, 501, "x"])
def test_invalid_limits_are_refused(plane: Plane, limit: Any) -> None:
    assert plane.client.get("/v1/applications", params={"limit": limit}).status_code == 422


def test_unexpected_errors_show_only_an_id(plane: Plane, caplog: pytest.LogCaptureFixture) -> None:
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


def test_unavailable_catalog_is_a_503_without_details(plane: Plane, caplog: pytest.LogCaptureFixture) -> None:
    with plane.control.database.writing() as session:
        session.execute(text("ALTER TABLE artifacts RENAME TO elsewhere"))
    answer = plane.client.get("/v1/artifacts")

    check_problem(answer, 503, "catalog-unavailable")
    assert "artifacts" not in answer.json()["detail"] and answer.headers["retry-after"] == "1"


def test_valid_request_ids_are_returned(plane: Plane) -> None:
    assert plane.client.get("/healthz", headers={"X-Request-Id": "abc-1"}).headers["x-request-id"] == "abc-1"
    assert (
        plane.client.get("/healthz", headers={"X-Request-Id": "a b<script>"}).headers["x-request-id"] != "a b<script>"
    )


def test_bodies_are_limited_with_and_without_a_declared_length(settings: Settings, serve: Callable[..., Any]) -> None:
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
def test_truncated_body_is_refused(plane: Plane, framing: str, key: str) -> None:
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
    """Number of calls other than GET, by status."""
    found: Counter[str] = Counter()
    for line in plane.client.get("/metrics").text.splitlines():
        if line.startswith("epochal_request_seconds_count") and 'method="GET"' not in line:
            found[line.split('status="')[1].partition('"')[0]] += round(float(line.split()[-1]))
    return found


def all_items(plane: Plane, path: str, limit: int) -> list[Any]:
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
        plane.token("viewer", f"token-{name}")
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
            assert all_items(plane, path, limit) == whole["items"], path


def test_epochs_and_lineage_are_paged_across_branches(plane: Plane) -> None:
    plane.application()
    driver = plane.driver()
    driver.running()
    driver.epochs(4)
    plane.post("/v1/applications/flights/fork", 201, name="copy", epoch=3, shadow=True)
    child = plane.driver("copy")
    child.running()
    child.epochs(2)

    assert [item["epoch"] for item in all_items(plane, "/v1/applications/copy/epochs", 2)] == [5, 4, 3, 2, 1]
    nodes: list[Any] = []
    query: dict[str, Any] = {"limit": 2}
    while "cursor" not in query or query["cursor"] is not None:
        page = plane.get("/v1/applications/copy/lineage", **query)
        nodes += page["nodes"]
        query["cursor"] = page["next_cursor"]
    assert nodes == plane.get("/v1/applications/copy/lineage")["nodes"]
    assert len(nodes) == 6
