"""``check``: what can be found wrong with a pipeline without running it."""

from __future__ import annotations

import os

import typer
from rich.text import Text

from epochal.cli.options import File, Json, Parameter, ParametersFile, parameters
from epochal.cli.output import Output
from epochal.service.runtime.launchers.java import check_java

app = typer.Typer()


@app.command()
def check(
    file: File, parameter: Parameter = None, parameters_file: ParametersFile = None, as_json: Json = False
) -> None:
    """Analyse FILE against empty inputs and print its graph, or the first error: where, what, and the fix."""
    output = Output.make(as_json)
    values = parameters(parameter, parameters_file)
    # Spark is imported here only, so that every other command starts quickly; and last, after all that needs no Spark.
    from epochal.cli.graph_view import graph_tree
    from epochal.pipeline.artifact import load

    artifact = load(file)
    graph = artifact.graph(values)
    with output.busy(f"Analysing {file.name}"):
        from epochal.cli.local_spark import local_spark
        from epochal.engine.settings import Configuration
        from epochal.pipeline.analysis import analyse

        check_java(os.environ)
        with local_spark(graph.name, Configuration(master="local[1]")) as spark:
            description = analyse(graph, spark).description
    output.result(description, graph_tree(description))
    for warning in description.warnings:
        output.warn(warning)
    for note in description.notes:
        output.note(Text.assemble(("note: ", "cyan"), note))
    output.note(f"{file.name} is valid.")
