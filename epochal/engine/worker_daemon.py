"""Spark's worker daemon with the imports of all tasks, so that forked workers need not import them again.

Spark runs it as ``spark.python.daemon.module`` on all hosts with Python workers. Spark's own daemon imports no heavy
library before it forks: libraries may start threads, and a lock that another thread holds during a fork stays locked.
This daemon configures the libraries to start no threads. If one does nevertheless, or if threads cannot be counted,
Spark's own daemon runs instead, and each worker imports the libraries.
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
    gc.freeze()  # collections in workers do not touch, and thus copy, the shared pages
    importlib.import_module(SPARKS_OWN).manager()


def is_alone() -> bool:
    """True if this process is known to have only one thread."""
    try:
        return len(os.listdir("/proc/self/task")) == 1
    except OSError:
        return False


if __name__ == "__main__":
    main()
