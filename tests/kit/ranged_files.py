"""In-memory file systems that behave like object stores and WebHDFS in fsspec, and count their reads.

``ranged://..``: files are objects with read-ahead, unless they are opened otherwise. ``apart://..``: asynchronous.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, ClassVar

import fsspec
from fsspec.asyn import AsyncFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.spec import AbstractBufferedFile

REQUESTS: list[tuple[str, int, int]] = []
"""Path, offset and number of bytes of every read."""


def bytes_read() -> Counter[str]:
    """Return the number of bytes read, by path."""
    read: Counter[str] = Counter()
    for path, _, size in REQUESTS:
        read[path] += size
    return read


class _RangedFile(AbstractBufferedFile):
    def _fetch_range(self, start: int, end: int) -> bytes:
        data: bytes = self.fs.store[self.path].getvalue()[start:end]
        REQUESTS.append((self.path, start, len(data)))
        return data


class RangedFileSystem(MemoryFileSystem):
    protocol = "ranged"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.removeprefix("ranged://")))

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        place = self._strip_protocol(path)
        if place not in self.store:
            raise FileNotFoundError(path)
        data: bytes = self.store[place].getvalue()[start:end]
        REQUESTS.append((place, start or 0, len(data)))
        return data

    def _open(self, path: str, mode: str = "rb", block_size: Any = None, **options: Any) -> Any:
        if mode != "rb":
            return super()._open(path, mode, block_size, **options)
        if path not in self.store:
            raise FileNotFoundError(path)
        cache = options.get("cache_type", "readahead")
        return _RangedFile(self, path, mode, block_size or "default", cache_type=cache, size=self.size(path))


class ApartFileSystem(AsyncFileSystem):
    protocol = "apart"
    cachable = False

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._files = RangedFileSystem()

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return RangedFileSystem._strip_protocol(path.removeprefix("apart://"))

    async def _info(self, path: str, **_: Any) -> Any:
        return self._files.info(path)

    async def _pipe_file(self, path: str, value: bytes, **_: Any) -> None:
        self._files.pipe_file(path, value)

    async def _cat_file(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
        return self._files.cat_file(path, start, end)


for kind in (RangedFileSystem, ApartFileSystem):
    fsspec.register_implementation(kind.protocol, kind, clobber=True)
