"""A transaction of the catalog never waits for the store, for code or for a build.

PostgreSQL ends a writing transaction that is idle for five seconds, and its locks block other transactions.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from epochal.service.catalog import migration
from epochal.service.catalog.database import Database
from epochal.service.runtime.artifact_cache import ArtifactCache
from epochal.snapshots.store import SnapshotStore
from tests.service.backups import started
from tests.service.bundles import exported, finished, imported
from tests.service.conftest import StandInBuilder
from tests.service.lookups import DELAYS, StateDriver, route

if TYPE_CHECKING:
    from epochal.service.domain.settings import Settings

SLOW_CALLS: tuple[tuple[type, tuple[str, ...]], ...] = (
    (SnapshotStore, ("write", "read", "read_ranges", "open", "size", "delete", "list", "entries", "read_manifest")),
    (ArtifactCache, ("file", "for_a_while")),
    (StandInBuilder, ("describe", "analyse", "shown")),
)


class OpenTransactions(threading.local):
    transactions = 0


@pytest.fixture
def slow_calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[str]]:
    """Names of the slow calls that were made within a transaction."""
    state, found = OpenTransactions(), set[str]()

    def tracked(make: Callable[..., Any]) -> Callable[..., Any]:
        @contextmanager
        def transaction(*positional: Any, **named: Any) -> Iterator[Any]:
            with make(*positional, **named) as session:
                state.transactions += 1
                try:
                    yield session
                finally:
                    state.transactions -= 1

        return transaction

    def recorded(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*positional: Any, **named: Any) -> Any:
            if state.transactions:
                found.add(name)
            return call(*positional, **named)

        return wrapped

    for kind in ("reading", "writing"):
        monkeypatch.setattr(Database, kind, tracked(getattr(Database, kind)))
    for owner, names in SLOW_CALLS:
        for name in names:
            monkeypatch.setattr(owner, name, recorded(f"{owner.__name__}.{name}", getattr(owner, name)))
    monkeypatch.setattr(migration, "_scripts", recorded("the migrations", migration._scripts))
    yield found
    assert found == set()


@pytest.mark.usefixtures("slow_calls")
def test_transactions_make_no_slow_calls(settings: Settings, tmp_path: Path) -> None:
    flights = "/v1/applications/flights"
    with started(settings) as plane:
        plane.application()
        driver = StateDriver(plane, tables=(DELAYS,))
        for number in range(1, 4):
            driver.epoch((DELAYS, [route("JFK", "LAX", number, 1.0)]))
        plane.get(f"{flights}/state/delays/keys/JFK,LAX", min_epoch=3)
        for path in ("lineage", "snapshots/2", "state/delays/scan"):
            plane.get(f"{flights}/{path}")
        plane.get(f"{flights}/state/delays/history", key="JFK,LAX")
        plane.get(f"{flights}/snapshots/1/diff", to="3")
        plane.post(f"{flights}/fork", 201, name="copy", parameters={"out": "/copy"}, epoch=2)
        plane.post("/v1/preflight", 200, application="flights", parameters={"out": "/other"})
        plane.post(f"{flights}/versions", 201, parameters={"out": "/another"})
        for directive in driver.driver.running():
            driver.driver.catalog.complete(directive.id, driver.head)
        imported(plane, exported(plane), name="again")
        for work, body in (
            ("collections", {}),
            ("verifications", {}),
            ("backups", {"to": str(tmp_path / "backups")}),
        ):
            assert finished(plane, plane.post(f"/v1/{work}", **body))["state"] == "succeeded"
        plane.post(f"{flights}/stop")
        driver.driver.stop()
        plan = plane.post(f"{flights}/rollback", 200, epoch=2, dry_run=True)
        plane.post(f"{flights}/rollback", 202, epoch=2, confirm=plan["confirm"])
    with started(settings) as plane:
        plane.get(f"{flights}/state/delays/keys/JFK,LAX", epoch=1)
