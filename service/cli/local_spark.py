"""A SparkSession for one command of this process, quiet."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

from epochal.engine.session import create_session
from epochal.engine.settings import Configuration
from epochal.service.cli.quiet_start import quiet_start


@contextmanager
def local_spark(application: str, configuration: Configuration) -> Iterator[SparkSession]:
    """Start Spark, stop it at the end. Raises ``EnvironmentProblem`` when it cannot start."""
    if os.environ.get("EPOCHAL_DEBUG"):
        session = create_session(application, configuration)
    else:
        chosen = configuration.model_copy(update={"spark": {"spark.log.level": "OFF"} | configuration.spark})
        with quiet_start():
            session = create_session(application, chosen)
    try:
        yield session
    finally:
        session.stop()
