"""Exports and imports of random lineages whose small files are in packs, in any order, with and without new names.

Every imported snapshot has the rows and standing queries of the exported one. A pack of a branch that keeps its name is
the same file in both stores, whatever was imported before; a pack of a renamed branch has no manifest.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from epochal.contracts.catalog import ManifestReference
from epochal.contracts.identity import EpochKey
from epochal.service.catalog.projects import ProjectRepository
from epochal.service.catalog.snapshots import SnapshotRepository
from epochal.service.commands.bundles import unpacking
from epochal.service.domain.settings import Settings
from epochal.snapshots import layout
from epochal.snapshots.reader import SnapshotReader
from epochal.wire.projects import Quotas
from tests.kit.stores import snapshot_files
from tests.unit.property.moving import Mover
from tests.unit.property.retention_model import App
from tests.unit.property.retention_world import World

MEMORY = Path("/dev/shm")
PROJECTS = ("default", "ads")


FEW = settings(
    max_examples=max(4, settings.default.max_examples // 5),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@given(chance=st.randoms(use_true_random=False))
@FEW
def test_imported_snapshots_equal_the_exported_ones(chance: random.Random) -> None:
    with two_worlds(chance) as (source, target):
        move(source, any_lineage(source, chance), target, chance)


@given(chance=st.randoms(use_true_random=False))
@example(chance=random.Random(68))  # a whole bundle of a branch two rollbacks deep, with files of the first branch
@FEW
def test_increments_since_one_snapshot_are_imported_in_any_order(chance: random.Random) -> None:
    """Also those whose snapshot has bases after ``since``, and therefore does not need it."""
    with two_worlds(chance) as (source, target):
        app = any_lineage(source, chance)
        since, *later = sorted(source.model.lineage(app.branch), key=lambda key: key.epoch)
        later = chance.sample(later, min(len(later), 4))
        exporting, importing = Mover(source), Mover(target)
        for number, key in enumerate([since, *later]):
            export = exporting.request_export(app, key, None if key == since else since)
            exporting.work_off()
            imported = importing.request_import(exporting.bundle(export), f"copy-{number}", "ads")
            importing.work_off()
            check_equal(source, source.model.references[key], target, EpochKey(**importing.result(imported)["parent"]))


@contextmanager
def two_worlds(chance: random.Random) -> Iterator[tuple[World, World]]:
    """Bundles are read in the process of the test: a process for each takes most of the time."""
    with (
        tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(unpacking, "_in_a_process", unpacking._unpack)
        source = World(
            Settings(data=Path(folder) / "here"),
            chance.randint(2, 4),
            lambda: chance.random() < 0.7,
            lambda: chance.random() < 0.3,
        )
        target = World(Settings(data=Path(folder) / "there"), 3)
        try:
            with target.database.writing() as session:
                ProjectRepository(session).create("ads", Quotas(), "me")
            yield source, target
        finally:
            source.close()
            target.close()


def any_lineage(world: World, chance: random.Random) -> App:
    app = world.create(retained=100)
    for _ in range(chance.randint(4, 9)):
        changes = {chance.randint(0, 5): chance.choice([None, 1, 2]) for _ in range(chance.randint(0, 4))}
        world.run_epoch(app, changes)
        if chance.random() < 0.15:
            world.roll_back(app, chance.choice(world.model.lineage(app.branch)))
    return app


def move(source: World, app: App, target: World, chance: random.Random) -> None:
    known: dict[str, list[EpochKey]] = {project: [] for project in PROJECTS}
    exporting, importing = Mover(source), Mover(target)
    for number in range(4):
        project = chance.choice(PROJECTS)
        lineage = source.model.lineage(app.branch)
        key = chance.choice(lineage)
        common = [other for other in known[project] if other in lineage and other.epoch < key.epoch]
        since = chance.choice([None, *common])
        export = exporting.request_export(app, key, since)
        exporting.work_off()
        bundle = exporting.bundle(export)
        for again in (False, True):
            imported = importing.request_import(bundle, f"copy-{number}-{int(again)}", project)
            importing.work_off()
            result = importing.result(imported)
            parent = EpochKey(**result["parent"])
            assert (parent == key) == (project == "default") and parent.epoch == key.epoch
            check_equal(source, source.model.references[key], target, parent)
            assert not again or result["files"] == 0
        known[project].append(key)
        check_packs(source, target)


def check_equal(source: World, exported: ManifestReference, target: World, imported: EpochKey) -> None:
    with target.database.reading() as session:
        reference = SnapshotRepository(session).reference(imported)
    rows = SnapshotReader(target.store, reference).read("counts").to_pylist()
    assert {row.pop("key"): row for row in rows} == source.model.expected[exported.key]
    was, now = source.store.read_manifest(exported).queries, target.store.read_manifest(reference).queries
    assert (was is None) == (now is None)
    if was is not None and now is not None:
        assert target.store.read_file(now, "a copy") == source.store.read_file(was, "the original")


def check_packs(source: World, target: World) -> None:
    originals = set(snapshot_files(source.store))
    for path in snapshot_files(target.store):
        if path in originals:
            assert target.store.read(path) == source.store.read(path)
        elif layout.manifest_offset(path):
            assert path.startswith("ads.") and target.store.manifest_bytes(path) == b""
