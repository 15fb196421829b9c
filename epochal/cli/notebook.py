"""``Pipeline.run`` and ``Pipeline.show`` in the author's process, on the active Spark session or a local one."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

from epochal.cli.local_run import Code, authors_errors, run_locally
from epochal.cli.local_spark import start_local_spark
from epochal.cli.output import Output
from epochal.cli.sample import sample_view, take_sample
from epochal.contracts.configuration import Configuration
from epochal.engine.session import derived_session
from epochal.pipeline.description import describe
from epochal.pipeline.graph import Graph
from epochal.pipeline.runner import Runner, RunOptions, RunOutcome

QUICK = {"state_backend": "heap", "epoch_interval_seconds": 0.0}


def version_of(graph: Graph) -> str:
    """Digest of a graph's declarations, which identifies a version without a code file."""
    said = describe(graph).model_dump_json(exclude={"nodes": {"__all__": {"stream"}}})
    return hashlib.sha256(said.encode()).hexdigest()


class NotebookRunner(Runner):
    """Runs pipelines; Spark keeps running between calls."""

    def run(self, graph: Graph, options: RunOptions, spark: SparkSession | None) -> RunOutcome:

        @contextmanager
        def starting(application: str, configuration: Configuration) -> Iterator[SparkSession]:
            yield _session(spark, application, configuration)

        return run_locally(Code(graph, version_of(graph)), options, Output.make(as_json=False), starting)

    def show(self, graph: Graph, rows: int, sample: int, spark: SparkSession | None) -> None:
        output = Output.make(as_json=False)
        configuration = Configuration.model_validate(QUICK)
        with output.busy("Running a sample"), authors_errors():
            session = _session(spark, graph.name, configuration)
            taken = take_sample(graph, sample, session, configuration)
        output.results.print(sample_view(taken, rows))


def _session(authors: SparkSession | None, application: str, configuration: Configuration) -> SparkSession:
    """Derive a session with the engine's settings from the author's, or start Spark. The author's session is not
    changed."""
    running = authors or SparkSession.getActiveSession()
    if running is None:
        return start_local_spark(application, configuration)
    return derived_session(running, configuration)
