"""``call``: an application's entries are called; ``entries``: which there are."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.text import Text

from epochal.cli.formatting import Column, Listing
from epochal.cli.options import Json, Name, Url
from epochal.cli.session import connected
from epochal.client.models import CallAnswer, EntryDescription
from epochal.errors import EpochalError, NotFound

app = typer.Typer()


@app.command()
def entries(name: Name, url: Url = None, as_json: Json = False) -> None:
    """List the entries by which an application can be called."""
    with connected(url, as_json) as session:
        found = session.client.application(name).entries.list()
        table = Listing(
            Column("entry"), Column("arguments", flexible=True), Column("returns"), Column("about", flexible=True)
        )
        for entry in found:
            table.add(entry.name, _arguments(entry), entry.returns or "", entry.description)
        session.output.result(found, table)


@app.command()
def call(
    name: Name,
    entry: Annotated[str, typer.Argument(metavar="ENTRY", help="The entry, as `epochal entries` lists it.")],
    arguments: Annotated[
        list[str] | None,
        typer.Option("--argument", "-a", metavar="NAME=VALUE", help="An argument: text, or JSON where it is no text."),
    ] = None,
    request_id: Annotated[
        str | None, typer.Option("--request-id", help="The call's own id: repeated with it, it is the same call.")
    ] = None,
    wait_seconds: Annotated[
        float, typer.Option("--wait-seconds", min=0, help="How long to wait for the answer; the call goes on after it.")
    ] = 10.0,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Call an application, and wait for the answer: that of the epoch that has carried the call out.

    epochal call store get -a key=JFK
    """
    with connected(url, as_json) as session:
        known = {one.name: one for one in session.client.application(name).entries.list()}
        if entry not in known:
            raise NotFound(f"Application {name!r} has no entry {entry!r}; it has {', '.join(known) or 'none'}.")
        values = dict(_value(argument, known[entry]) for argument in arguments or ())
        one = session.client.application(name).entries[entry]
        answer = one.call(values, request_id=request_id, wait_seconds=wait_seconds)
        session.output.result(answer, _view(answer))
        if answer.error is not None:
            raise EpochalError(f"Entry {entry!r} of {name!r} has answered with an error: {answer.error}")


def _value(argument: str, entry: EntryDescription) -> tuple[str, Any]:
    name, separator, text = argument.partition("=")
    if not separator:
        raise typer.BadParameter(f"{argument!r} is not NAME=VALUE.", param_hint="--argument")
    schema = entry.arguments.get("properties", {}).get(name, {})
    if schema.get("type") == "string":
        return name, text
    try:
        return name, json.loads(text)
    except ValueError:
        return name, text  # what it should have been, the control plane says


def _arguments(entry: EntryDescription) -> str:
    required = entry.arguments.get("required", ())
    properties = entry.arguments.get("properties", {})
    return ", ".join(f"{name}{'' if name in required else '?'}: {_kind(properties[name])}" for name in properties)


def _kind(schema: dict[str, Any]) -> str:
    return str(schema.get("format") or schema.get("type") or "number")


def _view(answer: CallAnswer) -> Text:
    if answer.state != "answered":
        return Text(f"Call {answer.request_id} is {answer.state}.")
    at = f"  epoch {answer.epoch} of {answer.branch}"
    return Text.assemble((json.dumps(answer.value, ensure_ascii=False), "bold"), (at, "dim"))
