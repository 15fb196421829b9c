"""Lineage over a real socket: labels, folding, drawings; 100,000 epochs are returned quickly and stay readable."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import pytest
from sqlalchemy import insert

from epochal.client import Client
from epochal.contracts.catalog import Change, EpochCounts, EpochTerms
from epochal.service.catalog.models import Branch, Epoch, SnapshotTag
from epochal.service.catalog.types import now
from tests.service.lookups import DELAYS, StateDriver, route

if TYPE_CHECKING:
    from tests.service.conftest import Driver, Plane

LINEAGE = "/v1/applications/flights/lineage"
UNESCAPED = 'it"s <script>alert(1)</script> & \\ \x01 done'


def running(plane: Plane, name: str = "flights", epochs: int = 0) -> Driver:
    driver = plane.driver(name)
    driver.running()
    driver.epochs(epochs)
    return driver


@pytest.fixture
def tree(plane: Plane) -> Driver:
    """Twenty epochs, an upgrade at epoch 8, a fork at epoch 12 with a message that must be escaped, two epochs
    there."""
    plane.application()
    driver = running(plane, epochs=7)
    upgrade(plane, driver)
    driver.epochs(12)
    body = {"name": "copy", "epoch": 12, "parameters": {"out": "/data/copy"}, "message": UNESCAPED}
    plane.post("/v1/applications/flights/fork", 201, **body)
    running(plane, "copy", 2)
    return driver


def upgrade(plane: Plane, driver: Driver) -> None:
    """Commit an epoch as a driver does after it has loaded a new version: the first epoch records the change."""
    assert driver.head is not None
    number, parent = driver.head.epoch + 1, driver.head.key
    driver.catalog.open_epoch(number, parent)
    reference = driver.manifest(number)
    change = Change(kind="upgrade", detail={"artifact": ["a", "b"], "by": "ada", "message": "round the delays"})
    terms = EpochTerms(changes=(Change(kind="rescale", detail={"parallelism": [2, 3]}), change))
    driver.catalog.prepare_epoch(number, parent, reference, EpochCounts(rows_in=number), terms)
    driver.catalog.commit_epoch(number)
    driver.head, driver._next = reference, number + 1


def spans(answer: Any) -> list[tuple[str, int, int, int]]:
    return [(node["application"], node["first"], node["epoch"], node["epochs"]) for node in answer["nodes"]]


FOLDED = [
    ("copy", 14, 14, 1),
    ("copy", 13, 13, 1),
    ("flights", 20, 20, 1),
    ("flights", 13, 19, 7),
    ("flights", 12, 12, 1),
    ("flights", 9, 11, 3),
    ("flights", 8, 8, 1),
    ("flights", 2, 7, 6),
    ("flights", 1, 1, 1),
]


def test_the_lineage_of_several_applications_is_one_folded_list(plane: Plane, tree: Driver) -> None:
    plane.application("other")
    other = running(plane, "other", 9)
    plane.application("third", start=False)
    alone = [("other", 9, 9, 1), ("other", 2, 8, 7), ("other", 1, 1, 1)]
    names = ["copy", "flights", "other", "third"]
    answer = plane.get("/v1/lineage", application=names)
    assert sorted(spans(answer)) == sorted(FOLDED + alone)
    assert answer["heads"] == {
        "copy": plane.get("/v1/applications/copy/lineage")["head"],
        "flights": plane.get(LINEAGE)["head"],
        "other": {"branch": other.point.branch, "epoch": 9},
        "third": None,
    }
    one = plane.get(LINEAGE, fold=True, slices=False)
    assert [edge for edge in answer["edges"] if not edge["to"]["branch"].startswith("other")] == one["edges"]
    found, cursor = [], None
    while True:
        page = plane.get("/v1/lineage", application=names, limit=3, **({"cursor": cursor} if cursor else {}))
        found += page["nodes"]
        if (cursor := page["next_cursor"]) is None:
            break
    assert found == answer["nodes"]
    first = plane.get("/v1/lineage", application=["flights"], limit=1)["next_cursor"]
    refused = plane.client.get("/v1/lineage", params={"application": "other", "limit": 1, "cursor": first})
    assert refused.status_code == 400  # the cursor of another list
    with Client(plane.settings.url, token=plane.admin_token) as client:
        assert [node.epoch for node in client.applications.lineages(["other"], limit=2).nodes] == [9, 8]


def test_heads_of_forks_are_part_of_the_lineage(plane: Plane, tree: Driver) -> None:
    flights, copy = (plane.get(f"/v1/applications/{name}/lineage") for name in ("flights", "copy"))
    assert flights["head"] != copy["head"]
    heads = {"flights": flights["head"], "copy": copy["head"]}
    assert flights["heads"] == copy["heads"] == heads
    assert plane.get(LINEAGE, fold=True, slices=False)["heads"] == heads
    assert plane.get("/v1/lineage", application=["flights"])["heads"] == heads


def test_the_lineage_of_unknown_and_of_too_many_applications_is_refused(plane: Plane) -> None:
    plane.application(start=False)
    path = "/v1/lineage"
    assert plane.client.get(path, params={"application": ["flights", "unknown"]}).status_code == 404
    assert plane.client.get(path).status_code == 422
    assert plane.client.get(path, params={"application": ["flights"] * 51}).status_code == 422
    assert plane.client.get(path, params={"application": "pricing.flights"}).status_code == 422
    assert plane.as_bearer(None).get(path, params={"application": "flights"}).status_code == 401


def test_a_run_is_opened_by_its_branch_and_epochs(plane: Plane, tree: Driver) -> None:
    branch = tree.point.branch
    answer = plane.get(LINEAGE, fold=True, slices=False, branch=branch, first=14, last=17)
    assert spans(answer) == [("flights", epoch, epoch, 1) for epoch in (17, 16, 15, 14)]
    assert [(edge["from"]["epoch"], edge["to"]["epoch"]) for edge in answer["edges"]][-1] == (13, 14)
    first = plane.get(LINEAGE, branch=branch, first=14, last=17, limit=3)
    rest = plane.get(LINEAGE, branch=branch, first=14, last=17, limit=3, cursor=first["next_cursor"])
    assert [node["epoch"] for node in (first["nodes"] + rest["nodes"])] == [17, 16, 15, 14]
    assert rest["next_cursor"] is None
    other = {"branch": branch, "first": 2, "last": 17, "cursor": first["next_cursor"]}
    assert plane.client.get(LINEAGE, params=other).status_code == 400  # the cursor of another list
    assert plane.client.get(LINEAGE, params={"branch": "unknown"}).status_code == 404
    assert plane.client.get(LINEAGE, params={"first": 3}).status_code == 422
    with Client(plane.settings.url, token=plane.admin_token) as client:
        found = client.application("flights").lineage(branch=branch, last=2)
        assert [node.epoch for node in found.nodes] == [2, 1]


def test_runs_of_plain_epochs_are_folded(plane: Plane, tree: Driver) -> None:
    answer = plane.get(LINEAGE, fold=True)
    assert sorted(spans(answer)) == sorted(FOLDED)
    assert spans(answer)[:2] == FOLDED[:2]
    run = next(node for node in answer["nodes"] if node["first"] == 2)
    assert run["counts"]["rows_in"] == sum(range(2, 8))
    assert run["changes"] == []
    keys = {(node["branch"], node["epoch"]) for node in answer["nodes"]}
    place = {key: number for number, key in enumerate(keys)}
    assert len(place) == len(FOLDED)
    order = [(node["branch"], node["epoch"]) for node in answer["nodes"]]
    for edge in answer["edges"]:
        parent, child = (tuple(edge[end].values()) for end in ("from", "to"))
        assert order.index(parent) > order.index(child)
    assert len(answer["edges"]) == len(FOLDED) - 1


@pytest.mark.parametrize("limit", [1, 2, 4])
def test_folded_lineage_is_paged(plane: Plane, tree: Driver, limit: int) -> None:
    whole = plane.get(LINEAGE, fold=True)
    nodes, edges = [], []
    query: dict[str, Any] = {"limit": limit, "fold": True}
    while "cursor" not in query or query["cursor"] is not None:
        page = plane.get(LINEAGE, **query)
        assert len(page["nodes"]) <= limit
        nodes += page["nodes"]
        edges += page["edges"]
        query["cursor"] = page["next_cursor"]
    assert nodes == whole["nodes"]
    assert edges == whole["edges"]


def test_edges_show_author_time_reason_and_input(plane: Plane, tree: Driver) -> None:
    edges = {edge["to"]["epoch"]: edge for edge in plane.get(LINEAGE, fold=True)["edges"]}
    fork = next(edge for edge in edges.values() if edge["kind"] == "fork")
    assert fork["from"]["epoch"] == 12
    assert (fork["label"]["by"], fork["label"]["message"]) == ("admin", UNESCAPED)
    assert fork["label"]["parameters"] == {"out": "/data/copy"}
    assert fork["label"]["at"] is not None
    upgrade = edges[8]
    assert (upgrade["kind"], upgrade["label"]["by"]) == ("upgrade", "ada")
    assert upgrade["label"]["message"] == "round the delays"
    assert (edges[7]["kind"], edges[7]["label"]) == ("epoch", None)


def test_slices_of_a_folded_run_span_all_its_epochs(plane: Plane) -> None:
    plane.application()
    driver = StateDriver(plane)
    for number in range(6):
        driver.epoch((DELAYS, [route("A", "B", number, None)]))
    edges = {edge["to"]["epoch"]: edge for edge in plane.get(LINEAGE, fold=True)["edges"]}
    assert edges[5]["slices"] == {"flights": {"start": {"files": 1}, "end": {"files": 5}, "rows": None, "epochs": 4}}
    assert edges[6]["slices"] == {"flights": {"start": {"files": 5}, "end": {"files": 6}, "rows": 3, "epochs": 1}}
    assert plane.get(LINEAGE, fold=True, slices=False)["edges"][0]["slices"] is None
    for path in driver.store.list(driver.driver.point.branch):
        driver.store.delete(path)
    again = plane.get(LINEAGE, limit=500)
    assert len(again["nodes"]) == 6, "lineage must not need files of the store"


def test_tags_are_shown(plane: Plane, tree: Driver) -> None:
    branch = tree.point.branch
    with plane.control.database.writing() as session:
        application = session.get_one(Branch, branch).application
        tag = {"branch": branch, "epoch": 4, "created_at": now(), "created_by": "ada"}
        session.add(SnapshotTag(application=application, name="good", **tag))
    node = next(node for node in plane.get(LINEAGE, fold=True)["nodes"] if node["epoch"] == 4)
    assert (node["tags"], node["epochs"]) == (["good"], 1)
    assert "tag good" in plane.client.get(LINEAGE, params={"format": "dot"}).text


def test_lineage_is_drawn_as_dot(plane: Plane, tree: Driver) -> None:
    answer = plane.client.get(LINEAGE, params={"format": "dot"})
    assert answer.headers["content-type"].startswith("text/vnd.graphviz")
    text = answer.text
    assert text.startswith('digraph "flights" {') and text.endswith("}\n")
    assert text.count("->") == len(FOLDED) - 1
    for line in text.splitlines():
        # Text of users occurs only inside quoted strings.
        assert "script" not in re.sub(r'"(?:[^"\\]|\\.)*"', "", line)
    assert "\x01" not in text


def test_lineage_is_drawn_as_svg(plane: Plane, tree: Driver) -> None:
    answer = plane.client.get(LINEAGE, params={"format": "svg"})
    assert answer.headers["content-type"] == "image/svg+xml"
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    root = ElementTree.fromstring(answer.text)
    space = "{http://www.w3.org/2000/svg}"
    tags = {element.tag.removeprefix(space) for element in root.iter()}
    assert tags == {"svg", "title", "style", "path", "g", "circle", "text"}
    assert len(list(root.iter(f"{space}circle"))) == len(FOLDED)
    assert len(list(root.iter(f"{space}path"))) == len(FOLDED) - 1
    texts = " ".join(element.text or "" for element in root.iter(f"{space}text"))
    assert "fork by admin" in texts and "<script>" in texts
    assert "upgrade by ada: round the delays" in texts
    for circle in root.iter(f"{space}circle"):
        assert 0 < float(circle.get("cy", "")) < float(root.get("height", ""))


def test_lineage_without_snapshots_is_empty(plane: Plane) -> None:
    plane.application()
    assert plane.get(LINEAGE, fold=True)["nodes"] == []
    assert "no snapshots yet" in plane.client.get(LINEAGE, params={"format": "svg"}).text
    assert plane.client.get(LINEAGE, params={"format": "dot"}).status_code == 200


def test_invalid_requests_are_refused(plane: Plane, tree: Driver) -> None:
    for query in ({"format": "png"}, {"fold": "maybe"}):
        assert plane.client.get(LINEAGE, params=query).status_code == 422
    unfolded = plane.get(LINEAGE, limit=1)["next_cursor"]
    refused = plane.client.get(LINEAGE, params={"fold": True, "cursor": unfolded})
    assert (refused.status_code, refused.json()["type"]) == (400, "urn:epochal:problem:invalid-cursor")


@pytest.mark.long  # folding itself is tested above
def test_hundred_thousand_epochs_fold_into_few_nodes(plane: Plane, tree: Driver) -> None:
    branch, moment = tree.point.branch, now() + timedelta(seconds=1)
    with plane.control.database.writing() as session:
        row = session.get_one(Epoch, (branch, 20))
        shared = {column.key: getattr(row, column.key) for column in Epoch.__table__.columns}
        rows = [
            shared
            | {
                "epoch": number,
                "parent_epoch": number - 1,
                "prepared_at": moment + timedelta(milliseconds=number),
                "committed_at": moment + timedelta(milliseconds=number),
            }
            for number in range(21, 100_001)
        ]
        session.execute(insert(Epoch), rows)
        head = session.get_one(Branch, branch)
        head.head_epoch = 100_000
    answer = plane.get(LINEAGE, fold=True, slices=False)
    assert len(answer["nodes"]) == len(FOLDED)
    assert max(node["epochs"] for node in answer["nodes"]) == 99_999 - 13 + 1
    assert sum(node["epochs"] for node in answer["nodes"]) == 100_002
    drawing = plane.client.get(LINEAGE, params={"format": "svg"}).text
    assert "99,987 epochs" in drawing
