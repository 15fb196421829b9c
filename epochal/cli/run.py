"""``run``, ``check`` and ``dev``: work on a pipeline with a local Spark, without a control plane."""

from __future__ import annotations

import logging
import os
import signal
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from epochal.cli import formatting
from epochal.cli.options import (
    AcceptChanged,
    AcceptPartial,
    AllowDropped,
    AvailableNow,
    Drain,
    File,
    Json,
    Parameter,
    ParametersFile,
    Setting,
    acceptance,
    configuration,
    parameters,
)
from epochal.cli.output import Output
from epochal.errors import OptionError
from epochal.service.runtime.launchers.java import check_java

app = typer.Typer()


@app.command()
def run(
    file: File,
    parameter: Parameter = None,
    parameters_file: ParametersFile = None,
    setting: Setting = None,
    allow_dropped_state: AllowDropped = None,
    epochs: Annotated[int | None, typer.Option("--epochs", min=1, help="Stop after this number of epochs.")] = None,
    available_now: AvailableNow = False,
    drain: Drain = True,
    state_backend: Annotated[str, typer.Option(help="Cache of state in executors: heap or lmdb.")] = "heap",
    accept_changed: AcceptChanged = None,
    accept_partial: AcceptPartial = None,
    shadow: Annotated[bool, typer.Option("--shadow", help="Run without writing to any sink.")] = False,
    directory: Annotated[
        Path | None,
        typer.Option(
            "--directory",
            metavar="DIR",
            help="Directory for state; the next run continues from it.  \\[default: a temporary directory]",
            show_default=False,
        ),
    ] = None,
    take_over: Annotated[
        bool, typer.Option("--take-over", help="Take the directory over from another run, which is fenced and ends.")
    ] = False,
    abort_transaction: Annotated[
        list[str] | None,
        typer.Option(
            "--abort-transaction",
            metavar="SINK:EPOCH",
            help="Drop the rows of an epoch that the target of SINK refuses, in this sink only. Requires --directory.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Run FILE on this machine until its sources end or Ctrl-C, without a control plane."""
    output = Output.make(as_json)
    values, settings = parameters(parameter, parameters_file), configuration(setting, allow_dropped_state)
    # Spark and the catalog are imported here so that other commands start quickly.
    from epochal.cli.local_run import code_of_file, run_locally
    from epochal.pipeline.runner import RunOptions

    check_java(os.environ)
    options = RunOptions(
        epochs=epochs,
        available_now=available_now,
        drain=drain,
        directory=directory,
        take_over=take_over,
        configuration={"state_backend": state_backend, **settings},
        shadow=shadow,
        **acceptance(accept_changed, accept_partial),
        aborted=tuple(map(_transaction, abort_transaction or ())),
    )
    outcome = run_locally(code_of_file(file, values), options, output)
    kept = "" if directory is None else f"; its state is in {directory}"
    number = len(outcome.epochs)
    ended = f"after {number} {'epoch' if number == 1 else 'epochs'}, {formatting.count(outcome.rows_in)} rows in{kept}."
    drained = " The pipeline is drained: all input has ended." if outcome.drained else ""
    output.result(outcome, Text(f"{'Stopped' if outcome.interrupted else 'Done'} {ended}{drained}"))


@app.command()
def check(
    file: File,
    parameter: Parameter = None,
    parameters_file: ParametersFile = None,
    setting: Setting = None,
    as_json: Json = False,
) -> None:
    """Analyse FILE with empty inputs, and print its graph or the first error with its position and a remedy."""
    output = Output.make(as_json)
    values, settings = parameters(parameter, parameters_file), configuration(setting)
    # Spark is imported here so that other commands start quickly, and after all checks that need no Spark.
    from epochal.cli.graph_view import graph_tree
    from epochal.pipeline.artifact import load

    artifact = load(file)
    graph = artifact.graph(values)
    with output.busy(f"Analysing {file.name}"):
        from epochal.cli.local_spark import local_spark
        from epochal.pipeline.analysis import analyse, check_graph, relative_paths
        from epochal.wire.configuration import merged_configuration

        chosen = merged_configuration({}, settings)
        check_graph(graph)
        check_java(os.environ)
        with local_spark(graph.name, chosen.model_copy(update={"master": "local[1]"})) as spark:
            description = analyse(graph, spark, chosen).description
    output.result(description, graph_tree(description))
    for warning in description.warnings:
        output.warn(warning)
    for message in relative_paths(graph):
        output.warn(f"{message} `epochal run` resolves it in the working directory; `epochal submit` refuses it.")
    for note in description.notes:
        output.note(Text.assemble(("note: ", "cyan"), note))
    output.note(f"{file.name} is valid.")


@app.command()
def dev(
    file: File,
    parameter: Parameter = None,
    parameters_file: ParametersFile = None,
    setting: Setting = None,
    rows: Annotated[
        int, typer.Option("--rows", min=0, help="Number of rows to print of each sink and state table.")
    ] = 10,
    sample: Annotated[int, typer.Option("--sample", min=1, help="Number of rows to read from each source.")] = 1000,
    as_json: Json = False,
) -> None:
    """Run one epoch on a sample of the sources each time FILE is saved, until Ctrl-C.

    Nothing is written to sinks, and no state is stored. Errors are printed, and FILE is watched further. With --json,
    one JSON document per line.
    """
    output = Output.make(as_json)
    passed, settings = parameters(parameter, parameters_file), configuration(setting)
    # Spark is imported here so that other commands start quickly.
    from epochal.cli.local_run import checked_configuration
    from epochal.cli.local_spark import local_spark
    from epochal.cli.notebook import QUICK
    from epochal.cli.sample import Development, saved

    check_java(os.environ)
    chosen = checked_configuration({**QUICK, **settings})
    with ExitStack() as stack, suppress(KeyboardInterrupt):
        with output.busy("Starting Spark"):
            spark = stack.enter_context(local_spark("dev", chosen))
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, _end)  # after the start of Spark, which installs its own handler
        development = Development(file, passed, rows, sample, spark, chosen, output)
        output.note(Text(f"{file.name} runs on a sample each time it is saved; Ctrl-C stops.", style="dim"))
        for _ in saved(file):
            development.run()


def _transaction(text: str) -> tuple[str, int]:
    sink, _, epoch = text.rpartition(":")
    if not sink or not epoch.isdecimal():
        raise OptionError(f"--abort-transaction takes SINK:EPOCH, such as out:7; got {text!r}.")
    return sink, int(epoch)


def _end(_number: int, _frame: Any) -> None:
    """Exit immediately, without the messages of Spark's client about interrupted calls."""
    logging.disable()
    raise KeyboardInterrupt
