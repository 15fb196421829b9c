"""``migrate``: the catalog's tables, without starting a control plane."""

from __future__ import annotations

import typer
from rich.text import Text

from epochal.cli.directories import writable
from epochal.cli.options import DatabaseUrl, Home, Json, catalog_url
from epochal.cli.output import Output

app = typer.Typer()


@app.command()
def migrate(
    home: Home = None,
    database_url: DatabaseUrl = None,
    as_json: Json = False,
) -> None:
    """Bring the catalog to this version's tables; `epochal up` does it, too. A newer catalog is refused."""
    # Imported here only: the other commands need no database and shall start quickly.
    from epochal.service.catalog.migration import migrate as migrate_catalog
    from epochal.service.domain.settings import Settings, default_data_directory

    data = writable(home or default_data_directory(), "--home", 0o700)
    settings = Settings(data=data, database=catalog_url(database_url))
    revision = migrate_catalog(settings.database_url)
    Output.make(as_json).result({"revision": revision}, Text(f"The catalog is at revision {revision}."))
