"""Check of the free disk space of this machine before an upload is accepted."""

from __future__ import annotations

import shutil
from functools import cached_property
from pathlib import Path

from epochal.errors import StorageFull
from epochal.service.domain.settings import Settings
from epochal.service.runtime.isolation import local_store


class DiskSpace:
    """The disks of the data directory and of the store, if it is a local folder. Drivers and the catalog use the same
    disks, so uploads must leave some space free."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def check(self, what: str, size: int) -> None:
        """Raises ``StorageFull`` if ``size`` more bytes, for ``what``, would leave too little space."""
        spare = self._settings.limits.spare_disk_bytes
        for folder in self._folders:
            there = next(parent for parent in (folder, *folder.parents) if parent.exists())
            free = shutil.disk_usage(there).free
            if free < size + spare:
                raise StorageFull(
                    f"There is no space for {what}: it may have {size:,} bytes, and of the {free:,} that are free on "
                    f"the disk of {folder} {spare:,} stay so. Free some, and send it again."
                )

    @cached_property
    def _folders(self) -> tuple[Path, ...]:
        store = local_store(self._settings)
        return (self._settings.data.absolute(), *([] if store is None else [store]))
