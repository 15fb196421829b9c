"""A SparkSession for one command of this process, quiet."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from pyspark.sql import SparkSession

from epochal.cli.quiet_start import quiet_start
from epochal.contracts.configuration import Configuration
from epochal.engine.session import create_session, launch_jvm


@contextmanager
def local_spark(application: str, configuration: Configuration) -> Iterator[SparkSession]:
    """Start Spark, stop it at the end. Raises ``EnvironmentProblem`` when it cannot start."""
    session = start_local_spark(application, configuration)
    try:
        yield session
    finally:
        with suppress(Exception):  # it may have died, which is no reason to hide what this command has to say
            session.stop()


def start_local_spark(application: str, configuration: Configuration) -> SparkSession:
    """Raises ``EnvironmentProblem`` when it cannot start."""
    if os.environ.get("EPOCHAL_DEBUG"):
        return _started(application, configuration)
    chosen = configuration.model_copy(update={"spark": {"spark.log.level": "OFF"} | configuration.spark})
    with quiet_start():
        return _started(application, chosen)


def _started(application: str, configuration: Configuration) -> SparkSession:
    # Out of reach of signals to this process's group: they ask for an orderly stop, which needs the JVM. It ends with
    # this process all the same, when its standard input does. Where it cannot be launched, create_session tries again,
    # and says what is wrong.
    with suppress(Exception):
        launch_jvm(application, configuration, start_new_session=True)
    return create_session(application, configuration)
