"""SparkSession and JVM options of a driver, tuned for fast small epochs and predictable sources."""

from __future__ import annotations

import logging
import os
import re
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from epochal.background.retries import attempts
from epochal.background.service import BackgroundService
from epochal.background.task import BackgroundTask
from epochal.contracts.configuration import Configuration
from epochal.contracts.identity import EpochKey
from epochal.engine import worker_daemon
from epochal.engine.class_archive import JAVA_OPTIONS, archive_options
from epochal.errors import EnvironmentProblem, EpochalError, EpochTimeout
from epochal.store_variables import executor_variables, spark_redaction

log = logging.getLogger(__name__)

DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # For small jobs, planning again at each stage costs more than it gains.
    "spark.sql.adaptive.enabled": "false",
    # Python workers over a Unix socket: TCP's delayed acknowledgements cost up to 40 ms a task.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.python.worker.reuse": "true",
    "spark.python.daemon.module": worker_daemon.MODULE,
    # Recording the code location of each Column takes three more calls into the JVM.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    # Spark records the plan of each job; the simple form is cheaper.
    "spark.sql.ui.explainMode": "simple",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
    # Spark keeps up to 48 MB of Arrow data as rows in the plan, and evaluates filters and expressions over it during
    # planning, uncompiled and in one thread. This is faster for a few rows only.
    "spark.sql.execution.arrow.localRelationThreshold": "16KB",
    "spark.sql.session.timeZone": "UTC",
    "spark.log.level": "WARN",
}
ANSI = {"spark.sql.ansi.enabled": "true"}
"""Set in every session: without ANSI mode, sums that overflow wrap around silently."""
IN_ONE_PROCESS = {"spark.storage.blockManagerHeartbeatTimeoutMs": "36500d"}
"""For driver and executor in one process: after a suspension or a clock change Spark would consider its only executor
lost, could not register it again, and would end the process ten minutes later."""
REDUCE_LOCALITY = "spark.shuffle.reduceLocality.enabled"
"""Spark prefers the hosts of a shuffle's rows to the executor of a cached row, unless this is false."""
ON_CLUSTERS = {REDUCE_LOCALITY: "false", "spark.locality.wait.process": "60s"}
"""For several executors: settings that placement (:mod:`epochal.engine.placement`) relies on."""
LOOPBACK = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}

MEMORY = "spark.driver.memory"
EXECUTOR_VARIABLE = "spark.executorEnv."
REDACTION = "spark.redaction.regex"
_FEW_CORES = 2
# Ten times the JVM's own thresholds. With those, the C2 compiler compiles thousands of methods of Spark's planning
# within
# the first epochs, which took a third of a new driver's CPU. Loops over rows still reach these thresholds.
_COMPILED_LATER = (
    "-XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 "
    "-XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000"
)
_COLLECTOR = re.compile(r"-XX:\+Use\w+GC\b")
_READ_BY_EVERY_JVM = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")

INTERRUPT_AGAIN_SECONDS = 1.0
REMOVAL_SECONDS = 10.0
"""Maximum time that the deletion of a temporary folder waits for tasks that still write into it."""

CODEGEN = "spark.sql.codegen.factoryMode"
INTERPRETED = "NO_CODEGEN"
"""Spark evaluates expressions without generated code, with equal results."""
COMPILED_AGGREGATES = 100
"""An operator with more aggregates is *wide*. Spark does not compile whole stages above this number of columns either
(``spark.sql.codegen.maxFields``)."""
INTERPRETED_ROWS = 10_000
"""Up to this number of rows an epoch of wide operators takes less time without generated code."""


def launch_jvm(application: str, configuration: Configuration, **process: Any) -> None:
    """Start the JVM that ``create_session`` will use, unless it runs. ``process``: arguments of its ``Popen``.

    JVM settings cannot change later: pass the same application and configuration to both functions.
    """
    if SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ:
        return
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = SparkConf().setAppName(application).setMaster(configuration.master)
    settings.setAll(list(session_settings(configuration).items()))
    launch: Callable[..., Any] = launch_gateway
    SparkContext._ensure_initialized(gateway=launch(settings, popen_kwargs=process))


def start_python_workers(spark: SparkSession) -> None:
    """Start Python workers in the background; their imports take seconds. Returns immediately."""
    BackgroundTask("python-workers", lambda: _start_python_workers(spark))


def _start_python_workers(spark: SparkSession) -> None:
    try:
        run_in_worker(spark)
    except Exception as error:  # noqa: BLE001 the first epoch reports a persistent error
        log.debug("Python workers were not started ahead: %s", error)


def run_in_worker(spark: SparkSession) -> None:
    """Run a task in a Python worker of some executor. Returns when it has ended."""
    spark.range(0, 1, 1, 1).mapInArrow(lambda batches: batches, "id bigint").collect()


def create_session(application: str, configuration: Configuration, store: str = "") -> SparkSession:
    """Start Spark, or get the session of this process. Raises ``EnvironmentProblem`` when it cannot start.

    ``store``: the URL of the store that executors on other machines need variables for.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    variables = {
        name: configuration.spark.get(EXECUTOR_VARIABLE + name, value)
        for name, value in executor_variables(os.environ, configuration.master, store).items()
    }
    settings = session_settings(configuration)
    # Settings of a session that are not those of its context are not redacted in Spark's event log.
    if SparkContext._active_spark_context is None:
        settings |= {EXECUTOR_VARIABLE + name: value for name, value in variables.items()}
    builder = SparkSession.builder.appName(application).master(configuration.master)
    for name, value in settings.items():
        builder = builder.config(name, value)
    try:
        if variables:
            # Spark would start the JVM with all settings as arguments, which every user of the machine can read.
            launch_jvm(application, configuration)
        session = builder.getOrCreate()
        # The context of a former spare has begun without them. Python workers receive these with each function.
        session.sparkContext.environment.update(variables)
        return session
    except EpochalError:
        raise
    except Exception as error:
        raise EnvironmentProblem(
            f"Spark could not be started on {configuration.master!r}: {error}. "
            "Check that Java 17 or newer is installed (JAVA_HOME) and that the master is reachable."
        ) from error


def derived_session(running: SparkSession, configuration: Configuration) -> SparkSession:
    """A session with a driver's settings that leaves ``running`` as it is; both use the same Spark."""
    session = running.newSession()
    for name, value in session_settings(configuration).items():
        if _is_modifiable(name, session):
            session.conf.set(name, value)
    return session


_MODIFIABLE: dict[str, bool] = {}
"""Cache of Spark's answers by setting, which are the same in every session."""


def _is_modifiable(name: str, session: SparkSession) -> bool:
    if name not in _MODIFIABLE:
        _MODIFIABLE[name] = session.conf.isModifiable(name)
    return _MODIFIABLE[name]


@contextmanager
def interpreted(spark: SparkSession) -> Iterator[None]:
    """Disable code generation for the jobs of the block, then restore the session's setting."""
    own = spark.conf.get(CODEGEN)
    spark.conf.set(CODEGEN, INTERPRETED)
    try:
        yield
    finally:
        spark.conf.set(CODEGEN, str(own))


@contextmanager
def limited(spark: SparkSession, epoch: EpochKey, timeout_seconds: float) -> Iterator[None]:
    """Cancel the block's Spark jobs and raise ``EpochTimeout`` when the block exceeds the timeout.

    All jobs of the session are cancelled. They belong to this epoch, since background jobs use other sessions. Tags are
    not sufficient: outside Spark Connect, only the thread that set a tag can interrupt its jobs.
    """
    expired = threading.Event()

    def cancel() -> None:
        expired.set()
        spark.interruptAll()

    # Repeated, since the epoch may have been between two jobs.
    watching = BackgroundService("epochal-epoch-timeout", cancel, INTERRUPT_AGAIN_SECONDS, delay=timeout_seconds)
    watching.start()
    try:
        yield
    except Exception as error:
        if expired.is_set():
            raise EpochTimeout(
                f"Epoch {epoch} took longer than {timeout_seconds:g} s (epoch_timeout_seconds) and was "
                "cancelled. Raise the timeout, or bound the slices with max_records_per_epoch."
            ) from error
        raise
    finally:
        watching.stop(timeout=None)


def session_settings(configuration: Configuration) -> dict[str, str]:
    """All settings of the session except for name and master. The author's settings override the defaults."""
    on_this_machine = configuration.master.startswith("local") or "//127.0.0.1:" in configuration.master
    return (
        DEFAULTS
        | (LOOPBACK if on_this_machine else {})
        | (IN_ONE_PROCESS if is_one_process(configuration.master) else ON_CLUSTERS)
        | {"spark.sql.shuffle.partitions": str(configuration.parallelism)}
        | configuration.spark
        | ANSI
        | {JAVA_OPTIONS: java_options(configuration.spark)}
        | {REDACTION: spark_redaction(configuration.spark.get(REDACTION))}
    )


def is_one_process(master: str) -> bool:
    return master == "local" or master.startswith("local[")


@contextmanager
def temporary_folder(purpose: str) -> Iterator[Path]:
    """A new folder for the state of epochs, deleted at the end.

    Spark returns from a failed job while other tasks of the job still run. Such a task may write a file while its
    folder is being deleted, so deletion is repeated for up to ``REMOVAL_SECONDS``. A folder that remains is logged.
    """
    folder = Path(tempfile.mkdtemp(prefix=f"epochal-{purpose}-"))
    try:
        yield folder
    finally:
        _remove(folder)


def _remove(folder: Path) -> None:
    for _ in attempts(0.05, timeout=REMOVAL_SECONDS):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
    log.warning("The temporary folder %s could not be deleted.", folder)


def java_options(settings: Mapping[str, str]) -> str:
    """JVM options: the archive of Spark's classes, later compilation and, with few cores and the default heap, the
    serial garbage collector. The author's options in ``settings`` come last and take precedence; a collector that the
    author chose is kept.
    """
    authors = settings.get(JAVA_OPTIONS, "")
    ours = ["" if "Archive" in authors else archive_options(), _COMPILED_LATER]
    named = _COLLECTOR.search(" ".join([authors, *(os.environ.get(name, "") for name in _READ_BY_EVERY_JVM)]))
    if named is None and MEMORY not in settings and (os.cpu_count() or 1) <= _FEW_CORES:
        ours.append("-XX:+UseSerialGC")
    return " ".join(filter(None, [*ours, authors]))
