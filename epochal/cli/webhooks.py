"""``webhooks create | list | delete``."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer
from rich.text import Text

from epochal.cli import formatting
from epochal.cli.formatting import Column, Listing
from epochal.cli.options import Json, Url
from epochal.cli.session import connected

app = typer.Typer(help="Post what happens to a URL (needs an admin token).", no_args_is_help=True)


class KindName(StrEnum):
    """What can be posted."""

    epoch_committed = "epoch.committed"
    epoch_aborted = "epoch.aborted"
    attempt_failed = "attempt.failed"
    application_failed = "application.failed"


@app.command()
def create(
    target: Annotated[str, typer.Argument(metavar="URL", help="Where events are posted to.")],
    kind: Annotated[list[KindName], typer.Option("--kind", "-k", help="Which events. Repeatable.")],
    application: Annotated[
        list[str] | None, typer.Option("--app", metavar="APP", help="Of this application only. Repeatable.")
    ] = None,
    secret: Annotated[
        str | None,
        typer.Option("--secret", envvar="EPOCHAL_WEBHOOK_SECRET", help="To sign with.  [default: a new one]"),
    ] = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Post events to URL from now on. The secret of its signatures is printed once."""
    with connected(url, as_json) as session:
        kinds = [item.value for item in kind]
        webhook = session.client.webhooks.create(target, kinds, applications=application or None, secret=secret)
        session.output.note(f"Webhook {webhook.id}. Keep its secret, with which deliveries are signed:")
        session.output.result(webhook, Text(webhook.secret or "", overflow="fold"))


@app.command("list")
def list_webhooks(url: Url = None, as_json: Json = False) -> None:
    """List the webhooks, how they do, and what waits for them."""
    with connected(url, as_json) as session:
        webhooks = session.client.webhooks.list()
        table = Listing(
            Column("id"),
            Column("url", flexible=True),
            Column("state"),
            Column("waiting", numeric=True),
            Column("delivered"),
            Column("error", flexible=True, optional=True),
        )
        for item in webhooks:
            delivered = "never" if item.delivered_at is None else formatting.age(item.delivered_at)
            table.add(item.id, item.url, item.state, str(item.waiting), delivered, item.last_error or "")
        session.output.result(webhooks, table)


@app.command()
def delete(
    id: Annotated[str, typer.Argument(metavar="ID", help="As `epochal webhooks list` shows it.")],
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Delete a webhook, with what waits to be delivered to it."""
    with connected(url, as_json) as session:
        session.client.webhooks.delete(id)
        session.output.result({"deleted": id}, Text(f"Webhook {id} is deleted."))
