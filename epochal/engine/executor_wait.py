"""Executors of a cluster that have not come yet: no epoch opens, since its tasks would wait until its timeout."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from epochal.background.task import BackgroundTask
from epochal.engine.session import is_one_process, run_in_worker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

PAUSE_SECONDS = 0.25
LOGGED_AFTER = timedelta(seconds=15)
"""Executors usually need some seconds to start."""


@dataclass
class ExecutorWait:
    """Waits for the first executor of an attempt. ``first``: a task that runs on it."""

    master: str
    first: BackgroundTask[None]
    since: datetime = field(default_factory=lambda: datetime.now(UTC))
    _logged: bool = field(default=False, init=False)

    @staticmethod
    def of(spark: SparkSession, master: str) -> ExecutorWait | None:
        """``None``: tasks run in the driver's process."""
        if is_one_process(master):
            return None
        return ExecutorWait(master, BackgroundTask("epochal-executors", lambda: run_in_worker(spark), raises=True))

    def seconds(self) -> float:
        """Seconds after which to look again; 0 if an executor is there, or the first epoch will report the error."""
        if not self.first.is_running:
            return 0.0
        if not self._logged and datetime.now(UTC) - self.since > LOGGED_AFTER:
            self._logged = True
            log.warning("%s", self)
        return PAUSE_SECONDS

    def __str__(self) -> str:
        return (
            f"waiting for executors since {self.since:%Y-%m-%dT%H:%M:%SZ}: {self.master} has started none. Check that "
            "its workers have free cores (spark.executor.cores, spark.cores.max of other applications) and memory "
            "(spark.executor.memory), and reach the driver"
        )
