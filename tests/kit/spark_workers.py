"""Spark's worker daemon in tests: workers are forked after the imports of test modules.

A task finds the functions and classes of a test by its module name, which each worker therefore imports.
"""

from __future__ import annotations

from epochal.engine import worker_daemon

MODULE = "tests.kit.spark_workers"
IMPORTED = (*worker_daemon.IMPORTED, "hypothesis", "pytest", "epochal.testing")


if __name__ == "__main__":
    worker_daemon.main(IMPORTED)
