"""The commands ``epochal backup`` and ``epochal doctor`` against a control plane."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from epochal.service.domain.settings import Settings
from tests.service.backups import backed_up, started
from tests.service.cli.conftest import CommandLine
from tests.service.conftest import Plane


@pytest.fixture
def epochal(settings: Settings) -> CommandLine:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("EPOCHAL_")}
    return CommandLine(inherited | {"EPOCHAL_URL": settings.url, "EPOCHAL_HOME": str(settings.data)})


@pytest.mark.alternating(2)
def test_backup_commands_create_verify_and_restore(settings: Settings, epochal: CommandLine, tmp_path: Path) -> None:
    place, home = tmp_path / "backups", tmp_path / "home"
    with started(settings) as plane:
        plane.application()
        plane.driver().epochs(3)
        none_yet = epochal("backup", "verify", "--from", place)
        assert none_yet.code == 3 and "holds no complete backup" in none_yet.stderr
        created = epochal("backup", "create", "--to", place)
        assert created.code == 0 and "3 snapshots" in " ".join(created.output.split()), created.stderr
        began = epochal("backup", "create", "--to", place, "--no-wait", "--json")
        assert began.document["kind"] == "backup"
        epochal("operations", "cancel", began.document["id"])
        newest = backed_up(plane, place)["id"]
        listed = epochal("backup", "list", "--from", place, "--json").document["items"]
        assert (listed[0]["id"], listed[0]["applications"][0]["name"]) == (newest, "flights")
        pruned = epochal("backup", "prune", "--from", place, "--keep", "1")
        assert pruned.code == 0 and f"{len(listed) - 1} backups removed" in pruned.output, pruned.stderr
        assert epochal("backup", "prune", "--from", place).code == 2
        mismatched = epochal("doctor", "--home", home, "--store", settings.store_url)
        assert mismatched.code == 1 and "belongs to another catalog" in " ".join(mismatched.output.split())
    verified = epochal("backup", "verify", "--from", place, "--json")
    assert verified.code == 0 and verified.document["sound"] and verified.document["snapshots"] == 3

    done = epochal("backup", "restore", "--from", place, "--home", home)
    assert done.code == 0, done.stderr
    assert "flights" in done.output and str(home / "admin.token") in " ".join(done.output.split())
    again = epochal("backup", "restore", "--from", place, "--home", home)
    assert again.code == 4 and "is not empty" in again.stderr
    found = epochal("doctor", "--home", home, "--json")
    checks = {finding["check"]: finding["verdict"] for finding in found.document["checks"]}
    assert checks["store identity"] == checks["catalog"] == checks["catalog revision"] == "ok"
    assert "store identity" in epochal("doctor", "--home", home).output

    next((place / "files").rglob("*.json")).unlink()
    damaged = epochal("backup", "verify", "--from", place, "--quick")
    assert damaged.code == 1 and "is damaged" in damaged.output and "is missing" in damaged.output


def test_doctor_exits_with_1_on_a_failed_check(plane: Plane, epochal: CommandLine, tmp_path: Path) -> None:
    answer = epochal("doctor", "--home", plane.settings.data, "--store", tmp_path / "other")
    assert answer.code == 1
    assert "a catalog has exactly one store" in " ".join(answer.output.split())
