"""Cursors and ids in requests give no access to another project, application or list."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from epochal.contracts.identity import EpochKey
from epochal.errors import InvalidCursor, NotFound
from epochal.service.app import create_app
from epochal.service.domain.pages import CursorSeal, PageRequest
from epochal.service.domain.settings import Settings
from epochal.service.query_app import compose_worker, create_query_app
from epochal.service.query_composition import QueryOrders
from epochal.state.key_codec import FORM
from epochal.wire.problems import PREFIX
from epochal.wire.projects import OF_PROJECTS
from tests.service.conftest import Plane, StandInSupervisor, http_client, serving
from tests.service.cursors import SEAL, signed
from tests.service.lookups import DELAYS, StateDriver, route
from tests.service.projects import Project, project

if TYPE_CHECKING:
    from fastapi import FastAPI

SECRET = "OF-PRICING"
"""A value in every row of the project ``pricing``."""
ISOLATIONS = ("read_uncommitted", "read_committed")
STATE = "/v1/applications/ads.{}/state/delays"
Send = Callable[[str, dict[str, Any]], httpx.Response]
Parameter = tuple[str, str, str, str, frozenset[str]]
"""Method, path, place and name, and the names of all query parameters of the operation."""


@pytest.fixture
def pricing(plane: Plane) -> Iterator[StateDriver]:
    """The project ``pricing`` with two applications.

    ``orders`` has three committed epochs, a savepoint and a tag ``month``, and a prepared epoch; ``invoices`` is
    empty."""
    owner = project(plane, "pricing")
    with owner.client:
        owner.application("orders")
        driver = StateDriver(plane, "pricing.orders", tables=(DELAYS,))
        for flights in range(3):
            driver.epoch((DELAYS, [route(SECRET, place, flights, 1.0) for place in ("LAX", "SFO")]))
        owner.post("applications/orders/savepoints", 202, name="month")
        for directive in driver.driver.running():
            driver.driver.catalog.complete(directive.id, driver.head)
        owner.post("applications/orders/snapshots/3/tags", 201, name="month")
        owner.application("invoices", start=False)
        driver.prepare((DELAYS, [route(SECRET, "LAX", 9, 1.0)]))
        yield driver


@pytest.fixture
def ads(plane: Plane) -> Iterator[Project]:
    """The project ``ads`` with its admin's token; its application ``orders`` has two committed epochs."""
    owner = project(plane, "ads")
    with owner.client:
        owner.application("orders")
        driver = StateDriver(plane, "ads.orders", tables=(DELAYS,))
        for flights in range(2):
            driver.epoch((DELAYS, [route("JFK", place, flights, 1.0) for place in ("LAX", "SFO")]))
        yield owner


@pytest.fixture
def reader(plane: Plane, ads: Project) -> Iterator[Project]:
    """The project ``ads`` with a viewer's token."""
    with plane.as_bearer(ads.token("viewer", "reader")) as client:
        yield Project(plane, "ads", client)


def query_node(app: FastAPI, client: httpx.Client) -> Send:
    """A function that sends requests of the same caller to a query node."""
    transport = httpx.ASGITransport(app)

    async def send(path: str, query: dict[str, Any]) -> httpx.Response:
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as node:
            return await node.get(path, params=query, headers=dict(client.headers))

    return lambda path, query: asyncio.run(send(path, query))


def refused(answer: httpx.Response, where: str = "") -> None:
    """Check for status 400 without any content of ``pricing``."""
    assert answer.status_code == 400, (where, answer.text)
    body = answer.json()
    assert body["type"] == PREFIX + "invalid-cursor", (where, body)
    assert "without `cursor`" in body["detail"] and SECRET not in answer.text


def fill(template: str, application: str, **names: str) -> str:
    """The path with names that exist in ``ads``."""
    usual = {"name": application, "table": "delays", "snapshot": "1", "query": "1"}
    usual |= {"key": "JFK,LAX", "epoch": "1", "entry": "add", "id": "1"}
    return template.format(**(usual | names))


def parameters() -> Iterator[Parameter]:
    """All parameters of authenticated calls in the OpenAPI document, except those in paths, which
    ``test_project_isolation.py`` tests."""
    document = create_app(Settings()).openapi()

    def fields(schema: dict[str, Any]) -> Iterator[str]:
        if "$ref" in schema:
            schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        yield from schema.get("properties", ())
        for part in (*schema.get("anyOf", ()), *schema.get("allOf", ()), *schema.get("oneOf", ())):
            yield from fields(part)

    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            if not path.startswith("/v1/"):
                continue
            found = {(each["in"], each["name"]) for each in operation.get("parameters", ()) if each["in"] != "path"}
            for content in operation.get("requestBody", {}).get("content", {}).values():
                found |= {("body", name) for name in fields(content["schema"])}
            queried = frozenset(name for place, name in found if place == "query")
            for place, name in sorted(found):
                yield method.upper(), path, place, name, queried


def unsigned_cursor(*values: Any) -> str:
    """A cursor without a signature."""
    return base64.urlsafe_b64encode(json.dumps(values).encode()).decode().rstrip("=")


def test_a_forged_cursor_reads_no_state_of_another_project(plane: Plane, reader: Project, pricing: StateDriver) -> None:
    branch = pricing.driver.point.branch
    node = query_node(create_query_app(plane.control), reader.client)
    for send in (lambda path, query: reader.client.get(path, params=query), node):
        for application, epoch, isolation in product(("orders", "missing"), (2, 4), ISOLATIONS):
            state = reader.url(f"applications/{application}/state/delays")
            forged = {"cursor": unsigned_cursor(branch, epoch, FORM, ""), "isolation": isolation}
            refused(send(f"{state}/scan", forged))
            forged = {"cursor": unsigned_cursor(branch, epoch, 0, "", 0), "key": "OF-ADS,LAX"}
            refused(send(f"{state}/history", forged))


def test_a_signed_cursor_with_a_key_of_another_application_is_refused(
    plane: Plane, ads: Project, reader: Project, pricing: StateDriver
) -> None:
    """Beside the signature, each snapshot key must be in the lineage of the application."""
    ads.post("applications/orders/fork", 201, name="copy", epoch=1, parameters={"out": "/copy"}, start=False)
    own, foreign = str(ads.get("applications/orders")["branch"]), pricing.driver.point.branch
    send = query_node(create_query_app(plane.control), reader.client)
    key = "JFK,LAX"

    def scan(application: str, branch: str, epoch: int, isolation: str) -> httpx.Response:
        cursor = signed(plane, STATE.format(application) + "/scan", branch, epoch, FORM, "", project="ads")
        path = reader.url(f"applications/{application}/state/delays/scan")
        return send(path, {"cursor": cursor, "isolation": isolation})

    def history(application: str, *position: Any) -> httpx.Response:
        cursor = signed(plane, STATE.format(application) + "/history", *position, project="ads", query=(f"key={key}",))
        path = reader.url(f"applications/{application}/state/delays/history")
        return reader.client.get(path, params={"cursor": cursor, "key": key})

    for isolation in ISOLATIONS:
        for application, branch, epoch in (("orders", foreign, 2), ("copy", foreign, 2), ("copy", own, 2)):
            answer = scan(application, branch, epoch, isolation)
            assert answer.status_code in (400, 404) and SECRET not in answer.text, answer.text
        assert scan("missing", foreign, 2, isolation).status_code == 404
        assert scan("copy", own, 1, isolation).json()["items"] == scan("orders", own, 1, isolation).json()["items"]
        assert len(scan("orders", own, 2, isolation).json()["items"]) == 2
    assert [item["epoch"] for item in history("orders", own, 2, 0, "", 0).json()["items"]] == [2, 1]
    for position in ((foreign, 2, 0, "", 0), (foreign, 4, 0, "", 0), (own, 2, 0, foreign, 2), ("none", 1, 0, "", 0)):
        answer = history("orders", *position)
        assert (answer.status_code, answer.json()["type"]) == (404, PREFIX + "not-found"), answer.text


def test_snapshots_are_limited_to_the_lineage_of_the_application(plane: Plane, ads: Project) -> None:
    """A fork reads its own branch and its parent's up to the fork, and nothing of the parent after it."""
    ads.post("applications/orders/fork", 201, name="copy", epoch=1, parameters={"out": "/copy"}, start=False)
    branch, fork = (str(ads.get(f"applications/{name}")["branch"]) for name in ("orders", "copy"))
    reference = plane.control.snapshots.reference
    for application, epoch in (("ads.orders", 1), ("ads.orders", 2), ("ads.copy", 1)):
        assert reference(application, EpochKey(branch, epoch)).key == EpochKey(branch, epoch)
    for application, key in (
        ("ads.copy", EpochKey(branch, 2)),
        ("ads.orders", EpochKey(fork, 1)),
        ("ads.orders", EpochKey(branch, 3)),
        ("ads.missing", EpochKey(branch, 1)),
        ("orders", EpochKey(branch, 1)),
    ):
        with pytest.raises(NotFound):
            reference(application, key)


NOW = datetime(2026, 1, 1, tzinfo=UTC).isoformat()
STATE_PATH = "/v1/applications/{name}/state/{table}"
CURSORS: dict[str, tuple[Any, ...]] = {
    "/v1/projects": ("a",),
    "/v1/artifacts": (NOW, "a"),
    "/v1/applications": ("a",),
    "/v1/lags": ("a",),
    "/v1/lineage": (NOW, 1, 1, "a"),
    "/v1/imports": (NOW, "a"),
    "/v1/operations": ("a",),
    "/v1/nodes": ("a",),
    "/v1/sessions": ("a",),
    "/v1/tokens": ("a",),
    "/v1/webhooks": ("a",),
    "/v1/audit": (1,),
    "/v1/applications/{name}/pins": ("a", 1),
    "/v1/applications/{name}/tags": ("a",),
    "/v1/applications/{name}/versions": (9,),
    "/v1/applications/{name}/executions": ("a",),
    "/v1/applications/{name}/lifecycle": (NOW, 1, "a", 0),
    "/v1/applications/{name}/epochs": (9,),
    "/v1/applications/{name}/entries": ("a",),
    "/v1/applications/{name}/savepoints": ("a",),
    "/v1/applications/{name}/snapshots": (9,),
    "/v1/applications/{name}/lineage": (NOW, "a", 1),
    "/v1/applications/{name}/state": ("a",),
    "/v1/applications/{name}/queries/{query}/results": ("{branch}", 1, FORM, ""),
    "/v1/applications/{name}/snapshots/{snapshot}/diff/{table}": ("",),
    STATE_PATH + "/scan": ("{branch}", 1, FORM, ""),
    STATE_PATH + "/history": ("{branch}", 1, 0, "", 0),
}
"""Every list with a cursor, and the values of a position in it."""
QUERIES = {
    STATE_PATH + "/history": {"key": "JFK,LAX"},
    "/v1/lineage": {"application": "orders"},
    "/v1/applications/{name}/snapshots/{snapshot}/diff/{table}": {"to": "2"},
}
BODIES: dict[tuple[str, str], dict[str, Any]] = {
    ("POST", "/v1/applications"): {"name": "fresh", "artifact": "0" * 64, "parameters": {"out": "/fresh"}},
    ("POST", "/v1/applications/{name}/fork"): {"name": "copy", "parameters": {"out": "/copy"}, "start": False},
    ("POST", "/v1/applications/{name}/state/{table}/lookup"): {"keys": [{"origin": "JFK", "destination": "LAX"}]},
    ("POST", "/v1/applications/{name}/entries/{entry}"): {"arguments": {}},
    ("POST", "/v1/preflight"): {"application": "orders"},
    ("POST", "/v1/tokens"): {"role": "viewer"},
    ("POST", "/v1/webhooks"): {"url": "https://example.com/hook", "kinds": ["epoch.committed"]},
}
"""Required fields of the operation beside the tested one."""
OF_INSTALLATION = ("/v1/nodes", "/v1/projects", "/v1/sessions")


def test_the_table_of_cursors_contains_every_list() -> None:
    """Add new lists to ``CURSORS``."""
    found = {path for _, path, place, name, _ in parameters() if (place, name) == ("query", "cursor")}
    assert found == CURSORS.keys()


def test_a_cursor_is_valid_for_its_own_list_only(plane: Plane, ads: Project, pricing: StateDriver) -> None:
    """Every list refuses cursors of another project, application, table or kind of list, truncated and altered
    cursors, and those signed with the key of another installation."""
    branches = {"ads": str(ads.get("applications/orders")["branch"]), "pricing": pricing.driver.point.branch}

    def cursor(template: str, in_project: str, kind: str | None = None, **names: str) -> str:
        values = [
            value.format(branch=branches[in_project]) if isinstance(value, str) else value
            for value in CURSORS[template]
        ]
        of = "default" if template in OF_INSTALLATION else in_project
        filled = f"{in_project}.orders"
        query = tuple(f"{name}={value}" for name, value in QUERIES.get(template, {}).items())
        return signed(plane, fill(kind or template, filled, **names), *values, project=of, query=query)

    for template in CURSORS:
        path = ads.url(fill(template, "orders").removeprefix("/v1/"))
        client, query = ads.client, QUERIES.get(template, {})
        if template in OF_INSTALLATION:
            path, client = fill(template, "orders"), plane.client
        own = cursor(template, "ads")
        answer = client.get(path, params={**query, "cursor": own})
        assert answer.status_code == (404 if "/queries/" in template else 200), (template, answer.text)
        seal = CursorSeal(b"another key", ("ads", fill(template, "ads.orders")))
        wrong = {
            "unsigned": unsigned_cursor(*CURSORS[template]),
            "another installation": PageRequest(1, None, seal).following(*CURSORS[template]),
            "another kind of list": cursor(template, "ads", kind="/v1/something/else"),
            "truncated": own[:-1],
            "truncated to the signature": own[:20],
            "longer": own + "A",
            "empty": "",
            "an altered position": own[:-2] + ("BB" if not own.endswith("BB") else "CC"),
            "an altered signature": ("B" if own[0] != "B" else "C") + own[1:],
            "not Base64": "*" + own[1:],
            "not ASCII": "\u00e9" + own[1:],
        }
        if template not in OF_INSTALLATION:
            wrong["another project"] = cursor(template, "pricing")
        if "{name}" in template:
            wrong["another application"] = cursor(template, "ads", name="ads.copy")
        if "{table}" in template:
            wrong["another table"] = cursor(template, "ads", table="visits")
        if query:
            changed = {name: value + "0" for name, value in query.items()}
            refused(client.get(path, params={**changed, "cursor": own}), f"{template}: another subject")
        for what, text in wrong.items():
            refused(client.get(path, params={**query, "cursor": text}), f"{template}: {what}")


def test_a_cursor_with_a_changed_character_is_refused() -> None:
    own = PageRequest(1, None, SEAL).following("pricing.orders-1", 4, 2, "")
    assert json.loads(SEAL.open(own)) == ["pricing.orders-1", 4, 2, ""]
    for position, other in product(range(len(own)), "AQgw_-9"):
        changed = own[:position] + other + own[position + 1 :]
        if changed != own:
            with pytest.raises(InvalidCursor):
                SEAL.open(changed)
    with pytest.raises(InvalidCursor):
        SEAL.open(own + "=")


def test_a_cursor_is_valid_after_a_restart_and_on_query_nodes(settings: Settings, tmp_path: Path) -> None:
    def served() -> tuple[list[str], str | None]:
        with serving(settings, StandInSupervisor()) as (control, token), http_client(settings, token) as client:
            plane = Plane(control, client, settings, StandInSupervisor(), [])
            if cursor is None:
                for name in ("first", "second"):
                    plane.application(name, start=False)
            send: Send = lambda path, query: client.get(path, params=query)  # noqa: E731
            if cursor is not None:
                node, _ = compose_worker(QueryOrders(settings=settings, folder=tmp_path))
                assert names(query_node(create_query_app(node), client), cursor)[0] == ["second"]
            return names(send, cursor)

    def names(send: Send, cursor: str | None) -> tuple[list[str], str | None]:
        answer = send("/v1/applications", {"limit": 1, **({} if cursor is None else {"cursor": cursor})})
        assert answer.status_code == 200, answer.text
        return [item["name"] for item in answer.json()["items"]], answer.json()["next_cursor"]

    cursor: str | None = None
    found, cursor = served()
    assert (found, cursor is None) == (["first"], False)
    assert served() == (["second"], None)


SNAPSHOT_READS = [
    ("GET", path, "query")
    for path in (
        *(f"{STATE_PATH}/{kind}" for kind in ("keys/{key}", "keys", "scan", "history", "blame")),
        "/v1/applications/{name}/queries/{query}/results",
    )
]
ONE = "/v1/applications/{name}"
IDS: dict[tuple[str, str, str, str], tuple[Any, ...]] = {
    **{
        (*read, name): (value,)
        for read in SNAPSHOT_READS
        for name, value in (("epoch", 3), ("savepoint", "month"), ("tag", "month"))
    },
    **{
        ("POST", f"{ONE}/{verb}", "body", name): (value,)
        for verb in ("fork", "rollback", "export", "state/{table}/lookup")
        for name, value in (("epoch", 3), ("savepoint", "month"), ("tag", "month"))
    },
    ("POST", f"{ONE}/start", "body", "savepoint"): ("month", "pricing.month"),
    ("POST", f"{ONE}/stop", "body", "savepoint"): ("pricing.month",),
    ("POST", f"{ONE}/export", "body", "since"): (3,),
    ("POST", f"{ONE}/entries/{{entry}}", "body", "request_id"): ("of-pricing",),
    ("POST", f"{ONE}/fork", "body", "name"): ("pricing.copy", "invoices.copy"),
    ("POST", f"{ONE}/fork", "body", "artifact"): ("{artifact}",),
    ("POST", f"{ONE}/versions", "body", "artifact"): ("{artifact}",),
    ("POST", f"{ONE}/savepoints", "body", "name"): ("pricing.month",),
    ("POST", f"{ONE}/snapshots/{{epoch}}/tags", "body", "name"): ("pricing.month",),
    ("POST", "/v1/applications", "body", "name"): ("pricing.copy",),
    ("POST", "/v1/applications", "body", "artifact"): ("{artifact}",),
    ("POST", "/v1/imports/{id}/application", "body", "name"): ("pricing.copy", "copy"),
    ("POST", "/v1/preflight", "body", "application"): ("invoices", "pricing.orders", "pricing.invoices"),
    ("POST", "/v1/preflight", "body", "artifact"): ("{artifact}",),
    ("POST", "/v1/preflight", "body", "epoch"): (3,),
    ("POST", "/v1/preflight", "body", "savepoint"): ("month",),
    ("POST", "/v1/projects", "body", "name"): ("pricing", "stolen"),
    ("POST", "/v1/tokens", "body", "name"): ("pricing.its-admin",),
    ("POST", "/v1/verifications", "body", "application"): ("pricing.orders", "orders"),
    ("POST", "/v1/webhooks", "body", "applications"): (["pricing.orders"], ["pricing/orders"]),
    ("GET", "/v1/operations", "query", "application"): ("invoices", "pricing.orders"),
    ("GET", "/v1/events", "query", "application"): ("pricing.orders", "pricing/orders"),
    ("GET", "/v1/lineage", "query", "application"): ("invoices", "pricing.orders", "pricing/orders"),
    ("GET", f"{ONE}/lineage", "query", "branch"): ("{branch}",),
    ("GET", "/v1/events", "query", "after"): ("invoices/1", "pricing.orders/1", "pricing/orders/1"),
    ("GET", f"{ONE}/events", "query", "after"): ("999999", "pricing.orders/1"),
    ("GET", "/v1/events", "header", "last-event-id"): ("invoices/1", "pricing.orders/1", "pricing/orders/1"),
    ("GET", f"{ONE}/events", "header", "last-event-id"): ("999999", "pricing.orders/1"),
    ("GET", f"{ONE}/logs", "query", "attempt"): (99,),
    ("GET", f"{ONE}/logs", "query", "branch"): ("{branch}",),
    ("GET", "/v1/audit", "query", "application"): ("pricing.orders", "pricing/orders"),
    ("GET", f"{ONE}/snapshots/{{snapshot}}/diff", "query", "to"): ("3", "month", "invoices:1", "pricing.orders:1"),
    ("GET", f"{ONE}/snapshots/{{snapshot}}/diff/{{table}}", "query", "to"): ("3", "month", "pricing.orders:1"),
}
"""Every id and name in a body, query or header, with values that exist in ``pricing`` only, or refer to it."""
NAMES_NOTHING = {
    "query": "cursor limit action token since until at first last file isolation min_epoch min_window_end wait_seconds "
    "wait key prefix fold slices format state kind follow tail offset filename code error iss return_to",
    "header": "if-match if-none-match Idempotency-Key X-Request-Id",
    "body": "acceptance arguments at available_now bytes calls configuration confirm drain dry_run expires_after "
    "expires_at foreign grace_seconds isolation keep keys kinds map max_parallelism message min_epoch move "
    "move_aside older_than_seconds operator parallelism parallelisms parameters path place query quick quotas repair "
    "role scope seconds secret sha256 shadow sources start to trial url wait_seconds",
}
"""Parameters and fields that refer to nothing in a project. Other tests cover ``cursor`` and ``Idempotency-Key``."""


def test_the_tables_of_parameters_are_complete() -> None:
    """Add new parameters and fields to ``IDS`` or ``NAMES_NOTHING``."""
    found = {
        (method, path, place, name)
        for method, path, place, name, _ in parameters()
        if name not in NAMES_NOTHING[place].split()
    }
    assert found == IDS.keys()


def contents_of_pricing(plane: Plane) -> list[Any]:
    """The resources of the project."""
    lists = ("applications", "operations", "tokens", "webhooks", "imports", "applications/orders/savepoints")
    return [plane.get(f"/v1/projects/pricing/{path}") for path in lists]


def test_an_id_of_another_project_is_refused(plane: Plane, ads: Project, pricing: StateDriver) -> None:
    theirs = plane.get("/v1/applications/pricing.invoices")
    upload = plane.post("/v1/projects/pricing/imports", 201, sha256="0" * 64, bytes=10)["id"]
    before = contents_of_pricing(plane)
    queried = {(method, path): names for method, path, _, _, names in parameters()}
    for (method, template, place, name), values in IDS.items():
        for value in values:
            foreign = value.format(**theirs) if isinstance(value, str) else value
            path = fill(template, "orders", epoch="1", id=upload)
            of_project = template.split("/")[2] in OF_PROJECTS
            url = ads.url(path.removeprefix("/v1/")) if of_project else path
            sent: dict[str, Any] = {"params": dict(QUERIES.get(template, {}))}
            if place == "body":
                sent["json"] = {**BODIES.get((method, template), {}), name: foreign}
            elif place == "query":
                sent["params"] |= {"key": "JFK,LAX"} if "key" in queried[method, template] else {}
                sent["params"][name] = foreign
            else:
                sent["headers"] = {name: foreign}
            answer = ads.client.request(method, url, timeout=8, **sent)
            where = f"{method} {url} {sent}: {answer.status_code} {answer.text[:300]}"
            assert answer.status_code in (400, 403, 404, 409, 410, 422), where
            assert SECRET not in answer.text and theirs["branch"] not in answer.text, where
    assert contents_of_pricing(plane) == before


def test_an_answer_is_not_replayed_to_another_caller(plane: Plane, ads: Project, pricing: StateDriver) -> None:
    body, headers = {"name": SECRET.lower(), "role": "viewer"}, {"Idempotency-Key": "once"}
    first = plane.client.post("/v1/projects/pricing/tokens", json=body, headers=headers)
    again = plane.client.post("/v1/projects/pricing/tokens", json=body, headers=headers)
    assert (again.json()["id"], again.json()["token"]) == (first.json()["id"], None)
    other = ads.client.post("/v1/projects/pricing/tokens", json=body, headers=headers)
    assert other.status_code == 403 and first.json()["id"] not in other.text
    mine = ads.client.post(ads.url("tokens"), json=body, headers=headers)
    assert (mine.status_code, mine.json()["project"], mine.json()["id"] == first.json()["id"]) == (201, "ads", False)
    crossed = plane.client.post(ads.url("tokens"), json=body, headers=headers)
    assert (crossed.status_code, crossed.json()["type"]) == (422, PREFIX + "idempotency-key-reused")
