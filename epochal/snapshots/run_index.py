"""Where the key groups of a run are in its file, as the file's metadata describes them.

``key_groups`` of the metadata ``epochal`` has one object for each key group with rows, in order: ``group``; ``bytes``
and ``crc32`` of its row groups, of which the first begins at byte 4, each following one directly after the previous;
``first_keys``, the encoded full key of the first row of each row group (base64); ``filter``, with ``bytes`` and
``crc32`` of a :class:`KeyFilter`. The filters follow the last key group, in the same order.
"""

from __future__ import annotations

import zlib
from base64 import b64decode, b64encode
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MAGIC = b"PAR1"


@dataclass(frozen=True)
class CheckedPart:
    """Bytes of a file, and their CRC-32."""

    offset: int
    size: int
    crc32: int

    @property
    def end(self) -> int:
        return self.offset + self.size

    def differs(self, content: bytes | memoryview) -> bool:
        """True if these bytes are not those of the part."""
        return zlib.crc32(content) != self.crc32


@dataclass(frozen=True)
class KeyGroupPart:
    """A key group of a run: its rows' bytes, the numbers of its row groups, their first keys, and its filter."""

    group: int
    rows: CheckedPart
    row_groups: range
    first_keys: tuple[bytes, ...]
    filter: CheckedPart

    def is_damaged(self, file: memoryview) -> bool:
        """True if the key group's bytes in ``file``, a whole file, do not match the checksum."""
        return self.rows.differs(file[self.rows.offset : self.rows.end])

    def with_keys(self, beginning: bytes) -> range:
        """The row groups that can have keys with this beginning."""
        first = max(bisect_right(self.first_keys, beginning) - 1, 0)
        end = bisect_right(self.first_keys, beginning, first, key=lambda key: key[: len(beginning)])
        return self.row_groups[first:end]


def description(group: int, rows: bytes | memoryview, first_keys: Iterable[bytes], filter: bytes) -> dict[str, Any]:
    """A key group as the metadata describes it."""
    return {
        "group": group,
        "bytes": len(rows),
        "crc32": zlib.crc32(rows),
        "first_keys": [b64encode(key).decode() for key in first_keys],
        "filter": {"bytes": len(filter), "crc32": zlib.crc32(filter)},
    }


def key_group_parts(about: Mapping[str, Any]) -> tuple[KeyGroupPart, ...]:
    """The key groups of a file with these metadata; none if its row groups span several."""
    described: Sequence[Mapping[str, Any]] = about.get("key_groups", ())
    offset, number = len(MAGIC), 0
    filters_at = offset + sum(each["bytes"] for each in described)
    found = []
    for each in described:
        rows = CheckedPart(offset, each["bytes"], each["crc32"])
        filter = CheckedPart(filters_at, each["filter"]["bytes"], each["filter"]["crc32"])
        first_keys = tuple(map(b64decode, each["first_keys"]))
        found.append(KeyGroupPart(each["group"], rows, range(number, number + len(first_keys)), first_keys, filter))
        offset, filters_at, number = rows.end, filter.end, number + len(first_keys)
    return tuple(found)
