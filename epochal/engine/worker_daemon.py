"""Spark's worker daemon, with what every task imports: workers are forked with it, and need not import it each again.

Spark runs it as ``spark.python.daemon.module`` wherever there are Python workers. Its own daemon imports nothing heavy
before it forks: libraries may start threads, and a lock that another thread holds in the moment of a fork stays locked.
Here the libraries are configured to start none. Where one does all the same, or threads cannot be counted, Spark's own
daemon takes over, and each worker imports for itself.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
from collections.abc import Sequence

MODULE = "epochal.engine.worker_daemon"
SPARKS_OWN = "pyspark.daemon"
TASKS = "epochal.tasks"
IMPORTED = ("pyspark.worker", "pyarrow.parquet", *(f"{TASKS}.{name}" for name in ("operator", "sink")))
WITHOUT_THREADS = {
    "OPENBLAS_NUM_THREADS": "1",  # NumPy's; Spark gives a task one core
    "JE_ARROW_MALLOC_CONF": "background_thread:false",  # of Arrow's allocator
}


def main(imports: Sequence[str] = IMPORTED) -> None:
    """``imports``: the modules that workers are forked with."""
    for name, value in WITHOUT_THREADS.items():
        os.environ.setdefault(name, value)
    for module in imports:
        importlib.import_module(module)
    if not is_alone():
        os.execv(sys.executable, [sys.executable, "-m", SPARKS_OWN, *sys.argv[1:]])
    gc.collect()
    gc.freeze()  # no collection of a worker touches, and so copies, the pages that all have in common
    importlib.import_module(SPARKS_OWN).manager()


def is_alone() -> bool:
    """Whether this process is known to have one thread."""
    try:
        return len(os.listdir("/proc/self/task")) == 1
    except OSError:
        return False


if __name__ == "__main__":
    main()
