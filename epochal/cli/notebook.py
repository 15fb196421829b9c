"""``Pipeline.run`` and ``Pipeline.show``: in the author's own process, on the session that is there or a local one."""

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
    """What tells one version from another where there is no file of code: what its author says, not what follows."""
    said = describe(graph).model_dump_json(exclude={"nodes": {"__all__": {"stream"}}})
    return hashlib.sha256(said.encode()).hexdigest()


class NotebookRunner(Runner):
    """Spark stays, so that the next call begins at once."""

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
    """A session with the engine's settings that leaves the author's as it is; the Spark below them is one."""
    running = authors or SparkSession.getActiveSession()
    if running is None:
        return start_local_spark(application, configuration)
    return derived_session(running, configuration)
