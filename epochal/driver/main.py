"""The driver process: orders in, one attempt run, an exit code out (see :class:`ExitCode`)."""

from __future__ import annotations

import hashlib
import logging
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from pydantic import ValidationError
from pyspark.sql import SparkSession

from epochal.contracts.catalog import Catalog, VersionOrder
from epochal.contracts.configuration import ExecutionOrders, Parameters
from epochal.driver import spare
from epochal.driver.early_start import EarlyStart
from epochal.driver.heartbeat import DISOWNED, HeartbeatingCatalog, HeartbeatsFailed, Reports
from epochal.driver.http_catalog import HttpCatalog
from epochal.driver.inbox import HttpInbox
from epochal.driver.orders import SPARE, SPARE_POD, ArtifactOrder, DriverOrders, ExitCode
from epochal.driver.pod import check_executor_rights
from epochal.driver.spare import SparePod
from epochal.driver.training import warm
from epochal.engine.execution import Hooks, run
from epochal.engine.failures import failure_of
from epochal.engine.meter import Meter
from epochal.engine.session import create_session, start_python_workers
from epochal.errors import ArtifactError, EnvironmentProblem, EpochalError, Fenced
from epochal.logs import configure, log_format
from epochal.pipeline.artifact import load_graph
from epochal.pipeline.graph import Graph
from epochal.wire.bodies import UnreadableAnswer

log = logging.getLogger("epochal.driver")


FENCED_GRACE_SECONDS = 2.0
"""Time for the orderly end of a fenced driver; its successor is already running."""


REPORT_SECONDS = 5.0
"""Timeout for a failing driver's report of its failure."""


Fetch = Callable[[str], bytes]
"""Returns the bytes of the artifact with the given sha256."""


def main(arguments: Sequence[str] = (), early_start: EarlyStart | None = None) -> int:
    """Read orders from standard input and carry them out. A spare (``--spare FILE``, or in a pod ``--spare-pod NAME``)
    first waits for orders.

    ``early_start``: the orders, if they were already read.
    """
    format = log_format()
    configure(format, logging.INFO, sys.stdout)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    for talkative in ("py4j", "hdfs"):
        logging.getLogger(talkative).setLevel(logging.WARNING)
    is_spare = list(arguments[:1]) in ([SPARE], [SPARE_POD])
    if early_start is None and not is_spare:
        early_start = EarlyStart(sys.stdin.buffer.read())
    try:
        document = _spares_orders(arguments) if early_start is None else early_start.document
    except Fenced as error:
        log.error("fenced: %s", error)
        return ExitCode.FENCED
    except EpochalError as error:
        log.error("there are no orders: %s", error)
        return ExitCode.BAD_ORDERS
    if document is None:
        return ExitCode.FINISHED
    try:
        orders = DriverOrders.model_validate_json(document)
        if is_spare:
            spare.become(orders)
    except (ValidationError, EnvironmentProblem) as error:
        log.error("invalid orders: %s", error)
        return ExitCode.BAD_ORDERS
    always = {"application": orders.application, "execution": orders.execution, "attempt": orders.attempt}
    configure(format, logging.INFO, sys.stdout, **always)
    log.info(
        "driver %d of %s: execution %s, attempt %d", os.getpid(), orders.application, orders.execution, orders.attempt
    )
    code = _carry_out(orders, early_start)
    log.info("the driver ends: %s", code.name.lower())
    return code


def _spares_orders(arguments: Sequence[str]) -> bytes | None:
    if arguments[0] == SPARE_POD:
        return SparePod(arguments[-1], warm).orders()
    return spare.Spare(warm).orders()


def _carry_out(orders: DriverOrders, early_start: EarlyStart | None) -> ExitCode:
    http = HttpCatalog(orders.control_planes, orders.token, orders.execution, orders.attempt)
    catalog = HeartbeatingCatalog(
        http, on_end=lambda error: _end_soon(orders, error), on_stopped=_end_now, listen=http.listen
    )
    try:
        # R1, which the engine repeats: loading the pipeline and starting Spark take seconds, during which this driver
        # must send heartbeats and may have to report a failure.
        catalog.begin_attempt()
        spare.ANNOUNCED.hit()
        catalog.start()
        return _run(orders, catalog, http, early_start)
    except DISOWNED as error:
        log.error("fenced: %s", error)
        return ExitCode.FENCED
    except (UnreadableAnswer, HeartbeatsFailed) as error:
        log.error("the driver cannot continue: %s", error)
        _report(orders, error)
        return ExitCode.FAILED
    finally:
        catalog.stop()


def _run(orders: DriverOrders, catalog: Catalog, http: HttpCatalog, early_start: EarlyStart | None) -> ExitCode:
    """Load the pipeline, start Spark and run the engine. Failures before the engine starts are reported here; the
    engine has already reported its own failures when they are raised."""
    code = orders.work_directory / "code"

    def load(order: VersionOrder) -> Graph:
        """Load the graph of another version, on request of the control plane while this driver runs."""
        artifact = ArtifactOrder(sha256=order.artifact, filename=order.filename)
        return fetched_graph(http.artifact, artifact, order.parameters, code)

    try:
        graph = fetched_graph(http.artifact, orders.artifact, orders.parameters, code)
        if early_start is not None:
            early_start.wait_for_jvm()
        if orders.executor_template is not None:
            check_executor_rights(orders.configuration.spark["spark.kubernetes.namespace"])
        spark = create_session(orders.application, orders.configuration, orders.store)
        if early_start is not None:
            start_python_workers(spark)
    except Exception as error:
        log.exception("the pipeline could not be started")
        catalog.finish(failure_of(error))
        return ExitCode.FAILED
    meter, inbox = Meter(), HttpInbox(http)
    reports = Reports(catalog, meter)
    reports.start()
    try:
        hooks = Hooks(load=load, meter=meter, inbox=inbox, at_end=reports.stop)
        run(_execution_orders(orders), graph, spark, catalog, hooks)
    except Fenced:
        raise
    except Exception as error:  # noqa: BLE001 the engine has logged and reported it
        log.error("the attempt failed: %s", error if isinstance(error, EpochalError) else type(error).__name__)
        return ExitCode.FAILED
    finally:
        inbox.close()
        _stop(spark)
    return ExitCode.FINISHED


def fetched_graph(fetch: Fetch, artifact: ArtifactOrder, parameters: Parameters, folder: Path) -> Graph:
    """The graph that the code builds from the parameters. ``folder``: location of the code, retained for tracebacks.

    Raises ``ArtifactError``, also if the received bytes are not the artifact, and any error of loading it.
    """
    content = fetch(artifact.sha256)
    found = hashlib.sha256(content).hexdigest()
    if found != artifact.sha256:
        raise ArtifactError(
            f"The artifact {artifact.sha256} ({artifact.filename}) was received with the sha256 {found}: it was "
            "changed in transit. Restart the application."
        )
    path = folder / artifact.sha256 / artifact.filename
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    except OSError as error:
        raise ArtifactError(
            f"The artifact {artifact.sha256} cannot be written to {path}: {error.strerror}. Free some space there."
        ) from error
    return load_graph(path, parameters)


def _stop(spark: SparkSession) -> None:
    try:
        spark.stop()
    except Exception as error:  # noqa: BLE001 its JVM may have terminated already; otherwise it ends with this process
        log.warning("Spark did not stop in order: %s", error)


def _execution_orders(orders: DriverOrders) -> ExecutionOrders:
    return ExecutionOrders(
        application=orders.application,
        execution=orders.execution,
        attempt=orders.attempt,
        artifact=orders.artifact.sha256,
        parameters=orders.parameters,
        configuration=orders.configuration,
        version=orders.version,
        by=orders.by,
        message=orders.message,
        acceptance=orders.acceptance,
        shadow=orders.shadow,
        available_now=orders.available_now,
        drain=orders.drain,
        store=orders.store,
        cache_directory=str(Path(orders.work_directory) / "state"),
    )


def _end_now() -> None:
    """End a driver that was stopped before it ran. Called from the heartbeat thread. Spark's JVM ends with it."""
    log.info("the driver ends: %s", ExitCode.FINISHED.name.lower())
    os._exit(ExitCode.FINISHED)


def _end_soon(orders: DriverOrders, error: EpochalError) -> None:
    """End the process. Called from the heartbeat thread: the epoch loop may be in a long Spark job, which must not
    continue."""
    if isinstance(error, Fenced):
        time.sleep(FENCED_GRACE_SECONDS)
        os._exit(ExitCode.FENCED)
    log.error("the driver ends: %s", error)
    _report(orders, error)
    os._exit(ExitCode.FAILED)


def _report(orders: DriverOrders, error: EpochalError) -> None:
    """Report a failure over a new connection, with a timeout: the current connection may have caused the failure."""
    reporting = HttpCatalog(
        orders.control_planes, orders.token, orders.execution, orders.attempt, patience_seconds=REPORT_SECONDS
    )
    try:
        reporting.finish(failure_of(error))
    except EpochalError as refusal:
        log.error("the control plane did not take the driver's last words: %s", refusal)
