"""Packs: the small files of an epoch together with its manifest in one file, so that an epoch is one request.

A task passes its small files to the driver in its handle (``Handle.carried``). The driver writes them before the
manifest in one file, the *pack*. The name of a pack has the size of the files, which is the position of the manifest. A
:class:`FileReference` of a small file has its own unique path, under which no file exists, and its place ``within`` the
pack. The checksum of a manifest's reference covers the manifest alone; each file has its own.

A pack without a manifest, whose size is that in its name, only holds files: an import creates it, since it writes
manifests with new names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any, Final

from epochal.contracts.handle import Handle
from epochal.contracts.identity import EpochKey, PackPlace
from epochal.snapshots import layout
from epochal.snapshots.manifest import FileReference

TASK_BYTES: Final = 64 << 10
"""Maximum size of the files that one task passes in its handle."""


@dataclass(frozen=True)
class Pack:
    """The files of a pack before it is written, by path, in order."""

    path: str
    files: Mapping[str, bytes]

    @classmethod
    def of(cls, key: EpochKey, attempt: int, files: Mapping[str, bytes]) -> Pack:
        """A new pack of an epoch. ``files``: at least one."""
        return cls(layout.pack(key, attempt, sum(map(len, files.values()))), files)

    @cached_property
    def places(self) -> dict[str, PackPlace]:
        """Place of each file, by its path."""
        offsets = accumulate(map(len, self.files.values()), initial=0)
        return {path: PackPlace(self.path, offset) for path, offset in zip(self.files, offsets, strict=False)}

    @property
    def beginning(self) -> bytes:
        """The bytes before the manifest."""
        return b"".join(self.files.values())

    def placed(self, handle: Handle) -> Handle:
        """``handle``, without files, with the place of each file where its payload names the file."""
        if not handle.carried:
            return handle
        return handle.model_copy(update={"payload": _placed(handle.payload, self.places), "carried": {}})


def _placed(value: Any, places: Mapping[str, PackPlace]) -> Any:
    match value:
        case list():
            return [_placed(each, places) for each in value]
        case dict():
            found = {name: _placed(each, places) for name, each in value.items()}
            path = value.get("path")
            if isinstance(path, str) and path in places:
                found["within"] = {"path": places[path].path, "offset": places[path].offset}
            return found
    return value


def is_apart(file: FileReference, handle: Handle) -> bool:
    """True if a file that ``handle`` names is a file of the store: neither in a pack nor carried by the handle."""
    return file.within is None and file.path not in handle.carried


def carried_by(handles: Iterable[Handle]) -> dict[str, bytes]:
    """The files of all handles, by path."""
    return {path: data for handle in handles for path, data in handle.carried.items()}
