"""``audit``: who has changed what."""

from __future__ import annotations

import typer
from rich.console import Group
from rich.text import Text

from epochal.cli import words
from epochal.cli.options import Json, Limit, Url
from epochal.cli.session import connected
from epochal.client.models import AuditRecord

app = typer.Typer()


@app.command()
def audit(
    limit: Limit = 20,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """List the calls that changed something, or were refused to, newest first (needs an admin token)."""
    with connected(url, as_json) as session:
        found = session.client.audit.list(limit)
        session.output.result(found, Group(*(_shown(entry) for entry in found)))


def _shown(entry: AuditRecord) -> Text:
    method, _, _ = entry.action.partition(" ")
    text = Text(f"{words.moment(entry.at)}  ", overflow="fold")
    text.append(entry.token or "nobody", style="bold")
    text.append(f" from {entry.address}" if entry.address else "", style="dim")
    text.append(f"  {method} {entry.target}  ")
    text.append(str(entry.outcome), style="red" if entry.outcome >= 400 else "")
    for change in entry.changes:
        text.append(f"\n    {change.subject}: {change.field} {words.difference(change.before, change.after)}")
    if entry.changes_left_out:
        text.append(f"\n    and {entry.changes_left_out} more", style="dim")
    return text
