"""``migrate``: create or upgrade the tables of the catalog, without starting a control plane."""

from __future__ import annotations

import typer
from rich.text import Text

from epochal.cli.directories import writable
from epochal.cli.options import Json
from epochal.cli.output import Output
from epochal.cli.settings import Arguments, with_settings

app = typer.Typer()


@app.command()
@with_settings("home", "database_url")
def migrate(arguments: Arguments, as_json: Json = False) -> None:
    """Upgrade the catalog to the tables of this version, as `epochal up` does. A newer catalog is refused."""
    # Imported here only: the other commands need no database.
    from epochal.service.catalog.migration import migrate as migrate_catalog

    settings = arguments.load().settings
    writable(settings.data, "--home", 0o700)
    revision = migrate_catalog(settings.database_url)
    Output.make(as_json).result({"revision": revision}, Text(f"The catalog is at revision {revision}."))
