"""``artifacts list | delete``."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from epochal.cli import words
from epochal.cli.listing import Column, Listing
from epochal.cli.options import Json, Limit, Url
from epochal.cli.session import connected
from epochal.client import Client
from epochal.errors import InvalidInput, NotFound

app = typer.Typer(help="Registered code.", no_args_is_help=True)

_WHOLE = 64


@app.command("list")
def list_artifacts(limit: Limit = 20, url: Url = None, as_json: Json = False) -> None:
    """List the registered code, newest first."""
    with connected(url, as_json) as session:
        artifacts = session.client.artifacts.list(limit)
        table = Listing(Column("sha256"), Column("file", flexible=True), Column("bytes"), Column("uploaded"))
        for artifact in artifacts:
            age = words.age(artifact.created_at)
            table.add(words.code(artifact.sha256), Text(artifact.filename, style="bold"), str(artifact.bytes), age)
        session.output.result(artifacts, table)


@app.command()
def delete(
    sha256: Annotated[
        str, typer.Argument(metavar="SHA256", help="As `epochal artifacts list` shows it; its beginning is enough.")
    ],
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Delete code that no version of any application is made of."""
    with connected(url, as_json) as session:
        found = _whole(session.client, sha256)
        session.client.artifacts.delete(found)
        session.output.result({"deleted": found}, Text(f"Artifact {words.code(found)} is deleted."))


def _whole(client: Client, beginning: str) -> str:
    if len(beginning) == _WHOLE:
        return beginning
    found = [artifact.sha256 for artifact in client.artifacts.list() if artifact.sha256.startswith(beginning)]
    if not found:
        raise NotFound(f"There is no artifact {beginning!r}; `epochal artifacts list` shows them.")
    if len(found) > 1:
        raise InvalidInput(f"{len(found)} artifacts begin with {beginning!r}; give more of it.")
    return found[0]
