"""``logs``: what an application's driver writes."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from epochal.cli.options import Json, Name, Url
from epochal.cli.session import connected

app = typer.Typer()


@app.command()
def logs(
    name: Name,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes, until Ctrl-C.")] = False,
    tail: Annotated[int, typer.Option("--tail", "-n", min=0, help="Begin with so many last lines.")] = 200,
    attempt: Annotated[int | None, typer.Option("--attempt", min=1, help="The log of this attempt.")] = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Print the driver's log. With --json and --follow: one JSON document per line."""
    with connected(url, as_json) as session:
        lines = session.client.application(name).logs(tail=tail, follow=follow, attempt=attempt)
        if as_json and not follow:
            session.output.document({"lines": list(lines)})
            return
        try:
            for line in lines:
                if as_json:
                    session.output.line({"line": line})
                else:
                    sys.stdout.write(line + "\n")
                    sys.stdout.flush()
        except KeyboardInterrupt:
            if not follow:
                raise
