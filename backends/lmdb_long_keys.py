"""Keys that LMDB cannot take whole: it takes at most 511 bytes. One form, for executors' caches and for replicas.

A long key is stored under its first bytes and its sha256, 511 bytes together, and stands whole before its value. A key
of just 511 bytes is long, too: so a stored key of that length is always a shortened one. Long keys that begin alike are
in the order of their hashes, not in their own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

LONGEST = 511
"""LMDB's limit, in bytes."""
KEPT = LONGEST - hashlib.sha256().digest_size
"""So many first bytes of a long key are in order."""

_LENGTH_BYTES = 4


def is_long(key: bytes) -> bool:
    """Whether a key is stored in another form; equally of a stored key, whether it stands for a longer one."""
    return len(key) >= LONGEST


def any_long(keys: Iterable[bytes]) -> bool:
    """Of many keys at once, without a call for each."""
    return max(map(len, keys), default=0) >= LONGEST


def shortened(key: bytes) -> bytes:
    """What a long key is stored under."""
    return key[:KEPT] + hashlib.sha256(key).digest()


def joined(key: bytes, value: bytes) -> bytes:
    """What is stored under a shortened key."""
    return len(key).to_bytes(_LENGTH_BYTES, "little") + key + value


def split(stored: bytes) -> tuple[bytes, bytes]:
    """The inverse of :func:`joined`: key and value."""
    end = _LENGTH_BYTES + int.from_bytes(stored[:_LENGTH_BYTES], "little")
    return stored[_LENGTH_BYTES:end], stored[end:]
