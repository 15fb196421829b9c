"""Local stores delete expired rows, and keep all rows that a reader may still see."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from epochal.backends import lmdb, pruning
from epochal.backends.heap import HeapBackend
from epochal.backends.lmdb import LmdbBackend
from epochal.testing.state_world import TIMED_TABLES, VISITS, WINDOWS, World, check_view, counted, visits, windows
from tests.spark.contract.local_stores import LocalStoreHarness


def stored(backend: type[HeapBackend | LmdbBackend], world: World, table: str) -> int:
    """Rows of a state table in the local stores."""
    if backend is HeapBackend:
        (view,) = [view for view in world.copied().open_views(world.scope(0)).items() if view[0] == table]  # type: ignore[attr-defined]
        return sum(map(len, view[1]._runs))
    found = 0
    for environment in lmdb._environments.values():
        with environment._environment.begin() as transaction:
            found += transaction.stat(environment._databases[table])["entries"]
    return found


@pytest.mark.parametrize("backend", [HeapBackend, LmdbBackend])
@pytest.mark.alternating(3)
def test_local_stores_keep_few_expired_rows(
    backend: type[HeapBackend | LmdbBackend], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pruning, "FEWEST_ROWS", 4)
    chance = random.Random(7)
    harness = LocalStoreHarness(backend, tmp_path)
    harness.new_worker()
    world = World(harness, 1, TIMED_TABLES)
    early = None
    for epoch in range(40):
        world.advance(event=epoch, processing=epoch)
        changes = {
            "windows": windows(*((number, epoch - 8 + number % 3) for number in range(20))),
            "visits": [visits(n, b"%d" % epoch + b"p" * 600 * (n % 2), touched=epoch)[0] for n in range(20)],
            "counts": counted(chance.randrange(10)),
        }
        (world.run if epoch % 7 else world.run_elsewhere)(**changes)
        world.check()
        kept = stored(backend, world, WINDOWS.id)
        visible = len(world.visible(WINDOWS))
        assert visible <= kept <= (2 * visible + 40 if backend is HeapBackend else visible)
        most = 2 * len(world.visible(VISITS)) + 16 * 4 + 20
        assert stored(backend, world, VISITS.id) <= most
        if epoch == 20:
            old, early = world.fork(world.branch), world.start()
    assert early is not None
    assert len(world.expected[VISITS.id]) == 800
    check_view(old, early, 0)
    early.discard()
    old.check()
    world.check()
    harness.new_worker()
