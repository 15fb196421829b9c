"""``run``: the author's loop. One pipeline on a local Spark, without any service."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from epochal.cli import words
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
    epochs: Annotated[int | None, typer.Option("--epochs", min=1, help="Stop after so many epochs.")] = None,
    available_now: AvailableNow = False,
    drain: Drain = True,
    state_backend: Annotated[str, typer.Option(help="Where executors cache state: heap or lmdb.")] = "heap",
    accept_changed: AcceptChanged = None,
    accept_partial: AcceptPartial = None,
    shadow: Annotated[bool, typer.Option("--shadow", help="Run without writing to any sink.")] = False,
    directory: Annotated[
        Path | None,
        typer.Option(
            "--directory",
            metavar="DIR",
            help="Keep state here, and go on from it next time.  [default: a temporary one, deleted at the end]",
            show_default=False,
        ),
    ] = None,
    take_over: Annotated[
        bool, typer.Option("--take-over", help="Take the directory from a run that holds it, which is fenced and ends.")
    ] = False,
    abort_transaction: Annotated[
        list[str] | None,
        typer.Option(
            "--abort-transaction",
            metavar="SINK:EPOCH",
            help="Drop an epoch's rows that the target of SINK refuses, in this sink alone; with --directory.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Run FILE here, epoch by epoch, until its sources end or Ctrl-C; no control plane is needed."""
    output = Output.make(as_json)
    values, settings = parameters(parameter, parameters_file), configuration(setting, allow_dropped_state)
    # Spark and the catalog are imported here only, so that every other command starts quickly.
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
    kept = "" if directory is None else f"; its state is kept in {directory}"
    number = len(outcome.epochs)
    ended = f"after {number} {'epoch' if number == 1 else 'epochs'}, {words.count(outcome.rows_in)} rows in{kept}."
    drained = " Its input has ended, and everything that waited has come out." if outcome.drained else ""
    output.result(outcome, Text(f"{'Stopped' if outcome.interrupted else 'Done'} {ended}{drained}"))


def _transaction(text: str) -> tuple[str, int]:
    sink, _, epoch = text.rpartition(":")
    if not sink or not epoch.isdecimal():
        raise OptionError(f"--abort-transaction takes SINK:EPOCH, such as out:7; got {text!r}.")
    return sink, int(epoch)
