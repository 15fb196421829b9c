"""Bytes of state that the tasks of this process have read, by where they found them.

``memory``: of this process. ``disk``: the cache of this machine. ``store``: the snapshot store. Files that a local
store has mapped or merged before are not read again, and not counted.
"""

from __future__ import annotations

import os
from collections import Counter
from threading import Lock

from epochal.contracts.measurements import Origin

_totals: Counter[Origin] = Counter()
_lock = Lock()


def count(origin: Origin, size: int) -> None:
    with _lock:
        _totals[origin] += size


def totals() -> Counter[Origin]:
    """The bytes since the process started."""
    with _lock:
        return _totals.copy()


def forget() -> None:
    """Begin at zero, in a forked worker."""
    global _lock
    _lock = Lock()
    _totals.clear()


os.register_at_fork(after_in_child=forget)
