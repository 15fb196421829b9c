"""What a Python worker process does before its first task, and when others have imported more since."""

from __future__ import annotations

import gc
import sys

import pyarrow as pa

GARBAGE_THRESHOLD = 50_000
MANY_MODULES = 50
"""Imported since: what they hold is worth a collection that moves it out of sight."""
_modules = 0
"""When everything was moved out of sight last."""


def prepare_worker() -> None:
    """Make this process a good host of short tasks. Called at the start of every task.

    Spark's worker runs a full garbage collection after each task: all that has been imported is moved out of its sight,
    which takes a tiny task from tens of milliseconds to a few. A worker serves all operators, and what the code of the
    next one imports would be looked through after every task from then on. Tasks make rows by the hundred thousand,
    nearly all free of cycles: a young collection every 700 objects would be a good part of their time. Spark gives a
    task one core.
    """
    global _modules
    if not _modules:
        gc.set_threshold(GARBAGE_THRESHOLD, 20, 50)
        pa.set_cpu_count(1)
    if len(sys.modules) >= _modules + MANY_MODULES:
        gc.collect()
        gc.freeze()
        _modules = len(sys.modules)
