"""``tokens create | list | rotate | delete``."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer
from rich.text import Text

from epochal.cli import words
from epochal.cli.listing import Column, Listing
from epochal.cli.options import Json, Url
from epochal.cli.session import connected
from epochal.client.models import Token
from epochal.wire.tokens import Role, Scope

app = typer.Typer(help="Access tokens (needs an admin token).", no_args_is_help=True)


@app.command()
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Whose or what for.")],
    role: Annotated[
        Role,
        typer.Option("--role", help="viewer < operator (starts, stops, rolls back) < author (submits code) < admin."),
    ] = Role.VIEWER,
    scope: Annotated[
        Scope | None,
        typer.Option("--scope", help="Instead of a role: read (viewer), operate (author), admin.", hidden=True),
    ] = None,
    days: Annotated[float | None, typer.Option("--days", min=0, help="Expires after so many days.")] = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Make a token. It is printed once; only its hash is kept."""
    with connected(url, as_json) as session:
        granted = role if scope is None else scope.role
        token = session.client.tokens.create(name, expires_at=_expiry(days), role=granted.value)
        session.output.note(f"Keep this token of {name} ({_roles(token)}); it is not shown again:")
        session.output.result(token, Text(token.token or "", overflow="fold"))


@app.command("list")
def list_tokens(url: Url = None, as_json: Json = False) -> None:
    """List the tokens; never their texts."""
    with connected(url, as_json) as session:
        tokens = session.client.tokens.list()
        table = Listing(Column("id"), Column("name", flexible=True), Column("role"), Column("made"), Column("expires"))
        for token in tokens:
            expires = "never" if token.expires_at is None else token.expires_at.strftime("%Y-%m-%d %H:%M")
            table.add(token.id, Text(token.name, style="bold"), _roles(token), words.age(token.created_at), expires)
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
    """Replace a token by a new one of the same name and roles; the old one is refused from now on."""
    with connected(url, as_json) as session:
        token = session.client.tokens.rotate(id, _expiry(days))
        session.output.note(f"Keep this token of {token.name} ({_roles(token)}); it is not shown again:")
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


def _roles(token: Token) -> str:
    """The role alone where there is one project; the scope, where the control plane knows no roles yet."""
    if set(token.roles) == {"default"}:
        return token.roles["default"]
    return ", ".join(f"{role} in {project}" for project, role in sorted(token.roles.items())) or str(token.scope)


def _expiry(days: float | None) -> datetime | None:
    return None if days is None else datetime.now(UTC) + timedelta(days=days)
