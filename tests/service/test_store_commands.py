"""``gc``, ``verify``, ``pin``, ``tag`` and ``message`` against a control plane on a real socket, without Spark."""

from __future__ import annotations

import json
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from epochal.cli.main import main
from epochal.contracts.catalog import EpochCounts
from epochal.snapshots import store as store_module
from epochal.snapshots.manifest import Manifest
from epochal.snapshots.store import SnapshotStore
from tests.kit.stores import snapshot_files

if TYPE_CHECKING:
    from tests.service.conftest import Driver, Plane


def epoch(plane: Plane, driver: Driver) -> str:
    """Commit an epoch that needs no earlier one; return the path of its manifest."""
    store, number, parent = SnapshotStore(plane.settings.store_url), driver._next, driver.head_key
    driver.catalog.open_epoch(number, parent)
    plain = driver.manifest(number)
    manifest = store.read_manifest(plain)
    store.delete(plain.path)
    reference = store.write_manifest(
        Manifest.model_validate({**manifest.model_dump(), "source_checkpoints": {"in": {}}})
    )
    driver.catalog.prepare_epoch(number, parent, reference, EpochCounts())
    driver.catalog.commit_epoch(number)
    driver.head, driver._next = reference, number + 1
    return reference.path


@pytest.fixture
def paths(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """``flights`` with five epochs, of which two are retained: the paths of their manifests."""
    monkeypatch.setenv("EPOCHAL_URL", plane.settings.url)
    monkeypatch.setenv("EPOCHAL_TOKEN", plane.settings.admin_token_file.read_text().strip())
    plane.application(configuration={"retained_epochs": 2})
    driver = plane.driver()
    return [epoch(plane, driver) for _ in range(5)]


def run(*arguments: str) -> tuple[int, str]:
    """Exit code and all output, on one line."""
    printed = StringIO()
    with redirect_stdout(printed), redirect_stderr(printed), pytest.raises(SystemExit) as ended:
        main(arguments)
    code = ended.value.code
    return (code if isinstance(code, int) else 0), " ".join(printed.getvalue().split())


def document(*arguments: str) -> Any:
    code, printed = run(*arguments, "--json")
    assert code == 0, printed
    return json.loads(printed)


def test_pin_and_tag_commands_annotate_snapshots(plane: Plane, paths: list[str]) -> None:
    assert document("pin", "flights", "4", "-m", "good")["message"] == "good"
    assert [item["epoch"] for item in document("pin", "flights")["items"]] == [4]
    assert "good" in run("pin", "flights")[1]
    assert run("pin", "flights", "1")[0] == 3  # has expired
    assert document("tag", "flights", "5", "noon")["name"] == "noon"
    assert run("tag", "flights", "4", "noon")[0] == 4
    assert document("tag", "flights", "4", "noon", "--move")["epoch"] == 4
    assert [item["name"] for item in document("tag", "flights")["items"]] == ["noon"]
    assert run("tag", "flights", "4")[0] == 2
    assert run("untag", "flights", "4", "noon")[0] == 0
    assert run("unpin", "flights", "4")[0] == 0
    assert run("unpin", "flights", "4")[0] == 3


def test_message_command_sets_shows_and_deletes_a_message(plane: Plane, paths: list[str]) -> None:
    assert run("message", "flights", "5")[0] == 3
    run("message", "flights", "5", "the first good one")
    assert "the first good one" in run("message", "flights", "5")[1]
    assert run("message", "flights", "5", "x", "--delete")[0] == 2
    assert run("message", "flights", "5", "--delete")[0] == 0
    assert run("message", "flights", "5")[0] == 3


def test_dry_run_prints_the_files_to_delete_with_reasons(plane: Plane, paths: list[str]) -> None:
    code, printed = run("gc", "--dry-run", "--grace", "0")
    assert code == 0
    assert "of an expired snapshot" in printed and "3 snapshots would be marked as expired" in printed
    assert sorted(file["path"] for file in document("gc", "--dry-run", "--grace", "0")["files"]) == sorted(paths[:3])
    assert "younger than the grace period" in run("gc", "--dry-run")[1] or "expired within" in run("gc", "--dry-run")[1]


def test_store_is_intact_after_a_collection(plane: Plane, paths: list[str]) -> None:
    code, printed = run("gc", "--grace", "0")
    assert code == 0 and "3 files" in printed
    assert snapshot_files(SnapshotStore(plane.settings.store_url)) == sorted(paths[3:])
    assert "intact" in run("verify")[1]
    assert document("verify", "flights")["result"]["snapshots"] == 2


def test_damage_is_named_and_repaired_from_the_cached_manifest(plane: Plane, paths: list[str]) -> None:
    head = Path(plane.settings.store_url) / paths[4]
    original = head.read_bytes()
    head.write_bytes(original[:-1])
    code, printed = run("verify")
    assert code == 1
    assert paths[4][-20:] in printed and "corrupt" in printed
    assert run("verify", "--repair")[0] == 0
    assert head.read_bytes() == original
    assert run("verify", "missing")[0] == 3


def test_store_is_verified_without_its_control_plane(
    plane: Plane, paths: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = plane.settings.store_url
    assert document("verify", "--store", url)["snapshots"] == 5
    store_module._manifests.clear()
    (Path(url) / paths[4]).write_bytes(b"{}")
    code, printed = run("verify", "--store", url)
    assert code == 1 and "cannot read the manifest" in printed
    assert run("verify", "--store", str(tmp_path / "nothing"))[0] == 1
    assert run("verify", "flights", "--store", url)[0] == 2


def test_collection_and_verification_require_an_admin(
    plane: Plane, paths: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EPOCHAL_TOKEN", plane.token("author"))
    assert run("gc")[0] == 6
    assert run("verify")[0] == 6
    assert run("pin", "flights", "5")[0] == 0
