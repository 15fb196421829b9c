"""``config show``: the settings of a control plane, and where each value comes from."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import typer

from epochal.cli.formatting import Column, Listing
from epochal.cli.options import Json
from epochal.cli.output import Output
from epochal.cli.settings import Arguments, Known, Loaded, Source, known_settings, shown, with_settings

app = typer.Typer(no_args_is_help=True, help="Settings of a control plane.")

_REDACTED = "***"
_SECRETS = ("password", "secret", "token", "key")


@app.command()
@with_settings()
def show(arguments: Arguments, as_json: Json = False) -> None:
    """Print every setting with its value, and where the value comes from: default, file, environment or option."""
    loaded = arguments.load()
    rows = [_row(known, loaded) for known in known_settings().values()]
    table = Listing(Column("setting"), Column("value", flexible=True, folds=True), Column("from"))
    for row in rows:
        table.add(row["name"], row["value"], row["source"])
    Output.make(as_json).result(rows, table)


def _row(known: Known, loaded: Loaded) -> dict[str, Any]:
    source = loaded.sources.get(known.name, Source.DEFAULT)
    value = known.default if source is Source.DEFAULT else _value(known, loaded)
    return {
        "name": known.name,
        "value": redacted(value) if known.setting.secret else value,
        "source": source.value,
        "variable": known.variable,
        "option": known.option,
    }


def _value(known: Known, loaded: Loaded) -> str:
    written = loaded.values[known.name]
    if isinstance(written, dict):
        return "a table in the settings file"
    value: Any = loaded.settings
    for name in known.path:
        value = getattr(value, name)
    return shown(written if hasattr(value, "model_fields") else value)


def redacted(url: str) -> str:
    """The URL without passwords, in its authority and among its parameters."""
    parts = urlsplit(url)
    if parts.password is not None:
        authority = parts.netloc.rpartition("@")
        parts = parts._replace(netloc=f"{authority[0].partition(':')[0]}:{_REDACTED}@{authority[2]}")
    query = parse_qsl(parts.query, keep_blank_values=True)
    if any(_is_secret(name) for name, _ in query):
        query = [(name, _REDACTED if _is_secret(name) else value) for name, value in query]
        parts = parts._replace(query=urlencode(query, safe="*"))
    return parts.geturl() if url != "" and "://" in url else url


def _is_secret(name: str) -> bool:
    return any(word in name.casefold() for word in _SECRETS)
