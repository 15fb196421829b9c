"""``dev``: the author's loop without the waiting. A sample runs each time the file is saved; Spark stays."""

from __future__ import annotations

import logging
import os
import signal
from contextlib import ExitStack, suppress
from typing import Annotated, Any

import typer
from rich.text import Text

from epochal.cli.options import (
    File,
    Json,
    Parameter,
    ParametersFile,
    Setting,
    configuration,
    parameters,
)
from epochal.cli.output import Output
from epochal.service.runtime.launchers.java import check_java

app = typer.Typer()


@app.command()
def dev(
    file: File,
    parameter: Parameter = None,
    parameters_file: ParametersFile = None,
    setting: Setting = None,
    rows: Annotated[int, typer.Option("--rows", min=0, help="Print so many rows of each sink and state table.")] = 10,
    sample: Annotated[int, typer.Option("--sample", min=1, help="Read so many rows of each source.")] = 1000,
    as_json: Json = False,
) -> None:
    """Watch FILE: each time it is saved, run one epoch over a sample of its sources, until Ctrl-C.

    Nothing is written to any sink, and no state is kept. What is wrong is said, and FILE is watched on. With --json:
    one JSON document per line.
    """
    output = Output.make(as_json)
    passed, settings = parameters(parameter, parameters_file), configuration(setting)
    # Spark is imported here only, so that every other command starts quickly.
    from epochal.cli.developing import Development, saved
    from epochal.cli.local_run import checked_configuration
    from epochal.cli.local_spark import local_spark
    from epochal.cli.notebook import QUICK

    check_java(os.environ)
    chosen = checked_configuration({**QUICK, **settings})
    with ExitStack() as stack, suppress(KeyboardInterrupt):
        with output.busy("Starting Spark"):
            spark = stack.enter_context(local_spark("dev", chosen))
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, _end)  # after Spark's start, which installs a handler of its own
        development = Development(file, passed, rows, sample, spark, chosen, output)
        output.note(Text(f"{file.name} runs on a sample each time it is saved; Ctrl-C ends it.", style="dim"))
        for _ in saved(file):
            development.run()


def _end(_number: int, _frame: Any) -> None:
    """At once: nothing is kept. What Spark's client logs of a call that is cut short would only be in the way."""
    logging.disable()
    raise KeyboardInterrupt
