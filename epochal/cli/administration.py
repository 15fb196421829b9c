"""``tokens create | list | rotate | delete``, ``sessions list | end``, ``nodes`` and ``audit``."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer
from rich.console import Group
from rich.text import Text

from epochal.cli import formatting
from epochal.cli.formatting import Column, Listing
from epochal.cli.options import Json, Limit, Url, moment
from epochal.cli.session import connected
from epochal.client.models import AuditEntry, Token
from epochal.wire.tokens import Role

tokens_app = typer.Typer(help="Manage access tokens (requires an admin token).", no_args_is_help=True)


@tokens_app.command()
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the token.")],
    role: Annotated[
        Role,
        typer.Option("--role", help="viewer < operator (start, stop, roll back) < author (submit code) < admin."),
    ] = Role.VIEWER,
    days: Annotated[
        float | None, typer.Option("--days", min=0, help="Lifetime in days.  \\[default: unlimited]")
    ] = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Create a token. The token is printed once; the control plane stores only its hash."""
    with connected(url, as_json) as session:
        token = session.client.tokens.create(name, expires_at=_expiry(days), role=role.value)
        session.output.note(f"Token {name} ({_roles(token)}). Store it now; it is not shown again:")
        session.output.result(token, Text(token.token or "", overflow="fold"))


@tokens_app.command("list")
def list_tokens(url: Url = None, as_json: Json = False) -> None:
    """List tokens by name, without their secrets."""
    with connected(url, as_json) as session:
        tokens = session.client.tokens.list()
        table = Listing(
            Column("id"), Column("name", flexible=True), Column("role"), Column("created"), Column("expires")
        )
        for token in tokens:
            expires = "never" if token.expires_at is None else token.expires_at.strftime("%Y-%m-%d %H:%M")
            table.add(
                token.id, Text(token.name, style="bold"), _roles(token), formatting.age(token.created_at), expires
            )
        session.output.result(tokens, table)


@tokens_app.command()
def rotate(
    id: Annotated[str, typer.Argument(metavar="ID", help="The token's id, as `epochal tokens list` shows it.")],
    days: Annotated[
        float | None,
        typer.Option(
            "--days", min=0, help="Lifetime of the new token in days.  \\[default: the expiry of the old one]"
        ),
    ] = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Replace a token by a new one with the same name and roles, and revoke the old one."""
    with connected(url, as_json) as session:
        token = session.client.tokens.rotate(id, _expiry(days))
        session.output.note(f"Token {token.name} ({_roles(token)}). Store it now; it is not shown again:")
        session.output.result(token, Text(token.token or "", overflow="fold"))
        if token.file is not None:
            session.output.note(f"The file {token.file} on the control plane's machine contains the new token.")


@tokens_app.command()
def delete(
    id: Annotated[str, typer.Argument(metavar="ID", help="The token's id, as `epochal tokens list` shows it.")],
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Revoke a token permanently."""
    with connected(url, as_json) as session:
        session.client.tokens.delete(id)
        session.output.result({"deleted": id}, Text(f"Token {id} is revoked."))


def _roles(token: Token) -> str:
    """The role alone, if the token has a role in ``default`` only."""
    if set(token.roles) == {"default"}:
        return token.roles["default"]
    return ", ".join(f"{role} in {project}" for project, role in sorted(token.roles.items()))


def _expiry(days: float | None) -> datetime | None:
    return None if days is None else datetime.now(UTC) + timedelta(days=days)


sessions_app = typer.Typer(help="List and end sessions of browsers.", no_args_is_help=True)


@sessions_app.command("list")
def list_sessions(url: Url = None, as_json: Json = False) -> None:
    """List the caller's sessions, newest first; those of everyone for an administrator of the installation."""
    with connected(url, as_json) as session:
        found = session.client.sessions.list()
        table = Listing(
            Column("id"),
            Column("caller", flexible=True),
            Column("address", flexible=True),
            Column("begun"),
            Column("last used"),
            Column("ends"),
        )
        for each in found:
            table.add(
                each.id,
                each.name,
                each.address or "",
                formatting.age(each.created_at),
                formatting.age(each.last_used_at),
                formatting.moment(each.expires_at),
            )
        session.output.result(found, table)


@sessions_app.command("end")
def end_session(
    id: Annotated[str, typer.Argument(metavar="ID", help="The session's id, as `epochal sessions list` shows it.")],
    url: Url = None,
    as_json: Json = False,
) -> None:
    """End a session: its browser is signed out."""
    with connected(url, as_json) as session:
        session.client.sessions.end(id)
        session.output.result({"ended": id}, Text(f"Session {id} has ended."))


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
            Column("last heartbeat"),
            Column("drivers", flexible=True, optional=True),
        )
        for node in found:
            table.add(
                node.url,
                node.role,
                node.state,
                node.version,
                node.host,
                formatting.age(node.started_at),
                formatting.age(node.heartbeat_at),
                node.internal_url or "",
            )
        session.output.result(found, table)


@app.command()
def audit(
    limit: Limit = 20,
    token: Annotated[str | None, typer.Option("--token", metavar="NAME", help="Calls of this token or person.")] = None,
    action: Annotated[
        str | None,
        typer.Option(
            "--action", metavar="ACTION", help="Calls of this action, such as 'POST /v1/applications/{name}/stop'."
        ),
    ] = None,
    application: Annotated[
        str | None, typer.Option("--app", metavar="APP", help="Calls that concern this application.")
    ] = None,
    since: Annotated[str | None, typer.Option("--since", metavar="TIME", help="Calls at this time or later.")] = None,
    until: Annotated[str | None, typer.Option("--until", metavar="TIME", help="Calls before this time.")] = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """List mutating calls, including refused ones, newest first (requires an admin token)."""
    with connected(url, as_json) as session:
        found = session.client.audit.list(
            limit,
            token=token,
            action=action,
            application=application,
            since=moment(since, "--since"),
            until=moment(until, "--until"),
        )
        session.output.result(found, Group(*(_shown(entry) for entry in found)))


def _shown(entry: AuditEntry) -> Text:
    method, _, _ = entry.action.partition(" ")
    text = Text(f"{formatting.moment(entry.at)}  ", overflow="fold")
    text.append(entry.token or "unauthenticated", style="bold")
    text.append(f" from {entry.address}" if entry.address else "", style="dim")
    text.append(f"  {method} {entry.target}  ")
    text.append(str(entry.outcome), style="red" if entry.outcome >= 400 else "")
    for change in entry.changes:
        text.append(f"\n    {change.subject}: {change.field} {formatting.difference(change.before, change.after)}")
    if entry.changes_left_out:
        text.append(f"\n    {entry.changes_left_out} further changes", style="dim")
    return text
