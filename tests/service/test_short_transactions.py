"""While a transaction of the catalog is open nothing else is waited for: no store, no code, no build.

PostgreSQL ends a writing transaction between two of whose statements five seconds pass, and what it has locked others
wait for.
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

WAITED_FOR: tuple[tuple[type, tuple[str, ...]], ...] = (
    (SnapshotStore, ("write", "read", "read_ranges", "open", "size", "delete", "list", "entries", "read_manifest")),
    (ArtifactCache, ("file", "for_a_while")),
    (StandInBuilder, ("describe", "analyse", "shown")),
)


class Open(threading.local):
    transactions = 0


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[str]]:
    """Who waits for something within a transaction."""
    here, found = Open(), set[str]()

    def within(make: Callable[..., Any]) -> Callable[..., Any]:
        @contextmanager
        def transaction(*given: Any, **named: Any) -> Iterator[Any]:
            with make(*given, **named) as session:
                here.transactions += 1
                try:
                    yield session
                finally:
                    here.transactions -= 1

        return transaction

    def noted(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*given: Any, **named: Any) -> Any:
            if here.transactions:
                found.add(name)
            return call(*given, **named)

        return wrapped

    for kind in ("reading", "writing"):
        monkeypatch.setattr(Database, kind, within(getattr(Database, kind)))
    for owner, names in WAITED_FOR:
        for name in names:
            monkeypatch.setattr(owner, name, noted(f"{owner.__name__}.{name}", getattr(owner, name)))
    monkeypatch.setattr(migration, "_scripts", noted("the migrations", migration._scripts))
    yield found
    assert found == set()


@pytest.mark.usefixtures("waits")
def test_nothing_is_waited_for_within_a_transaction(settings: Settings, tmp_path: Path) -> None:
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
