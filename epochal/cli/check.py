"""``check``: what can be found wrong with a pipeline without running it."""

from __future__ import annotations

import os

import typer
from rich.text import Text

from epochal.cli.options import File, Json, Parameter, ParametersFile, Setting, configuration, parameters
from epochal.cli.output import Output
from epochal.service.runtime.launchers.java import check_java

app = typer.Typer()


@app.command()
def check(
    file: File,
    parameter: Parameter = None,
    parameters_file: ParametersFile = None,
    setting: Setting = None,
    as_json: Json = False,
) -> None:
    """Analyse FILE against empty inputs and print its graph, or the first error: where, what, and the fix."""
    output = Output.make(as_json)
    values, settings = parameters(parameter, parameters_file), configuration(setting)
    # Spark is imported here only, so that every other command starts quickly; and last, after all that needs no Spark.
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
        output.warn(f"{message} `epochal run` takes it from the working directory; `epochal submit` refuses it.")
    for note in description.notes:
        output.note(Text.assemble(("note: ", "cyan"), note))
    output.note(f"{file.name} is valid.")
