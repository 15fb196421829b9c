"""Execution of one build request in its own process, which runs the author's code."""

from __future__ import annotations

import math
import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

from epochal.contracts.catalog import ManifestReference, RestorePoint
from epochal.contracts.configuration import Configuration, ExecutionOrders
from epochal.contracts.identity import EpochScope
from epochal.contracts.inbox import GivenCalls
from epochal.engine.class_archive import JAVA_OPTIONS
from epochal.engine.failures import failure_of
from epochal.engine.rekey import rekey
from epochal.engine.session import create_session, temporary_folder
from epochal.engine.trial import Tried, run_trial
from epochal.engine.trial_report import TrialReport
from epochal.errors import EpochalError
from epochal.pipeline.analysis import analyse, check_paths
from epochal.pipeline.artifact import load_graph
from epochal.pipeline.description import GraphDescription, describe
from epochal.pipeline.graph import Graph
from epochal.service.domain.building import (
    Analyse,
    BuildAnswer,
    BuildError,
    BuildRequest,
    Describe,
    RekeyOf,
    RestorePointsOf,
    ShownOf,
    TrialOf,
)
from epochal.snapshots.store import SnapshotStore

_SHORT_LIVED = {
    # For a JVM that lives for seconds, minimal compilation and the serial collector are fastest.
    JAVA_OPTIONS: "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.driver.memory": "512m",
}


def answer(request: BuildRequest) -> BuildAnswer:
    """Carry out one request within its limits. Never raises; a timeout ends the process."""
    _limit(request)
    os.environ.update(request.secrets)
    try:
        match request.work:
            case Describe():
                return BuildAnswer(graph=_describe(request))
            case Analyse():
                return BuildAnswer(graph=_analyse(request))
            case TrialOf() as trial:
                return BuildAnswer(trial=_try(request, trial))
            case RekeyOf() as target:
                return BuildAnswer(snapshot=_rekey(request, target))
            case ShownOf() as branch:
                return BuildAnswer(shown=_shown(request, branch))
            case RestorePointsOf() as tables:
                return BuildAnswer(restore_points=_restore_points(request, tables))
    except EpochalError as error:
        return BuildAnswer(error=BuildError(slug=error.slug, message=error.message))
    except MemoryError:
        message = "Building the pipeline needs more memory than is allowed; do the work when the pipeline runs."
        return BuildAnswer(error=BuildError(slug="invalid-pipeline", message=message))
    except Exception as error:  # noqa: BLE001 report every failure to the caller
        failure = failure_of(error)
        message = f"{failure.message}\n{failure.traceback}" if failure.traceback else failure.message
        return BuildAnswer(error=BuildError(slug="invalid-pipeline", message=message))


def _describe(request: BuildRequest) -> GraphDescription:
    graph = load_graph(request.artifact, request.parameters)
    check_paths(graph)
    return describe(graph)


def _analyse(request: BuildRequest) -> GraphDescription:
    graph = load_graph(request.artifact, request.parameters)
    spark_options = {**request.configuration.spark, **_SHORT_LIVED}
    here = request.configuration.model_copy(update={"master": "local[1]", "spark": spark_options})
    spark = create_session("epochal-analysis", here)
    try:
        return analyse(graph, spark, request.configuration, elsewhere=True).description
    finally:
        spark.stop()


def _shown(request: BuildRequest, branch: ShownOf) -> dict[str, int | None]:
    graph, store = load_graph(request.artifact, request.parameters), SnapshotStore(branch.store)
    scope = EpochScope(branch.application, branch.at, branch.attempt, None)
    guarantee = request.configuration.guarantee
    return {node.name: node.backend(store, guarantee).shown(scope) for node in graph.sinks}


def _restore_points(request: BuildRequest, tables: RestorePointsOf) -> dict[str, RestorePoint]:
    graph, store = load_graph(request.artifact, request.parameters), SnapshotStore(tables.store)
    found = {}
    for node in graph.sinks:
        if node.name in tables.sinks:
            try:
                point = node.backend(store, request.configuration.guarantee).restore_point(tables.left)
            except EpochalError as error:
                point = RestorePoint(reason=error.message.rstrip("."), unknown=True)
            if point is not None:
                found[node.name] = point
    return found


def _rekey(request: BuildRequest, target: RekeyOf) -> ManifestReference:
    with _offline(request, target, request.configuration) as (orders, graph, spark):
        rekeyed = orders.model_copy(
            update={"attempt": 0, "by": target.by, "message": target.message, "acceptance": target.acceptance}
        )
        return rekey(rekeyed, graph, spark, target.head, target.at)


def _try(request: BuildRequest, trial: TrialOf) -> TrialReport:
    here = request.configuration.model_copy(update={"master": "local[2]"})
    with _offline(request, trial, here) as (orders, graph, spark):
        producer = trial.producer
        then = producer.configuration.model_copy(update={"master": here.master, "spark": here.spark})
        before = orders.model_copy(update={"parameters": producer.parameters, "configuration": then})
        old = Tried(before, load_graph(producer.artifact, producer.parameters))
        calls = GivenCalls(trial.calls)
        return run_trial(old, Tried(orders, graph), spark, trial.head, trial.epochs, trial.name, calls)


@contextmanager
def _offline(
    request: BuildRequest, work: TrialOf | RekeyOf, configuration: Configuration
) -> Iterator[tuple[ExecutionOrders, Graph, SparkSession]]:
    """Provide orders, graph and session as in a driver, outside any execution."""
    graph = load_graph(request.artifact, request.parameters)
    with temporary_folder(work.kind) as cache:
        orders = ExecutionOrders(
            application=work.application,
            execution=work.kind,
            attempt=1,
            artifact=work.kind,
            parameters=request.parameters,
            configuration=configuration,
            store=work.store,
            cache_directory=str(cache),
        )
        spark = create_session(f"epochal-{work.kind}", configuration, work.store)
        try:
            yield orders, graph, spark
        finally:
            spark.stop()


def _limit(request: BuildRequest) -> None:
    """Set the time and memory limits.

    The alarm ends the process unconditionally; the caller then receives no answer.
    """
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, request.seconds)
    if request.memory_bytes is not None:
        resource.setrlimit(resource.RLIMIT_AS, (request.memory_bytes, request.memory_bytes))
        resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(request.seconds), math.ceil(request.seconds) + 1))
