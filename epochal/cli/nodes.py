"""``nodes``: which control planes and query nodes there are."""

from __future__ import annotations

import typer

from epochal.cli import words
from epochal.cli.listing import Column, Listing
from epochal.cli.options import Json, Url
from epochal.cli.session import connected

app = typer.Typer()


@app.command()
def nodes(url: Url = None, as_json: Json = False) -> None:
    """List the control planes and query nodes of a catalog."""
    with connected(url, as_json) as session:
        found = session.client.nodes.list()
        table = Listing(
            Column("url", flexible=True),
            Column("role"),
            Column("state"),
            Column("version"),
            Column("host", flexible=True),
            Column("started"),
            Column("heard"),
            Column("drivers", flexible=True, optional=True),
        )
        for node in found:
            table.add(
                node.url,
                node.role,
                node.state,
                node.version,
                node.host,
                words.age(node.started_at),
                words.age(node.heartbeat_at),
                node.internal_url or "",
            )
        session.output.result(found, table)
