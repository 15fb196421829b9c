"""``login``, ``logout``, ``context list | use``: people at an identity provider, and the control planes they use."""

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
context_app = typer.Typer(help="Control planes that you have logged in to.", no_args_is_help=True)

ContextName = Annotated[str, typer.Argument(metavar="CONTEXT", help="As `epochal context list` shows it.")]


@app.command()
def login(
    issuer: Annotated[
        str, typer.Option(metavar="URL", envvar="EPOCHAL_OIDC_ISSUER", help="The identity provider, as `iss` names it.")
    ],
    client: Annotated[
        str, typer.Option("--client-id", metavar="ID", envvar="EPOCHAL_OIDC_CLIENT", help="Epochal's id there.")
    ],
    scopes: Annotated[str, typer.Option("--scopes", help="What is asked for there.")] = "openid offline_access",
    id_token: Annotated[
        bool, typer.Option("--id-token", help="Show the control plane the ID token, not the access token.")
    ] = False,
    name: Annotated[
        str | None, typer.Option("--name", help="Of the context.  [default: the control plane's URL]")
    ] = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Log in to a control plane in a browser, here or elsewhere; other commands use it from then on."""
    output = Output.make(as_json)
    address = address_of(url)
    with closing(Provider(issuer, client, id_token)) as provider:
        invitation = provider.invite(scopes)
        output.notes.print(f"Open {invitation.url} and log in; the code is {invitation.code}")
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
    name: Annotated[str | None, typer.Argument(metavar="CONTEXT", help="[default: the current one]")] = None,
    as_json: Json = False,
) -> None:
    """Forget a login, and have the identity provider take it back where it can."""
    output = Output.make(as_json)
    with changed_contexts() as contexts:
        called = name or contexts.current
        context = None if called is None else contexts.contexts.pop(called, None)
        if called is None or context is None:
            raise NotFound("You are logged in nowhere." if called is None else f"There is no context {called!r}.")
        if contexts.current == called:
            contexts.current = None
    revoked = False
    if context.refresh_token is not None:
        try:
            with closing(context.provider()) as provider:
                revoked = provider.revoke(context.refresh_token)
        except (IssuerUnavailable, Unauthenticated) as error:
            output.note(f"The identity provider has not taken the login back: {error.message}")
    output.result({"context": called, "revoked": revoked}, Text(f"Logged out of {context.url}."))


@context_app.command("list")
def list_contexts(as_json: Json = False) -> None:
    """List them; never their tokens."""
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
        str | None, typer.Option("--project", help="Which project is meant there from now on.  [default: as before]")
    ] = None,
    as_json: Json = False,
) -> None:
    """Which control plane is meant from now on, where neither --url nor EPOCHAL_URL says it."""
    output = Output.make(as_json)
    with changed_contexts() as contexts:
        if name not in contexts.contexts:
            raise NotFound(f"There is no context {name!r}; `epochal context list` shows those that there are.")
        contexts.current = name
        if project is not None:
            contexts.contexts[name].project = project_at(contexts.contexts[name].url, project)
        url = contexts.contexts[name].url
    output.result({"context": name, "url": url}, Text(f"Commands are for {url} from now on."))
