"""``login``, ``logout``, ``context list | use``: logins through an identity provider."""

from __future__ import annotations

from contextlib import closing
from typing import Annotated

import typer
from rich.text import Text

from epochal.cli.formatting import Column, Listing
from epochal.cli.options import Json, Url
from epochal.cli.output import Output
from epochal.client.device_login import Provider
from epochal.client.location import Context, address_of, changed_contexts, project_at, read_contexts
from epochal.errors import IssuerUnavailable, NotFound, Unauthenticated

app = typer.Typer()
context_app = typer.Typer(help="List and select control planes that you have logged in to.", no_args_is_help=True)

ContextName = Annotated[str, typer.Argument(metavar="CONTEXT", help="Name of the context: `epochal context list`.")]


@app.command()
def login(
    issuer: Annotated[
        str, typer.Option(metavar="URL", envvar="EPOCHAL_OIDC_ISSUER", help="Issuer URL of the identity provider.")
    ],
    client: Annotated[
        str,
        typer.Option(
            "--client-id", metavar="ID", envvar="EPOCHAL_OIDC_CLIENT", help="Client id of Epochal at the provider."
        ),
    ],
    scopes: Annotated[str, typer.Option("--scopes", help="Scopes to request.")] = "openid offline_access",
    id_token: Annotated[
        bool, typer.Option("--id-token", help="Send the ID token to the control plane instead of the access token.")
    ] = False,
    name: Annotated[
        str | None, typer.Option("--name", help="Name of the context.  \\[default: the control plane's URL]")
    ] = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Log in to a control plane with a browser on any device, and make it the current context."""
    output = Output.make(as_json)
    address = address_of(url)
    with closing(Provider(issuer, client, id_token)) as provider:
        invitation = provider.invite(scopes)
        output.notes.print(f"Open {invitation.url} and log in with the code {invitation.code}")
        with output.busy("Waiting for the login"):
            grant = provider.wait(invitation)
    context = Context(url=address, issuer=issuer, client=client, id_token=id_token, token="")
    context.take(grant)
    called = name or address
    with changed_contexts() as contexts:
        contexts.contexts[called] = context
        contexts.current = called
    output.result({"context": called, "url": address}, Text(f"Logged in to {address}."))


@app.command()
def logout(
    name: Annotated[
        str | None, typer.Argument(metavar="CONTEXT", help="Name of the context.  \\[default: the current one]")
    ] = None,
    as_json: Json = False,
) -> None:
    """Delete a login, and revoke it at the identity provider if the provider supports revocation."""
    output = Output.make(as_json)
    with changed_contexts() as contexts:
        called = name or contexts.current
        context = None if called is None else contexts.contexts.pop(called, None)
        if called is None or context is None:
            raise NotFound("There is no current context." if called is None else f"There is no context {called!r}.")
        if contexts.current == called:
            contexts.current = None
    revoked = False
    if context.refresh_token is not None:
        try:
            with closing(context.provider()) as provider:
                revoked = provider.revoke(context.refresh_token)
        except (IssuerUnavailable, Unauthenticated) as error:
            output.note(f"The identity provider has not revoked the login: {error.message}")
    output.result({"context": called, "revoked": revoked}, Text(f"Logged out of {context.url}."))


@context_app.command("list")
def list_contexts(as_json: Json = False) -> None:
    """List contexts, without their tokens."""
    output = Output.make(as_json)
    known = read_contexts()
    table = Listing(Column("name", flexible=True), Column("control plane"), Column("provider"), Column("current"))
    shown = []
    for called, context in sorted(known.contexts.items()):
        current = called == known.current
        shown.append({"name": called, "url": context.url, "issuer": context.issuer, "current": current})
        table.add(Text(called, style="bold"), context.url, context.issuer, "current" if current else "")
    output.result(shown, table)


@context_app.command()
def use(
    name: ContextName,
    project: Annotated[
        str | None, typer.Option("--project", help="Default project of the context.  \\[default: unchanged]")
    ] = None,
    as_json: Json = False,
) -> None:
    """Select the control plane that commands use without --url and EPOCHAL_URL."""
    output = Output.make(as_json)
    with changed_contexts() as contexts:
        if name not in contexts.contexts:
            raise NotFound(f"There is no context {name!r}; see `epochal context list`.")
        contexts.current = name
        if project is not None:
            contexts.contexts[name].project = project_at(contexts.contexts[name].url, project)
        url = contexts.contexts[name].url
    output.result({"context": name, "url": url}, Text(f"Commands now use {url}."))
