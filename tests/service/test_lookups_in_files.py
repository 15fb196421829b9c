"""Look-ups of tables without a replica: too large for one, or while it is built. They equal those from replicas."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from epochal.service.domain.settings import Settings
from epochal.service.domain.snapshots import ApplicationHead
from epochal.service.runtime.replicas import follower
from epochal.service.runtime.replicas.follower import Follower
from epochal.snapshots.store import SnapshotStore
from tests.kit.waiting import eventually
from tests.service.conftest import free_port
from tests.service.lookups import DELAYS, KEYS, VISITS, StateDriver, get, place, refused, route
from tests.service.test_lookups import (  # noqa: F401 (the same tests, without replicas)
    test_batch_is_read_from_one_epoch_in_request_order,
    test_invalid_batch_is_refused_and_names_the_invalid_key,
    test_lookup_returns_the_value_and_its_epoch,
    test_min_epoch_waits_up_to_its_timeout,
    test_missing_or_invalid_keys_are_reported,
    test_older_state_is_read_from_its_snapshot,
    test_state_is_empty_before_the_first_commit,
    test_unchanged_value_is_not_sent_again,
    test_uncommitted_reads_include_prepared_epochs,
)
from tests.service.written_branches import WrittenBranch

if TYPE_CHECKING:
    from tests.service.conftest import Plane


@pytest.fixture
def driver(plane: Plane) -> StateDriver:
    plane.application()
    return StateDriver(plane)


@pytest.fixture
def settings(tmp_path: Path, request: pytest.FixtureRequest) -> Settings:
    return Settings(data=tmp_path / "data", port=free_port(), replica_bytes=getattr(request, "param", 0))


def test_a_table_without_replica_is_listed_and_scanned(plane: Plane, driver: StateDriver) -> None:
    driver.epoch((DELAYS, [route("JFK", f"L{number}", number, 1.0) for number in range(20)]))
    driver.epoch((DELAYS, [route("JFK", "L3"), route("JFK", "L4", 40, 1.0)]), (VISITS, [place("N1", "JFK", 1)]))
    replicas = plane.control.replicas
    eventually(lambda: [table.id for table in seen.unreplicated] if (seen := replicas.application("flights")) else None)
    assert replicas.table("flights", "delays") is None
    tables = {each["table"]: each for each in plane.get("/v1/applications/flights/state")["items"]}
    assert tables["delays"].get("rows") is None
    page = plane.get("/v1/applications/flights/state/delays/scan", limit=30)
    assert [(row["key"]["destination"], row["value"]["flights"]) for row in page["items"]] == sorted(
        (f"L{number}", 40 if number == 4 else number) for number in range(20) if number != 3
    )
    assert page["epoch"] == 2
    answer = plane.post(
        "/v1/applications/flights/state/delays/lookup", 200, keys=[route("JFK", "L4"), route("no", "no")]
    )
    assert (answer["epoch"], answer["values"]) == (2, [{"flights": 40, "worst": 1.0}, None])
    assert refused(plane, KEYS + "JFK,L3")[1] == "key-not-found"
    assert refused(plane, "/v1/applications/flights/state/unknown/keys/1")[1] == "not-found"


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """No replica is brought to an epoch before the event."""
    proceed, real = threading.Event(), follower.catch_up

    def catch_up(*arguments: Any) -> Any:
        proceed.wait(60)
        return real(*arguments)

    monkeypatch.setattr(follower, "catch_up", catch_up)
    yield proceed
    proceed.set()


@pytest.mark.parametrize("settings", [1 << 30], indirect=True)
def test_lookups_read_files_while_a_replica_is_built(
    plane: Plane,
    driver: StateDriver,
    held: threading.Event,
) -> None:
    driver.epoch((DELAYS, [route("JFK", "LAX", 1, 1.0)]))
    assert get(plane, "JFK,LAX")["value"]["flights"] == 1
    driver.epoch((DELAYS, [route("JFK", "LAX", 2, 1.0)]))
    assert get(plane, "JFK,LAX", min_epoch=2)["epoch"] == 2
    held.set()
    eventually(lambda: plane.control.replicas.table("flights", "delays"))
    assert get(plane, "JFK,LAX")["epoch"] == 2


@pytest.mark.parametrize("settings", [1 << 30], indirect=True)
def test_a_replica_that_is_behind_earlier_answers_is_not_used(plane: Plane, driver: StateDriver) -> None:
    driver.epoch((DELAYS, [route("JFK", "LAX", 1, 1.0)]))
    assert get(plane, "JFK,LAX", min_epoch=1)["epoch"] == 1
    replicas = plane.control.replicas
    head = plane.control.snapshots.head("flights")
    replicas.answered("flights", head.branch, 2)
    assert replicas.table("flights", "delays") is None
    driver.epoch((DELAYS, [route("JFK", "LAX", 2, 1.0)]))
    eventually(lambda: replicas.table("flights", "delays"))
    assert get(plane, "JFK,LAX")["epoch"] == 2


def test_building_a_replica_ends_with_the_process_and_leaves_no_files(tmp_path: Path) -> None:
    branch = WrittenBranch(SnapshotStore(str(tmp_path / "store")))
    branch.epoch([("JFK", "LAX", 1, 0.0)])
    following = Follower(branch.store, tmp_path / "replicas", "main", stopping=lambda: True)
    assert not following.follow(ApplicationHead("flights", "main", branch.head, ()))
    assert not following.seen.tables and following.seen.problem is None
    assert not [path for path in (tmp_path / "replicas").rglob("*") if path.is_file()]
