"""Folding of expired epochs into ranges; epochs that something refers to keep their rows."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from epochal.client import Client
from epochal.contracts.catalog import Failure
from epochal.contracts.identity import EpochKey
from epochal.errors import SnapshotExpired
from epochal.service.catalog import folding
from epochal.service.catalog.applications import ApplicationRepository
from epochal.service.catalog.folding import FoldingRepository
from epochal.service.catalog.lineage import LineageRepository
from epochal.service.catalog.rollbacks import RollbackRepository
from epochal.service.catalog.types import now
from epochal.service.commands import collections
from epochal.service.commands.collections import Collection, CollectionRequest
from epochal.service.domain.settings import Settings
from epochal.service.queries.lineage.service import RunSummaries
from epochal.snapshots.store import SnapshotStore

if TYPE_CHECKING:
    from tests.service.conftest import Driver, Plane

FLIGHTS = "/v1/applications/flights"


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.server)])
def settings(request: pytest.FixtureRequest, settings: Settings) -> Settings:
    if request.param == "sqlite":
        return settings
    return settings.model_copy(update={"database": request.getfixturevalue("postgresql_catalog_url")})


@pytest.fixture(autouse=True)
def short_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folding, "SHORTEST", 3)


def collect(plane: Plane, hours: int) -> None:
    store = SnapshotStore(plane.settings.store_url)
    collection = Collection(plane.control.database, store, lambda: now() + timedelta(hours=hours), kept_epochs=4)
    collection.run(CollectionRequest(timedelta(0)))


def numbers(page: Mapping[str, Any]) -> list[int]:
    return [item["epoch"] for item in page["items"]]


def ranges(page: Mapping[str, Any]) -> list[tuple[int, int]]:
    return [(item["first"], item["last"]) for item in page["folded"]]


def check_lineage(plane: Plane) -> None:
    """Check that the stored sums of the lineage equal newly computed ones."""
    lineage = plane.get(f"{FLIGHTS}/lineage", fold=True, limit=100)
    plane.control.lineage._summaries = RunSummaries()
    assert plane.get(f"{FLIGHTS}/lineage", fold=True, limit=100) == lineage


@pytest.mark.alternating(2)
def test_expired_epochs_are_folded_into_ranges_and_edges_remain(plane: Plane) -> None:
    plane.application(configuration={"retained_epochs": 2})
    driver = plane.driver()
    driver.running()
    driver.epochs(10, checkpoints=True)
    plane.post(f"{FLIGHTS}/snapshots/10/tags", 201, name="ten")
    driver.epochs(10, checkpoints=True)
    plane.post(f"{FLIGHTS}/snapshots/20/message", 201, message="odd")
    check_lineage(plane)
    driver.epochs(10, checkpoints=True)
    check_lineage(plane)
    collect(plane, 1)
    assert ranges(plane.get(f"{FLIGHTS}/epochs")) == []  # recently collected epochs may still be read
    collect(plane, 2)
    check_lineage(plane)

    page = plane.get(f"{FLIGHTS}/epochs", limit=100)
    assert numbers(page) == [30, 29, 28, 27, 26, 21, 20, 19, 11, 10, 9, 2, 1]
    assert ranges(page) == [(22, 25), (12, 18), (3, 8)]
    assert [item["rows_in"] for item in page["folded"]] == [22 + 23 + 24 + 25, sum(range(12, 19)), sum(range(3, 9))]
    assert ranges(plane.get(f"{FLIGHTS}/epochs", state="aborted")) == []
    paged: list[tuple[int, int]] = []
    listed: list[int] = []
    cursor: dict[str, str] = {}
    while True:
        part = plane.get(f"{FLIGHTS}/snapshots", limit=3, **cursor)
        listed, paged = listed + numbers(part), paged + ranges(part)
        if part["next_cursor"] is None:
            break
        cursor = {"cursor": part["next_cursor"]}
    assert (listed, paged) == (numbers(page), ranges(page))
    client = Client(plane.settings.url, plane.admin_token)
    with client:
        assert [(one.first, one.last) for one in client.application("flights").epochs.folded()] == ranges(page)

    for path in ("epochs/5", "snapshots/5"):
        refused = plane.client.get(f"{FLIGHTS}/{path}")
        assert (refused.status_code, refused.json()["type"]) == (410, "urn:epochal:problem:snapshot-expired")
        assert "of epochs 3 to 8" in refused.json()["detail"]
    fork = {"name": "copy", "shadow": True, "epoch": 5}
    assert plane.client.post(f"{FLIGHTS}/fork", json=fork).status_code == 410
    assert plane.client.get(f"{FLIGHTS}/epochs/31").status_code == 404
    assert plane.get(f"{FLIGHTS}/epochs/10")["epoch"] == 10

    for fold in (False, True):
        lineage = plane.get(f"{FLIGHTS}/lineage", fold=fold, limit=100)
        assert sum(node["epochs"] for node in lineage["nodes"]) == 30
        assert sum(node["counts"]["rows_in"] for node in lineage["nodes"]) == sum(range(1, 31))
        newest_first = [(node["first"], node["epoch"]) for node in lineage["nodes"]]
        assert [last for _, last in newest_first[1:]] == [first - 1 for first, _ in newest_first[:-1]]
        assert [(edge["from"]["epoch"], edge["to"]["epoch"]) for edge in lineage["edges"]] == [
            (first - 1, last) for first, last in newest_first[:-1]
        ]

    driver.epochs(10, checkpoints=True)
    check_lineage(plane)
    collect(plane, 3)
    collect(plane, 4)
    check_lineage(plane)
    assert ranges(plane.get(f"{FLIGHTS}/epochs")) == [(22, 35), (12, 18), (3, 8)]
    driver.stop() if plane.post(f"{FLIGHTS}/stop") else None
    plane.post(f"{FLIGHTS}/start")
    assert plane.driver().point.next_epoch == 41

    database = plane.control.database
    with database.reading() as session:
        row = ApplicationRepository(session).named("flights")
        branch = ApplicationRepository(session).branch(row)
        left = RollbackRepository(session).left_behind(branch, EpochKey(branch.id, 1))
        assert (left.epochs, left.first, left.last) == (39, 2, 40)
        origins = LineageRepository(session).origins([EpochKey(branch.id, number) for number in (5, 40)])
        assert {origin.version for origin in origins.values()} == {1}
        with pytest.raises(SnapshotExpired):
            FoldingRepository(session).check_not_folded(EpochKey(branch.id, 24))


def aborted(driver: Driver, count: int) -> None:
    for _ in range(count):
        number, driver._next = driver._next, driver._next + 1
        driver.catalog.open_epoch(number, driver.head_key)
        driver.catalog.abort_epoch(number, Failure(type="sink-error", message="disk full"))


def folded_of(plane: Plane, count: int, **state: str) -> list[tuple[int, int]]:
    page = plane.get(f"{FLIGHTS}/epochs", limit=100, **state)
    assert len(numbers(page)) + sum(last - first + 1 for first, last in ranges(page)) == count
    return ranges(page)


@pytest.mark.alternating(2)
def test_aborted_epochs_are_folded_alone_or_with_others(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    """A range that is followed by another one ends before a committed epoch, wherever a transaction ends."""
    monkeypatch.setattr(collections, "FOLDED_AT_ONCE", 2 if plane.control.database.is_sqlite else 5)
    plane.application(configuration={"retained_epochs": 2})
    driver = plane.driver()
    driver.running()
    for _ in range(4):
        driver.epochs(1, checkpoints=True)
        aborted(driver, 2)
    driver.epochs(1, checkpoints=True)
    aborted(driver, 4)  # up to 17
    plane.post(f"{FLIGHTS}/stop")
    driver.stop()
    plane.post(f"{FLIGHTS}/start")
    driver = plane.driver()
    driver.running()
    driver.epochs(6, checkpoints=True)  # up to 23
    aborted(driver, 2)
    before = plane.get(f"{FLIGHTS}/lineage", fold=False, limit=100)
    collect(plane, 1)
    collect(plane, 2)
    assert folded_of(plane, 25) == [(14, 17), (5, 12)]
    assert folded_of(plane, 25 - 8, state="committed") == [(5, 12)]
    page = plane.get(f"{FLIGHTS}/epochs", limit=100)
    assert [(item["aborted"], item["rows_in"]) for item in page["folded"]] == [(4, 0), (6, 7 + 10)]
    assert ranges(plane.get(f"{FLIGHTS}/epochs", state="aborted")) == [(14, 17), (5, 12)]
    assert ranges(plane.get(f"{FLIGHTS}/snapshots", limit=100)) == [(5, 12)]
    for number, detail in ((7, "of epochs 5 to 12"), (5, "6 of them aborted"), (16, "was aborted")):
        refused = plane.client.get(f"{FLIGHTS}/epochs/{number}")
        assert refused.status_code == 410 and detail in refused.json()["detail"]
    check_lineage(plane)
    for fold in (False, True):
        lineage = plane.get(f"{FLIGHTS}/lineage", fold=fold, limit=100)
        assert sum(node["epochs"] for node in lineage["nodes"]) == len(before["nodes"])
        assert sum(node["counts"]["rows_in"] for node in lineage["nodes"]) == sum(
            node["counts"]["rows_in"] for node in before["nodes"]
        )
        ends = {node["epoch"] for node in lineage["nodes"]}
        assert all(edge["from"]["epoch"] in ends for edge in lineage["edges"])
    with plane.control.database.reading() as session:
        row = ApplicationRepository(session).named("flights")
        branch = ApplicationRepository(session).branch(row)
        left = RollbackRepository(session).left_behind(branch, EpochKey(branch.id, 4))
        assert (left.epochs, left.first, left.last) == (9, 7, 23)
    driver.epochs(4, checkpoints=True)
    aborted(driver, 6)
    collect(plane, 3)
    collect(plane, 4)
    check_lineage(plane)
    assert folded_of(plane, 35)
