"""Keys longer than LMDB's limit of 511 bytes, in one form for executors' caches and for replicas.

A long key is stored under its first bytes and its sha256, 511 bytes together; the whole key is stored before its value.
A key of exactly 511 bytes also counts as long: a stored key of that length is therefore always a shortened one. Long
keys with the same first bytes are in the order of their hashes, not in their own order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

LONGEST = 511
"""LMDB's maximum key length, in bytes."""
KEPT = LONGEST - hashlib.sha256().digest_size
"""Number of leading bytes of a long key that are stored in order."""

_LENGTH_BYTES = 4


def is_long(key: bytes) -> bool:
    """Return whether a key is stored in shortened form, or whether a stored key is a shortened one."""
    return len(key) >= LONGEST


def any_long(keys: Iterable[bytes]) -> bool:
    """Return whether any of the keys is long, without a call per key."""
    return max(map(len, keys), default=0) >= LONGEST


def shortened(key: bytes) -> bytes:
    """Return the key under which a long key is stored."""
    return key[:KEPT] + hashlib.sha256(key).digest()


def joined(key: bytes, value: bytes) -> bytes:
    """Return the value that is stored under a shortened key."""
    return len(key).to_bytes(_LENGTH_BYTES, "little") + key + value


def split(stored: bytes) -> tuple[bytes, bytes]:
    """Inverse of :func:`joined`: key and value."""
    end = _LENGTH_BYTES + int.from_bytes(stored[:_LENGTH_BYTES], "little")
    return stored[_LENGTH_BYTES:end], stored[end:]
