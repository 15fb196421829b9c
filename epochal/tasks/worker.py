"""What a Python worker process does once, before its first task."""

from __future__ import annotations

import gc
from functools import cache

import pyarrow as pa

GARBAGE_THRESHOLD = 50_000


@cache
def prepare_worker() -> None:
    """Make this process a good host of short tasks. Called at the start of every task; does its work once.

    Spark's worker runs a full garbage collection after each task: all that has been imported is moved out of its sight,
    which takes a tiny task from tens of milliseconds to a few. Tasks make rows by the hundred thousand, nearly all free
    of cycles: a young collection every 700 objects would be a good part of their time. Spark gives a task one core.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE_THRESHOLD, 20, 50)
    pa.set_cpu_count(1)
