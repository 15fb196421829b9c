"""Helpers for tests of backups."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from epochal.service.commands.restore import Restore, RestoreReport
from epochal.service.domain.settings import Settings
from epochal.snapshots.backup_format import Backups
from epochal.snapshots.backup_maintenance import verify_backup
from tests.service.bundles import finished
from tests.service.conftest import Plane, StandInSupervisor, http_client, serving


def backed_up(plane: Plane, to: Path) -> dict[str, Any]:
    operation = finished(plane, plane.post("/v1/backups", to=str(to)))
    assert operation["state"] == "succeeded", operation
    return dict(operation["result"])


@contextmanager
def started(settings: Settings) -> Iterator[Plane]:
    supervisor = StandInSupervisor()
    with serving(settings, supervisor) as (control, token), http_client(settings, token) as client:
        yield Plane(control, client, settings, supervisor, [])


def restored(settings: Settings, source: Path, **more: Any) -> RestoreReport:
    return Restore(settings, Backups(str(source)), quiet_seconds=0, **more).run()


def is_sound(place: Path, *, quick: bool = False) -> bool:
    backups = Backups(str(place))
    return verify_backup(backups, backups.index(), quick=quick).is_sound
