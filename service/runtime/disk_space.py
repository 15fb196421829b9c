"""Whether there is space on this machine's disks for what somebody wants to send, before a byte of it is taken."""

from __future__ import annotations

import shutil
from functools import cached_property
from pathlib import Path

from epochal.errors import StorageFull
from epochal.service.domain.settings import Settings
from epochal.service.runtime.isolation import local_store


class DiskSpace:
    """The disks of the data directory and of the store, where that is a folder. What is full is full for drivers and
    for the catalog, too: so some of it stays free of uploads."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def check(self, what: str, size: int) -> None:
        """Raises ``StorageFull`` when ``size`` more bytes, of ``what``, would leave too little."""
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
