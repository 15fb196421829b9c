"""``sdg explain``: the dataflow graph of a program."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import Annotated

import typer

from epochal.cli.options import File, Json
from epochal.cli.output import Output
from epochal.errors import InvalidInput

app = typer.Typer(help="Programs: classes with state and entries (docs/reference/programs.md).", no_args_is_help=True)


class Format(StrEnum):
    """Output formats of a dataflow."""

    TEXT = "text"
    DOT = "dot"
    SVG = "svg"


@app.callback()
def _group() -> None:
    pass


@app.command()
def explain(
    file: File,
    format: Annotated[Format, typer.Option("--format", help="Text, Graphviz (dot) or SVG.")] = Format.TEXT,
    program: Annotated[
        str | None, typer.Option("--program", metavar="CLASS", help="Name of the program, if FILE has several.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Translate the program in FILE and print its dataflow, or the line, the reason and a remedy if it is refused."""
    output = Output.make(as_json)
    # NumPy is imported here so that other commands start quickly.
    from epochal.cli.dataflow_view import dataflow_document, dataflow_tree
    from epochal.pipeline.artifact import load_code
    from epochal.programs.svg import dot, svg
    from epochal.programs.translation import programs_in, translate

    found = {each.__name__: each for each in programs_in(load_code(file).module)}
    if not found:
        raise InvalidInput(f"{file.name} has no program: decorate its class with @program.")
    if program is None and len(found) > 1:
        raise InvalidInput(f"{file.name} has several programs; choose one with --program: {', '.join(found)}.")
    chosen = program or next(iter(found))
    if chosen not in found:
        raise InvalidInput(f"{file.name} has no program {chosen!r}. Programs of the file: {', '.join(found)}.")
    dataflow = translate(found[chosen])
    if format is Format.TEXT or as_json:
        output.result(dataflow_document(dataflow), lambda: dataflow_tree(dataflow, file))
    else:
        sys.stdout.write(svg(dataflow) if format is Format.SVG else dot(dataflow))
