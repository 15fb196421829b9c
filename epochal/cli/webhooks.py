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

app = typer.Typer(help="Manage webhooks, which post events to URLs (requires an admin token).", no_args_is_help=True)


class KindName(StrEnum):
    """Kinds of events."""

    epoch_committed = "epoch.committed"
    epoch_aborted = "epoch.aborted"
    attempt_failed = "attempt.failed"
    application_failed = "application.failed"


@app.command()
def create(
    target: Annotated[str, typer.Argument(metavar="URL", help="URL that receives events.")],
    kind: Annotated[list[KindName], typer.Option("--kind", "-k", help="Kind of events to post. Repeatable.")],
    application: Annotated[
        list[str] | None, typer.Option("--app", metavar="APP", help="Post events of this application only. Repeatable.")
    ] = None,
    secret: Annotated[
        str | None,
        typer.Option(
            "--secret", envvar="EPOCHAL_WEBHOOK_SECRET", help="Secret for signatures.  \\[default: a new one]"
        ),
    ] = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Create a webhook. The secret for its signatures is printed once."""
    with connected(url, as_json) as session:
        kinds = [item.value for item in kind]
        webhook = session.client.webhooks.create(target, kinds, applications=application or None, secret=secret)
        session.output.note(f"Webhook {webhook.id}. Store its secret, with which deliveries are signed, now:")
        session.output.result(webhook, Text(webhook.secret or "", overflow="fold"))


@app.command("list")
def list_webhooks(url: Url = None, as_json: Json = False) -> None:
    """List webhooks with their state and the number of waiting events."""
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
    id: Annotated[str, typer.Argument(metavar="ID", help="Id of the webhook: `epochal webhooks list`.")],
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Delete a webhook and its waiting events."""
    with connected(url, as_json) as session:
        session.client.webhooks.delete(id)
        session.output.result({"deleted": id}, Text(f"Webhook {id} is deleted."))
