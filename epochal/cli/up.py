"""``up``: a control plane in this process, or a query node below it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from contextlib import closing
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from epochal.cli.companions import Companion, check_kinds, companions
from epochal.cli.console import console_link, open_or_print, page_path
from epochal.cli.directories import writable
from epochal.cli.listening import listen
from epochal.cli.options import Json
from epochal.cli.output import Output
from epochal.cli.settings import Arguments, with_settings
from epochal.client import Client
from epochal.client.location import DEFAULT_URL
from epochal.client.location import home as default_home
from epochal.errors import EpochalError, OptionError
from epochal.logs import FORMAT_VARIABLE
from epochal.service.domain.settings import Settings
from epochal.service.runtime.certificates import check_certificate
from epochal.service.runtime.free_memory import free_bytes, usual_warm_drivers
from epochal.service.runtime.internal_server import InternalServer
from epochal.service.runtime.launchers.java import check_java
from epochal.wire.projects import DEFAULT_PROJECT

app = typer.Typer()

_LINK_SECONDS = 300.0
"""Time in which the link of ``--open`` can be used: long enough to copy it where no browser can be opened."""


@app.command()
@with_settings()
def up(
    arguments: Arguments,
    beside: Annotated[
        list[str] | None,
        typer.Option(
            "--with",
            metavar="SERVER",
            help="For a first try, also start an empty server of the test kit: kafka, hdfs, postgresql, mariadb. "
            "Its data ends with it.",
        ),
    ] = None,
    opened: Annotated[
        bool, typer.Option("--open", help="Open the console in the browser when the control plane is ready.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Start a control plane; Ctrl-C stops it. Running applications continue, and the next control plane adopts them."""
    output = Output.make(as_json)
    settings = arguments.load().settings
    os.environ[FORMAT_VARIABLE] = settings.log_format  # inherited by drivers and workers
    for tls in (settings.tls, settings.internal_tls):
        if tls is not None:
            check_certificate(tls)
    writable(settings.data, "--home", 0o700)
    if settings.role == "query":
        if opened:
            raise OptionError("--open opens the console, which query nodes do not serve.")
        if beside:
            raise OptionError("--with starts servers for applications, which query nodes do not run.")
        _up_query_node(output, settings)
        return
    if settings.workers > 1:
        raise OptionError(
            "A control plane answers from one process. For more look-ups start query nodes beside it: "
            f"epochal up --role query --workers {settings.workers}"
        )
    _up_control_plane(output, settings, beside or (), opened)


def _up_control_plane(output: Output, settings: Settings, beside: Sequence[str], opened: bool) -> None:
    check_java(os.environ)
    check_kinds(beside)
    usual, why_none = usual_warm_drivers(free_bytes())
    following = settings.port + 1 if 0 < settings.port < 65535 else 0
    internal_port = following if settings.internal_port is None else settings.internal_port
    with (
        listen(settings.host, settings.port) as listener,
        listen(settings.internal_host, internal_port, "--internal-") as for_drivers,
        companions(beside) as servers,
    ):
        settings = settings.model_copy(
            update={
                "port": listener.getsockname()[1],
                "internal_port": for_drivers.getsockname()[1],
                "warm_drivers": usual if settings.warm_drivers is None else settings.warm_drivers,
            }
        )
        with closing(InternalServer(settings, for_drivers)) as internal:
            internal.begin()
            # Imported after everything that may be refused: the web framework and Spark take a second.
            from epochal.cli.serving import serve

            def ready() -> None:
                _announce(output, settings, servers, why_none)
                if opened:
                    # In a thread: the link is a request to this process.
                    asyncio.get_running_loop().run_in_executor(None, _open_console, output, settings)

            serve(settings, listener, internal, ready)
    output.note("The control plane has stopped. Running applications continue; the next `epochal up` adopts them.")


def _open_console(output: Output, settings: Settings) -> None:
    local = settings.model_copy(update={"host": "127.0.0.1"}) if settings.host in ("0.0.0.0", "::") else settings
    try:
        token = settings.token_file.read_text().strip() if settings.authentication else None
        with Client(local.url, token) as client:
            link, _ = console_link(client, page_path(DEFAULT_PROJECT, None), _LINK_SECONDS)
        open_or_print(output, link)
    except (EpochalError, OSError) as error:
        output.warn(f"No link to the console could be created ({error}). Open {local.url}/console/ and sign in.")


def _up_query_node(output: Output, settings: Settings) -> None:
    from epochal.cli.query_node import serve_query_node

    def announce(listening: Settings) -> None:
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(style="dim", no_wrap=True)
        grid.add_column(overflow="fold")
        grid.add_row("query node", Text(listening.url, style="bold"))
        grid.add_row("workers", Text(str(listening.workers)))
        grid.add_row("replicas", Text(str(listening.replicas_directory)))
        document = {"url": listening.url, "workers": listening.workers, "data": str(listening.data.absolute())}
        output.result(document, grid)
        output.note(f"Ctrl-C stops it. Next: EPOCHAL_URL={listening.url} epochal get NAME TABLE KEY")

    serve_query_node(settings, announce)
    output.note("The query node has stopped.")


def _announce(output: Output, settings: Settings, servers: Sequence[Companion], why_none: str) -> None:
    document: dict[str, Any] = {
        "url": settings.url,
        "internal_url": settings.internal_url,
        "token_file": str(settings.token_file) if settings.authentication else None,
        "data": str(settings.data.absolute()),
        "logs": str(settings.logs_directory),
        "warm_drivers": settings.warm_drivers,
        "servers": {server.kind: server.address for server in servers},
    }
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row("control plane", Text(settings.url, style="bold"))
    grid.add_row("token", Text(document["token_file"] or "not required (--no-authentication)"))
    grid.add_row("drivers", Text(settings.internal_url))
    none = f"none: {why_none}" if why_none else "none"
    grid.add_row("warm drivers", Text(str(settings.warm_drivers or none)))
    grid.add_row("data", Text(str(document["data"])))
    grid.add_row("logs", Text(str(document["logs"])))
    if settings.database_url.startswith("sqlite"):
        grid.add_row("catalog", Text("SQLite, which is for one control plane"))
    for server in servers:
        grid.add_row(server.kind, Text(server.address))
    for export in _exports(settings):
        grid.add_row("for clients", Text(f"export {export}"))
    output.result(document, grid)
    output.note("Ctrl-C stops it. Next: epochal submit FILE --name NAME")


def _exports(settings: Settings) -> list[str]:
    """Variables that other commands need to find this control plane and its token."""
    exports = []
    if settings.url != DEFAULT_URL:
        exports.append(f"EPOCHAL_URL={settings.url}")
    if settings.authentication and settings.given_admin_token is not None:
        exports.append(f"EPOCHAL_TOKEN=$(cat {settings.given_admin_token})")
    elif settings.authentication and settings.data.absolute() != default_home().absolute():
        exports.append(f"EPOCHAL_HOME={settings.data.absolute()}")
    return exports
