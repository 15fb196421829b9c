"""Full disks and damaged snapshots: every error names the file, and no data is lost."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from epochal.contracts.catalog import EpochRecord
from epochal.snapshots import layout
from epochal.testing.invariants import violations

if TYPE_CHECKING:
    from tests.service.fault.faulty_application import FaultyApplication, NewApplication

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def aborted(application: FaultyApplication) -> list[EpochRecord]:
    return [record for record in application.epochs if record.state == "aborted"]


def message(record: EpochRecord) -> str:
    assert record.failure is not None
    assert record.failure.type == "storage-full", record.failure
    return record.failure.message


class TestFullDisk:
    def test_full_disk_for_a_delta_a_staged_file_or_the_manifest_is_reported(
        self, new_tiered_application: NewApplication
    ) -> None:
        """The error of the system, injected; runs everywhere."""
        application = new_tiered_application()
        application.feed(5)
        in_tasks = [
            application.fault("T3.before-delta", "full-disk", 2),
            application.fault("T3.files.written", "full-disk", 4),
        ]
        in_driver = [application.fault("E4.before-manifest", "full-disk", 6)]
        driver = application.start(faults=in_driver, task_faults=in_tasks, epochs=5)
        assert driver.wait() == 0, driver.log_end()
        delta, staged, manifest = aborted(application)
        assert re.search(r"/store/.*/epochs/0000000002/(totals|totals\.state|streaks\.state)-0000[01]", message(delta))
        assert re.search(r"/output/(totals|streaks)/_staging/", message(staged))
        assert re.search(r"/store/.*/manifests", message(manifest))
        assert application.files_left == 0
        assert violations(application.history, application.oracles) == []

    @pytest.fixture
    def small_disk(self, tmp_path: Path) -> Iterator[Path]:
        """A file system of 4 MB, if this user may mount one."""
        folder = tmp_path / "small"
        folder.mkdir()
        options = ["-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)]
        mounted = subprocess.run(["mount", *options], capture_output=True, text=True, check=False)
        if mounted.returncode != 0:
            pytest.skip(f"cannot mount a file system: {mounted.stderr.strip()}")
        yield folder
        subprocess.run(["umount", "--lazy", str(folder)], check=True)

    def test_full_file_system_is_reported(self, new_tiered_application: NewApplication, small_disk: Path) -> None:
        """The disk is full for the packs of two epochs; then there is space again."""
        application = new_tiered_application()
        (application.folder / "run" / "store").symlink_to(small_disk)
        application.feed(4)
        full = application.fault("E4.before-manifest", "stop", 2)
        still_full = application.fault("abort.swept", "stop", 2)
        freed = application.fault("abort.swept", "stop", 3)
        ballast = small_disk / "ballast"
        driver = application.start(faults=[full, still_full, freed], epochs=4)
        for stop, action in ((full, fill), (still_full, fill), (freed, Path.unlink)):
            driver.wait_until(partial(application.fired, stop))
            driver.wait_until_stopped()
            action(ballast)
            driver.send(signal.SIGCONT)
        assert driver.wait() == 0, driver.log_end()
        second, third = aborted(application)
        assert re.search(r"/manifests/0000000002-.*\.pack", message(second))
        assert re.search(r"/manifests/0000000003-.*\.pack", message(third))
        assert application.files_left == 0
        assert violations(application.history, application.oracles) == []


def fill(ballast: Path) -> None:
    """Use up all free space."""
    with ballast.open("ab", buffering=0) as file:
        try:
            while True:
                file.write(bytes(512))
        except OSError:
            return


DAMAGES = (
    ("manifest", "corrupt", "heap"),
    ("manifest", "missing", "lmdb"),
    ("delta", "corrupt", "lmdb"),
    ("delta", "missing", "heap"),
    ("base", "corrupt", "heap"),
    ("base", "missing", "lmdb"),
)
"""The damaged file, the kind of damage, and one of the backends, which read through the same store."""
CONFIGURATION = {"compact_after_epochs": 3, "tolerable_failed_epochs": 0}


class TestDamagedSnapshot:
    """The attempt ends with an error that names the file; once the file is restored, the application continues."""

    @pytest.mark.parametrize(
        ("file_kind", "damage", "backend"),
        [
            pytest.param(*each, marks=() if each in DAMAGES else pytest.mark.long)
            for each in product(("manifest", "delta", "base"), ("corrupt", "missing"), ("heap", "lmdb"))
        ],
    )
    def test_damaged_file_is_named(self, new_local: NewApplication, file_kind: str, damage: str, backend: str) -> None:
        check_damage_is_named(new_local(**CONFIGURATION, state_backend=backend), file_kind, damage)

    @pytest.mark.long
    @pytest.mark.parametrize(
        ("file_kind", "damage"), [("manifest", "missing"), ("delta", "corrupt"), ("base", "missing")]
    )
    def test_damaged_file_is_named_with_spark(
        self, new_application: NewApplication, file_kind: str, damage: str
    ) -> None:
        check_damage_is_named(new_application(**CONFIGURATION, state_backend="heap"), file_kind, damage)


def check_damage_is_named(application: FaultyApplication, file_kind: str, damage: str) -> None:
    """Damage a file of a snapshot with bases at an earlier epoch and later deltas."""
    application.feed(7)
    application.finish()
    application.feed(1)
    shutil.rmtree(application.folder / "run" / "cache", ignore_errors=True)
    victim, place = newest(application, file_kind)
    copy = victim.read_bytes()
    decided = len(application.history.decided)
    if damage == "missing":
        victim.unlink()
    else:
        victim.write_bytes(copy[:place] + bytes([copy[place] ^ 1]) + copy[place + 1 :])
    driver = application.start(epochs=1)
    assert driver.wait() == 1
    assert str(victim) in driver.log_end()
    if file_kind == "manifest" or (file_kind, damage) == ("delta", "missing"):  # they are in one pack
        assert f"File{damage.capitalize()}: {victim}" in driver.log_end()
    else:
        failure = application.epochs[-1].failure
        assert failure is not None
        assert failure.type == f"file-{damage}"
        assert str(victim) in failure.message

    victim.write_bytes(copy)
    assert len(application.history.decided) == decided
    application.finish()
    assert violations(application.history, application.oracles) == []


def newest(application: FaultyApplication, file_kind: str) -> tuple[Path, int]:
    """The file that has the newest manifest, delta or base, and an offset in it."""
    snapshots = application.history.snapshots
    reference, manifest = snapshots[-1]
    if file_kind == "manifest":
        return Path(application.store.location(reference.path)), layout.manifest_offset(reference.path) + 20
    if file_kind == "delta":
        file = manifest.deltas[-1].file
        assert file.within is not None, "small deltas are in packs"
        return Path(application.store.location(file.stored_in)), file.within.offset + 20
    base = next(manifest for _, manifest in reversed(snapshots) if manifest.bases).bases[0].file
    return Path(application.store.location(base.path)), base.bytes - 20
