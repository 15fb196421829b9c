"""One request, in a process of its own: the author's code runs here."""

from __future__ import annotations

import math
import resource
import signal
import tempfile

from epochal.contracts.catalog import ManifestReference
from epochal.engine.failures import failure_of
from epochal.engine.rekey import rekey
from epochal.engine.session import create_session
from epochal.engine.settings import ExecutionOrders
from epochal.engine.trial import run_trial
from epochal.errors import EpochalError
from epochal.pipeline.analysis import analyse
from epochal.pipeline.artifact import load_graph
from epochal.pipeline.description import GraphDescription, describe
from epochal.service.builder.wire import BuildAnswer, BuildError, BuildRequest, RekeyOf, TrialAnswer, TrialOf

_SHORT_LIVED = {
    # Seconds of life: compiling little and collecting simply is quickest then.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.driver.memory": "512m",
}


def answer(request: BuildRequest) -> BuildAnswer:
    """Carry out one request within its limits. Never raises; what runs out of time ends the process."""
    _limit(request)
    try:
        if request.trial is not None:
            return BuildAnswer(trial=_try(request, request.trial))
        if request.rekey is not None:
            return BuildAnswer(snapshot=_rekey(request, request.rekey))
        return BuildAnswer(graph=_describe(request) if request.kind == "describe" else _analyse(request))
    except EpochalError as error:
        return BuildAnswer(error=BuildError(slug=error.slug, message=error.message))
    except MemoryError:
        message = "Building the pipeline needs more memory than is allowed; do the work when the pipeline runs."
        return BuildAnswer(error=BuildError(slug="invalid-pipeline", message=message))
    except Exception as error:  # noqa: BLE001 whatever it is, the caller is told
        failure = failure_of(error)
        message = f"{failure.message}\n{failure.traceback}" if failure.traceback else failure.message
        return BuildAnswer(error=BuildError(slug="invalid-pipeline", message=message))


def _describe(request: BuildRequest) -> GraphDescription:
    return describe(load_graph(request.artifact, request.parameters))


def _analyse(request: BuildRequest) -> GraphDescription:
    graph = load_graph(request.artifact, request.parameters)
    spark_options = {**request.configuration.spark, **_SHORT_LIVED}
    here = request.configuration.model_copy(update={"master": "local[1]", "spark": spark_options})
    spark = create_session("epochal-analysis", here)
    try:
        return analyse(graph, spark).description
    finally:
        spark.stop()


def _rekey(request: BuildRequest, wanted: RekeyOf) -> ManifestReference:
    graph = load_graph(request.artifact, request.parameters)
    with tempfile.TemporaryDirectory(prefix="epochal-rekey-") as cache:
        orders = ExecutionOrders(
            application=wanted.application,
            execution="rekey",
            attempt=0,
            artifact="rekey",
            parameters=request.parameters,
            configuration=request.configuration,
            by=wanted.by,
            message=wanted.message,
            store=wanted.store,
            cache_directory=cache,
        )
        spark = create_session("epochal-rekey", request.configuration)
        try:
            return rekey(orders, graph, spark, wanted.head, wanted.at)
        finally:
            spark.stop()


def _try(request: BuildRequest, trial: TrialOf) -> TrialAnswer:
    graph = load_graph(request.artifact, request.parameters)
    here = request.configuration.model_copy(update={"master": "local[2]"})
    with tempfile.TemporaryDirectory(prefix="epochal-trial-") as cache:
        orders = ExecutionOrders(
            application=trial.application,
            execution="trial",
            attempt=1,
            artifact="trial",
            parameters=request.parameters,
            configuration=here,
            store=trial.store,
            cache_directory=cache,
        )
        spark = create_session("epochal-trial", here)
        try:
            report = run_trial(orders, graph, spark, trial.head, trial.epochs)
        finally:
            spark.stop()
    return TrialAnswer(
        base=report.base,
        epochs=report.epochs,
        seconds=report.seconds,
        same=report.same,
        tables=report.tables,
        sinks=report.sinks,
    )


def _limit(request: BuildRequest) -> None:
    """An alarm ends the process, whatever it is doing; its caller sees that no answer came."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, request.seconds)
    if request.memory_bytes is not None:
        resource.setrlimit(resource.RLIMIT_AS, (request.memory_bytes, request.memory_bytes))
        resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(request.seconds), math.ceil(request.seconds) + 1))
