"""One attempt in this process: the engine over a catalog in a SQLite file, and epochs printed as they are decided."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pyspark.sql import SparkSession
from rich.text import Text

from epochal.cli.directories import held, writable
from epochal.cli.local_spark import local_spark
from epochal.cli.output import Output
from epochal.contracts.catalog import EpochCounts
from epochal.contracts.configuration import Acceptance, Configuration, ExecutionOrders, Parameters
from epochal.engine.execution import Hooks
from epochal.engine.execution import run as run_attempt
from epochal.engine.failures import failure_of
from epochal.engine.session import temporary_folder
from epochal.errors import AuthorError, EpochalError, OptionError
from epochal.pipeline.analysis import analyse, check_graph
from epochal.pipeline.artifact import load
from epochal.pipeline.graph import Graph
from epochal.pipeline.runner import RunEpoch, RunOptions, RunOutcome
from epochal.service.catalog.standalone import standalone_catalog
from epochal.snapshots.manifest import Manifest
from epochal.wire.configuration import check_configuration


@dataclass(frozen=True)
class Code:
    """A graph, built of these parameters, and what tells one version of its code from another."""

    graph: Graph
    sha256: str
    parameters: Parameters = field(default_factory=dict)


def code_of_file(file: Path, parameters: Parameters) -> Code:
    """Raises what the artifact or the pipeline is wrong with."""
    artifact = load(file)
    graph = artifact.graph(parameters)
    artifact.ship()
    return Code(graph, artifact.sha256, parameters)


Starting = Callable[[str, Configuration], AbstractContextManager[SparkSession]]


def run_locally(code: Code, options: RunOptions, output: Output, starting: Starting = local_spark) -> RunOutcome:
    """Run until the end or SIGINT. Raises what the configuration or an epoch is wrong with."""
    graph, configuration = code.graph, checked_configuration(options.configuration)
    with contextlib.ExitStack() as stack:
        folder = _folder(options, stack)
        check_graph(graph)
        with output.busy("Starting Spark"):
            spark = stack.enter_context(starting(graph.name, configuration))
        # The attempt asks sources and sinks itself, and waits for sinks that are down.
        with output.busy("Checking the pipeline"):
            analyse(graph, spark, configuration, connected=False)
        catalog = standalone_catalog(
            f"sqlite:///{folder.absolute() / 'catalog.sqlite'}",
            graph.name,
            code.sha256,
            code.parameters,
            configuration.model_dump(mode="json"),
        )
        catalog.begin_attempt()  # from here on this process has the branch, and an earlier run is fenced
        orders = ExecutionOrders(
            application=graph.name,
            execution=catalog.execution,
            attempt=catalog.attempt,
            artifact=code.sha256,
            parameters=code.parameters,
            configuration=configuration,
            acceptance=Acceptance(changed=tuple(options.accept_changed), partial=tuple(options.accept_partial)),
            shadow=options.shadow,
            available_now=options.available_now,
            drain=options.drain,
            store=str(folder.absolute() / "store"),
            cache_directory=str(folder.absolute() / "cache"),
        )
        if output.as_json:
            # Console sinks print to standard output, which is to hold one document.
            stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        progress = _Progress(output, stack.enter_context(contextlib.ExitStack()))
        # After Spark's start, which installs a handler of its own.
        interruption = stack.enter_context(_interruptible(output))
        hooks = Hooks(
            progress.show,
            lambda: interruption.requested,
            options.epochs,
            aborted=options.aborted,
            abort_command=_abort_command(options.directory),
        )
        output.note(Text(f"{graph.name} runs; Ctrl-C stops it after the current epoch.", style="dim"))
        stack.enter_context(_log_shown(output))
        if not output.animated:  # on a terminal a spinner would stand between the lines of a console sink
            progress.waiting.enter_context(output.busy("Waiting for the first epoch"))
        with authors_errors():
            run_attempt(orders, graph, spark, catalog, hooks)
        return RunOutcome(
            pipeline=graph.name,
            interrupted=interruption.requested,
            drained=progress.drained,
            epochs=tuple(progress.epochs),
        )


def _abort_command(directory: Path | None) -> str:
    if directory is None:
        return "This run's state is temporary: run it again when the cause is corrected."
    folder = str(directory).replace("{", "{{").replace("}", "}}")
    return (
        f"`epochal run FILE --directory {folder} --abort-transaction {{sink}}:{{epoch}}` drops the epoch's rows in "
        "this sink alone, and goes on."
    )


@contextmanager
def authors_errors() -> Iterator[None]:
    """What the author's code raised in a task is an ``AuthorError`` with the author's own lines."""
    try:
        yield
    except EpochalError as error:
        failure = failure_of(error)
        if failure.traceback is None:
            raise
        raise AuthorError(f"{failure.message}\n{failure.traceback}") from error


@dataclass
class _Progress:
    """Prints each epoch once it is decided, and keeps its counts."""

    output: Output
    waiting: contextlib.ExitStack
    """Left when the first epoch is decided."""
    epochs: list[RunEpoch] = field(default_factory=list)
    drained: bool = False
    _last: float = field(default_factory=time.monotonic)

    def show(self, manifest: Manifest) -> None:
        self.waiting.close()
        counts = manifest.counts
        self.drained = manifest.drained
        now = time.monotonic()
        took, self._last = now - self._last, now
        self.epochs.append(
            RunEpoch(
                epoch=manifest.epoch,
                rows_in=counts.rows_in,
                rows_out=counts.rows_out,
                state_rows=counts.state_rows,
            )
        )
        self.output.note(
            Text.assemble(
                ("● ", "green"),
                (f"epoch {manifest.epoch}", "bold"),
                f"  {counts.rows_in:,} rows in, {counts.rows_out:,} out, {counts.state_rows:,} changed",
                (_left_out(counts), "yellow"),
                (f"  {took:.2f} s", "dim"),
            )
        )


def _left_out(counts: EpochCounts) -> str:
    """``, 3 late (windows), 1 rejected (ts)``."""
    kinds = (
        ("late", counts.late_rows),
        ("rejected", counts.rejected_rows),
        ("timers dropped", counts.dropped_timers),
    )
    return "".join(f", {sum(rows.values()):,} {kind} ({', '.join(rows)})" for kind, rows in kinds if rows)


class _Warnings(logging.Handler):
    """The engine's warnings (an aborted epoch, a sink that has to wait) as notes; its errors come as exceptions."""

    def __init__(self, output: Output) -> None:
        super().__init__(logging.WARNING)
        self._output = output

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno < logging.ERROR:
            self._output.note(Text.assemble(("● ", "yellow"), record.getMessage().partition("\n")[0]))


@contextmanager
def _log_shown(output: Output) -> Iterator[None]:
    logger, handler = logging.getLogger("epochal"), _Warnings(output)
    logger.addHandler(handler)
    propagated, logger.propagate = logger.propagate, bool(os.environ.get("EPOCHAL_DEBUG"))
    try:
        yield
    finally:
        logger.propagate = propagated
        logger.removeHandler(handler)


@dataclass
class _Interruption:
    requested: bool = False


@contextmanager
def _interruptible(output: Output) -> Iterator[_Interruption]:
    """The first SIGINT or SIGTERM asks for an orderly stop; a second one ends at once, which loses nothing, too."""
    interruption = _Interruption()

    def ask(_number: int, _frame: Any) -> None:
        if interruption.requested:
            raise KeyboardInterrupt
        interruption.requested = True
        output.note(Text("Stopping after this epoch; Ctrl-C again stops at once.", style="dim"))

    if threading.current_thread() is not threading.main_thread():
        yield interruption  # only the main thread may handle signals
        return
    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield interruption
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _folder(options: RunOptions, stack: contextlib.ExitStack) -> Path:
    if options.directory is None:
        return stack.enter_context(temporary_folder("run"))
    folder = writable(options.directory, "--directory")
    stack.enter_context(held(folder, take_over=options.take_over))
    return folder


def checked_configuration(settings: Mapping[str, Any]) -> Configuration:
    try:
        configuration = Configuration.model_validate(dict(settings))
    except ValidationError as error:
        places = "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors())
        raise OptionError(f"The configuration is not valid: {places}; see --set.") from None
    check_configuration(configuration)
    return configuration
