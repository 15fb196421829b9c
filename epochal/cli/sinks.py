"""``sink optimize``."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from epochal.cli import formatting
from epochal.cli.options import Json, Name, Url, Wait
from epochal.cli.session import connected
from epochal.client.models import Operation

app = typer.Typer(help="Maintain the tables that sinks write.", no_args_is_help=True)


@app.command()
def optimize(
    name: Name,
    sink: Annotated[str, typer.Argument(metavar="SINK", help="The sink's name.")],
    wait: Wait = True,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Compact the small files of the Delta table that a sink of a running application writes. Epochs continue."""
    with connected(url, as_json) as session:
        operation = session.client.application(name).sinks.optimize(sink)
        if not wait:
            session.output.result(operation, Text(f"Requested from the driver by operation {operation.id}."))
            return
        operation = session.wait(operation, f"Compacting the table of sink {sink}")
        session.output.result(operation, Text(said(sink, operation)))


def said(sink: str, operation: Operation) -> str:
    """The result of a compaction as a sentence."""
    result = operation.result or {}
    if not result.get("files_removed"):
        return f"The table of sink {sink} has no small files that could be compacted."
    before, after = formatting.size(result["bytes_removed"]), formatting.size(result["bytes_added"])
    version = "" if result["version"] is None else f", in version {result['version']}"
    return (
        f"{result['files_removed']} files ({before}) of the table of sink {sink} were replaced by "
        f"{result['files_added']} ({after}){version}."
    )
