"""``up``: a control plane in this process, or a query node below it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import closing
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from epochal.cli.companions import Companion, check_kinds, companions
from epochal.cli.directories import writable
from epochal.cli.listening import listen
from epochal.cli.options import DatabaseUrl, Home, Json, Store, catalog_url
from epochal.cli.output import Output
from epochal.client.location import DEFAULT_URL
from epochal.client.location import home as default_home
from epochal.errors import OptionError
from epochal.logs import FORMAT_VARIABLE, LogFormat
from epochal.service.domain.identity import OIDC_VARIABLE, read_oidc_settings
from epochal.service.domain.kubernetes.settings import KUBERNETES_VARIABLE, read_kubernetes_settings
from epochal.service.domain.proxies import TRUSTED_PROXIES_VARIABLE, read_trusted_proxies
from epochal.service.domain.settings import (
    ADMIN_TOKEN_VARIABLE,
    WARM_DRIVERS_VARIABLE,
    Kept,
    Settings,
    Tls,
    default_data_directory,
    default_driver_user,
)
from epochal.service.runtime.certificates import check_certificate
from epochal.service.runtime.free_memory import free_bytes, usual_warm_drivers
from epochal.service.runtime.internal_server import InternalServer
from epochal.service.runtime.launchers.java import check_java

app = typer.Typer()
KEPT = Kept()


class Role(StrEnum):
    CONTROL = "control"
    QUERY = "query"


@app.command()
def up(
    host: Annotated[str, typer.Option(help="Listen here; beyond loopback only with authentication.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Listen on this port; 0: any free one.")] = 8765,
    internal_host: Annotated[
        str,
        typer.Option(
            envvar="EPOCHAL_INTERNAL_HOST", help="Answer drivers here; beyond loopback where there are other machines."
        ),
    ] = "127.0.0.1",
    internal_port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            envvar="EPOCHAL_INTERNAL_PORT",
            help="Answer drivers on this port; 0: any free one.  [default: the one after --port]",
            show_default=False,
        ),
    ] = None,
    public_url: Annotated[
        str | None, typer.Option(metavar="URL", help="How others reach this control plane.  [default: --host, --port]")
    ] = None,
    internal_url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            envvar="EPOCHAL_INTERNAL_URL",
            help="How drivers reach it.  [default: --internal-host, --internal-port]",
        ),
    ] = None,
    home: Home = None,
    database_url: DatabaseUrl = None,
    store: Store = None,
    driver_user: Annotated[
        str | None,
        typer.Option(
            metavar="USER",
            help="Who runs pipelines when this is root.  [default: EPOCHAL_DRIVER_USER, or epochal, or nobody]",
            show_default=False,
        ),
    ] = None,
    authentication: Annotated[
        bool, typer.Option("--authentication/--no-authentication", help="Ask for tokens; off on loopback only.")
    ] = True,
    admin_token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            envvar=ADMIN_TOKEN_VARIABLE,
            help="A token of administrators, the same for all control planes.  [default: each makes one in --home]",
            show_default=False,
        ),
    ] = None,
    collect_every: Annotated[
        float, typer.Option(metavar="HOURS", min=0, help="How often files that nothing needs are deleted; 0: never.")
    ] = 1.0,
    grace: Annotated[
        float, typer.Option(metavar="HOURS", min=0, help="Files younger than this are never deleted.")
    ] = 1.0,
    log_size: Annotated[
        float, typer.Option(metavar="MB", min=0.1, help="A driver's log that is larger is rotated.")
    ] = 16.0,
    log_files: Annotated[int, typer.Option(min=1, help="Rotated files that are kept of a driver's log.")] = 3,
    log_days: Annotated[
        float,
        typer.Option(metavar="DAYS", min=0.001, max=36500, help="How long logs of drivers are kept."),
    ] = 30.0,
    event_days: Annotated[
        float, typer.Option(metavar="DAYS", min=0.001, max=36500, help="How long events are kept at most.")
    ] = KEPT.events_days,
    kept_events: Annotated[
        int, typer.Option(metavar="N", min=1, help="How many events of each application are kept at most.")
    ] = KEPT.events,
    audit_days: Annotated[
        float, typer.Option(metavar="DAYS", min=0.001, max=36500, help="How long the audit log is kept.")
    ] = KEPT.audit_days,
    kept_epochs: Annotated[
        int, typer.Option(metavar="N", min=1, help="How many epochs of each branch are never folded into ranges.")
    ] = KEPT.epochs,
    role: Annotated[
        Role, typer.Option(help="query: answer look-ups only, beside the control planes of the same catalog and store.")
    ] = Role.CONTROL,
    workers: Annotated[int, typer.Option(min=1, max=64, help="Processes that answer look-ups; of a query node.")] = 1,
    warm_drivers: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            max=16,
            envvar=WARM_DRIVERS_VARIABLE,
            help="So many processes wait with Spark started, and become drivers.  [default: 1; with less than 6 GiB "
            "of free memory 0]",
            show_default=False,
        ),
    ] = None,
    kubernetes: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            envvar=KUBERNETES_VARIABLE,
            help="Run drivers as pods of a cluster, as this file says (JSON, docs/kubernetes.md).",
            show_default=False,
        ),
    ] = None,
    tls_certificate: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            envvar="EPOCHAL_TLS_CERTIFICATE",
            help="Speak TLS, with this certificate (PEM); it may be replaced.",
            show_default=False,
        ),
    ] = None,
    tls_key: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", envvar="EPOCHAL_TLS_KEY", help="The key of --tls-certificate.", show_default=False
        ),
    ] = None,
    internal_tls_certificate: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            envvar="EPOCHAL_INTERNAL_TLS_CERTIFICATE",
            help="Likewise with drivers, who trust EPOCHAL_CA_FILE.",
            show_default=False,
        ),
    ] = None,
    internal_tls_key: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            envvar="EPOCHAL_INTERNAL_TLS_KEY",
            help="The key of --internal-tls-certificate.",
            show_default=False,
        ),
    ] = None,
    oidc: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            envvar=OIDC_VARIABLE,
            help="Take tokens of people, too, of the identity provider in this file (JSON, docs/identity.md).",
            show_default=False,
        ),
    ] = None,
    trusted_proxies: Annotated[
        str,
        typer.Option(
            metavar="ADDRESSES",
            envvar=TRUSTED_PROXIES_VARIABLE,
            help="IP addresses or CIDR networks of proxies, with commas, whose X-Forwarded-For names the caller.  "
            "[default: none]",
            show_default=False,
        ),
    ] = "",
    connections: Annotated[
        int, typer.Option(min=12, help="Connections to the catalog at most, a quarter of them for drivers alone.")
    ] = 64,
    beside: Annotated[
        list[str] | None,
        typer.Option(
            "--with",
            metavar="SERVER",
            help="For a first try, also start an empty server of the test kit: kafka, hdfs, postgresql, mariadb. "
            "Its data ends with it.",
        ),
    ] = None,
    log_format: Annotated[
        LogFormat, typer.Option(envvar=FORMAT_VARIABLE, help="How logs are written, drivers' too: text, or json.")
    ] = "text",
    as_json: Json = False,
) -> None:
    """Start a control plane; Ctrl-C stops it. Applications that run go on without it, and are adopted by the next."""
    output = Output.make(as_json)
    os.environ[FORMAT_VARIABLE] = log_format  # drivers and workers see it there
    database = catalog_url(database_url)
    tls = _tls("", tls_certificate, tls_key)
    internal_tls = _tls("internal-", internal_tls_certificate, internal_tls_key)
    proxies = read_trusted_proxies(trusted_proxies)
    people = None if oidc is None else read_oidc_settings(oidc)
    data = writable(home or default_data_directory(), "--home", 0o700)
    if role is Role.QUERY:
        if beside:
            raise OptionError("--with starts servers for applications, which query nodes do not run.")
        query_node = Settings(
            data=data,
            host=host,
            port=port,
            advertised_url=public_url,
            database=database,
            store=store,
            authentication=authentication,
            oidc=people,
            tls=tls,
            trusted_proxies=proxies,
        )
        _up_query_node(output, query_node, workers)
        return
    if workers > 1:
        raise OptionError(
            "A control plane answers from one process. For more look-ups start query nodes beside it: "
            f"epochal up --role query --workers {workers}"
        )
    pods = None if kubernetes is None else read_kubernetes_settings(kubernetes)
    check_java(os.environ)
    check_kinds(beside or ())
    usual, why_none = usual_warm_drivers(free_bytes())
    warm = usual if warm_drivers is None else warm_drivers
    following = port + 1 if 0 < port < 65535 else 0
    with (
        listen(host, port) as listener,
        listen(internal_host, following if internal_port is None else internal_port, "--internal-") as for_drivers,
        companions(beside or ()) as servers,
    ):
        settings = Settings(
            data=data,
            host=host,
            port=listener.getsockname()[1],
            internal_host=internal_host,
            internal_port=for_drivers.getsockname()[1],
            advertised_url=public_url,
            advertised_internal_url=internal_url,
            connections=connections,
            database=database,
            store=store,
            authentication=authentication,
            oidc=people,
            tls=tls,
            internal_tls=internal_tls,
            trusted_proxies=proxies,
            given_admin_token=admin_token_file,
            warm_drivers=warm,
            launcher="local" if pods is None else "kubernetes",
            kubernetes=pods,
            driver_user=driver_user or default_driver_user(),
            collect_every_seconds=collect_every * 3600 or None,
            log_bytes=int(log_size * (1 << 20)),
            log_files=log_files,
            log_days=log_days,
            grace_seconds=grace * 3600,
            kept=Kept(events=kept_events, events_days=event_days, audit_days=audit_days, epochs=kept_epochs),
        )
        with closing(InternalServer(settings, for_drivers)) as internal:
            internal.begin()
            # Imported here only, after what is refused at once: the web framework and Spark make every command slower.
            from epochal.cli.serving import serve

            serve(settings, listener, internal, lambda: _announce(output, settings, servers, why_none))
    output.note("The control plane has stopped; applications that run go on, and the next `epochal up` adopts them.")


def _tls(prefix: str, certificate: Path | None, key: Path | None) -> Tls | None:
    """Raises ``OptionError`` for one without the other, and for files that are neither."""
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise OptionError(f"--{prefix}tls-certificate and --{prefix}tls-key belong together.")
    tls = Tls(certificate=certificate.absolute(), key=key.absolute())
    check_certificate(tls)
    return tls


def _up_query_node(output: Output, settings: Settings, workers: int) -> None:
    from epochal.cli.query_node import serve_query_node

    def announce(listening: Settings) -> None:
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(style="dim", no_wrap=True)
        grid.add_column(overflow="fold")
        grid.add_row("query node", Text(listening.url, style="bold"))
        grid.add_row("workers", Text(str(workers)))
        grid.add_row("replicas", Text(str(listening.replicas_directory)))
        document = {"url": listening.url, "workers": workers, "data": str(listening.data.absolute())}
        output.result(document, grid)
        output.note(f"Ctrl-C stops it. Next: EPOCHAL_URL={listening.url} epochal get NAME TABLE KEY")

    serve_query_node(settings, workers, announce)
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
    grid.add_row("token", Text(document["token_file"] or "none asked for (--no-authentication)"))
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
    """What other commands need to be told, in another terminal, to find this control plane and its token."""
    exports = []
    if settings.url != DEFAULT_URL:
        exports.append(f"EPOCHAL_URL={settings.url}")
    if settings.authentication and settings.given_admin_token is not None:
        exports.append(f"EPOCHAL_TOKEN=$(cat {settings.given_admin_token})")
    elif settings.authentication and settings.data.absolute() != default_home().absolute():
        exports.append(f"EPOCHAL_HOME={settings.data.absolute()}")
    return exports
