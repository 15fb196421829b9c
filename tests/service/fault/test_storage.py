"""Full disks, and snapshots that were damaged: every error names the file, and nothing is lost."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from epochal.contracts.catalog import EpochRecord
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


class TestAFullDisk:
    def test_at_a_delta_at_a_staged_file_and_at_the_manifest(self, new_either: NewApplication) -> None:
        """As the system reports it, injected: runs everywhere."""
        application = new_either()
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
        """A file system of 4 MB, where this user may mount one."""
        place = tmp_path / "small"
        place.mkdir()
        options = ["-t", "tmpfs", "-o", "size=4m", "tmpfs", str(place)]
        mounted = subprocess.run(["mount", *options], capture_output=True, text=True, check=False)
        if mounted.returncode != 0:
            pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
        yield place
        subprocess.run(["umount", "--lazy", str(place)], check=True)

    def test_that_is_really_full(self, new_either: NewApplication, small_disk: Path) -> None:
        """Full as the manifest is to be written, then for the deltas of the next epoch; then there is space again."""
        application = new_either()
        (application.folder / "run" / "store").symlink_to(small_disk)
        application.feed(4)
        full_for_the_manifest = application.fault("E4.before-manifest", "stop", 2)
        full_for_deltas = application.fault("abort.swept", "stop", 2)
        freed = application.fault("abort.swept", "stop", 3)
        ballast = small_disk / "ballast"
        driver = application.start(faults=[full_for_the_manifest, full_for_deltas, freed], epochs=4)
        for stop, then in ((full_for_the_manifest, fill), (full_for_deltas, fill), (freed, Path.unlink)):
            driver.wait_until(lambda stop=stop: application.fired(stop))
            driver.wait_until_stopped()
            then(ballast)
            driver.send(signal.SIGCONT)
        assert driver.wait() == 0, driver.log_end()
        manifest, delta = aborted(application)
        assert re.search(r"/manifests/0000000002-", message(manifest))
        assert re.search(r"/epochs/0000000003/", message(delta))
        assert application.files_left == 0
        assert violations(application.history, application.oracles) == []


def fill(ballast: Path) -> None:
    """Take all space that is left."""
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
"""What, how, and one of the backends, which read through the same store."""
DAMAGED = {"compact_after_epochs": 3, "tolerable_failed_epochs": 0}


class TestADamagedSnapshot:
    """The attempt ends, naming the file; once the file is back, everything goes on."""

    @pytest.mark.parametrize(
        ("what", "damage", "backend"),
        [
            pytest.param(*each, marks=() if each in DAMAGES else pytest.mark.long)
            for each in product(("manifest", "delta", "base"), ("corrupt", "missing"), ("heap", "lmdb"))
        ],
    )
    def test_is_named(self, new_local: NewApplication, what: str, damage: str, backend: str) -> None:
        check_that_damage_is_named(new_local(**DAMAGED, state_backend=backend), what, damage)

    @pytest.mark.long
    @pytest.mark.parametrize(("what", "damage"), [("manifest", "missing"), ("delta", "corrupt"), ("base", "missing")])
    def test_is_named_with_spark(self, new_application: NewApplication, what: str, damage: str) -> None:
        check_that_damage_is_named(new_application(**DAMAGED, state_backend="heap"), what, damage)


def check_that_damage_is_named(application: FaultyApplication, what: str, damage: str) -> None:
    """Of a snapshot with bases at an earlier epoch and deltas after them."""
    application.feed(7)
    application.finish()
    application.feed(1)
    shutil.rmtree(application.folder / "run" / "cache", ignore_errors=True)
    victim = newest(application, what)
    copy = victim.read_bytes()
    decided = len(application.history.decided)
    if damage == "missing":
        victim.unlink()
    else:
        victim.write_bytes(copy[:-20] + bytes([copy[-20] ^ 1]) + copy[-19:])
    driver = application.start(epochs=1)
    assert driver.wait() == 1
    assert str(victim) in driver.log_end()
    if what == "manifest":
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


def newest(application: FaultyApplication, what: str) -> Path:
    snapshots = application.history.snapshots
    reference, manifest = snapshots[-1]
    if what == "manifest":
        path = reference.path
    elif what == "delta":
        path = manifest.deltas[-1].file.path
    else:
        path = next(manifest for _, manifest in reversed(snapshots) if manifest.bases).bases[0].file.path
    return Path(application.store.location(path))
