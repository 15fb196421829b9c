"""``tokens create | list | rotate | delete``."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Annotated

import typer
from rich.text import Text

from epochal.cli import words
from epochal.cli.listing import Column, Listing
from epochal.cli.options import Json, Url
from epochal.cli.session import connected

app = typer.Typer(help="Access tokens (needs an admin token).", no_args_is_help=True)


class ScopeName(StrEnum):
    """What a token allows; each scope includes the one before."""

    read = "read"
    operate = "operate"
    admin = "admin"


@app.command()
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Whose or what for.")],
    scope: Annotated[
        ScopeName, typer.Option("--scope", help="read < operate (submits and runs code) < admin.")
    ] = ScopeName.read,
    days: Annotated[float | None, typer.Option("--days", min=0, help="Expires after so many days.")] = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Make a token. It is printed once; only its hash is kept."""
    with connected(url, as_json) as session:
        token = session.client.tokens.create(name, scope.value, _expiry(days))
        session.output.note(f"Keep this token of {name} ({scope.value}); it is not shown again:")
        session.output.result(token, Text(token.token or "", overflow="fold"))


@app.command("list")
def list_tokens(url: Url = None, as_json: Json = False) -> None:
    """List the tokens; never their texts."""
    with connected(url, as_json) as session:
        tokens = session.client.tokens.list()
        table = Listing(Column("id"), Column("name", flexible=True), Column("scope"), Column("made"), Column("expires"))
        for token in tokens:
            expires = "never" if token.expires_at is None else token.expires_at.strftime("%Y-%m-%d %H:%M")
            table.add(token.id, Text(token.name, style="bold"), token.scope, words.age(token.created_at), expires)
        session.output.result(tokens, table)


@app.command()
def rotate(
    id: Annotated[str, typer.Argument(metavar="ID", help="The token's id, as `epochal tokens list` shows it.")],
    days: Annotated[
        float | None,
        typer.Option("--days", min=0, help="The new one expires after so many days.  [default: as the old]"),
    ] = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Replace a token by a new one of the same name and scope; the old one is refused from now on."""
    with connected(url, as_json) as session:
        token = session.client.tokens.rotate(id, _expiry(days))
        session.output.note(f"Keep this token of {token.name} ({token.scope}); it is not shown again:")
        session.output.result(token, Text(token.token or "", overflow="fold"))
        if token.file is not None:
            session.output.note(f"{token.file} on the control plane's machine holds it, too.")


@app.command()
def delete(
    id: Annotated[str, typer.Argument(metavar="ID", help="The token's id, as `epochal tokens list` shows it.")],
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Revoke a token for good; it is refused from now on."""
    with connected(url, as_json) as session:
        session.client.tokens.delete(id)
        session.output.result({"deleted": id}, Text(f"Token {id} is deleted."))


def _expiry(days: float | None) -> datetime | None:
    return None if days is None else datetime.now(UTC) + timedelta(days=days)
