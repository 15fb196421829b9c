"""Read-only checks of the catalog's database: connectivity, revision, permissions, durability and clock."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, inspect, select, text
from sqlalchemy.orm import Session

from epochal.errors import CatalogVersion, EnvironmentProblem, EpochalError
from epochal.service.catalog.database import Database
from epochal.service.catalog.migration import is_behind, newest_revision, refuse_newer
from epochal.service.catalog.models import Base, Lease
from epochal.service.catalog.nodes import NodeRepository
from epochal.service.catalog.types import database_now, now
from epochal.service.domain.checks import Finding, Verdict, failed, ok, warning
from epochal.service.domain.nodes import Node, out_of_reach

OLDEST_POSTGRESQL = 14
"""The oldest supported major version of PostgreSQL."""
CLOCK_SECONDS = 1.0
"""Tolerated difference of clocks."""


def catalog_findings(database: Database, clock: Callable[[], datetime] = now) -> list[Finding]:
    """Never raises: a failed connection is a finding."""
    try:
        with database.reading() as session:
            connection = session.connection()
            if connection.dialect.name == "sqlite":
                return list(_sqlite(database, connection))
            found = list(_postgresql(connection))
            if all(finding.check != "catalog version" for finding in found):
                before = clock()
                theirs = database_now(session)
                found.append(_clock(theirs, before, clock()))
            return found
    except EpochalError as error:
        unwritable = _unwritable(database)
        if unwritable is not None:
            return [unwritable]
        remedy = "Check the URL, and whether the database runs and accepts connections from here."
        return [failed("catalog", f"{error.message.rstrip('.')}.", remedy)]


def node_findings(database: Database) -> list[Finding]:
    """Nodes and leases of a catalog that has this version's tables."""
    with database.reading() as session:
        nodes = NodeRepository(session).living()
        leases = [lease for lease in session.scalars(select(Lease)) if lease.expires_at > database_now(session)]
    if not nodes:
        return [ok("nodes", "No node is running.")]
    shown = [f"{node.role} node {node.public_url} on {node.host} ({node.version})" for node in nodes]
    holders = [f"{lease.name}: {lease.host}, term {lease.term}" for lease in leases]
    found = [ok("nodes", f"{len(nodes)} running: {'; '.join(shown)}."), *reach_findings(database)]
    if any(node.role == "control" for node in nodes) and not leases:
        remedy = "This is normal shortly after a start or during a take-over; otherwise see the logs of the nodes."
        return [*found, warning("leases", "Control planes are running, and none holds a lease.", remedy)]
    return [*found, ok("leases", f"{'; '.join(holders) or 'None is held'}.")]


def reach_findings(database: Database, own: Node | None = None) -> list[Finding]:
    """Control planes whose internal address other machines cannot reach, if there are several machines. ``own``: a node
    that is about to start."""
    with database.reading() as session:
        nodes = [*NodeRepository(session).living(), *([] if own is None else [own])]
    remedy = (
        "Start it with --internal-host 0.0.0.0 (EPOCHAL_INTERNAL_HOST) or an address of that machine, or with "
        "--internal-url if drivers reach it under another address."
    )
    return [
        warning(
            "drivers",
            f"The control plane on {node.host} (process {node.process}) serves drivers at {node.internal_url}, "
            "which is reachable from its own machine only, and control planes run on other machines: drivers "
            "cannot fail over between them.",
            remedy,
        )
        for node in out_of_reach(nodes)
    ]


def check_usable(database: Database) -> list[Finding]:
    """Warnings to log before the catalog is migrated. Raises ``EnvironmentProblem`` for a database that cannot contain
    a catalog. An unreachable database is reported by later steps."""
    found = catalog_findings(database)
    for finding in found:
        if finding.verdict is Verdict.FAILED and finding.check != "catalog":
            raise EnvironmentProblem(finding.sentence)
    return [finding for finding in found if finding.verdict is Verdict.WARNING]


def _sqlite(database: Database, connection: Connection) -> Iterator[Finding]:
    yield ok("catalog", f"SQLite in {database.engine.url.database} answers; it supports one control plane.")
    yield from _revision(connection)
    yield _unwritable(database) or ok("catalog permissions", "The catalog can be written.")


def _unwritable(database: Database) -> Finding | None:
    """The finding that SQLite cannot write its file or create files beside it.

    The file itself is not opened: closing it would release the locks of this process's connections.
    """
    file = Path(database.engine.url.database or "") if database.is_sqlite else None
    if file is None or not file.name or file.name == ":memory:":
        return None
    problem = None
    if file.exists() and not os.access(file, os.W_OK, effective_ids=True):
        problem = f"{file} may not be written"
    else:
        probe = file.with_name(f".{file.name}.probe")
        try:
            probe.touch()
            probe.unlink()
        except OSError as error:
            problem = f"{probe.parent}: {error.strerror}"
    if problem is None:
        return None
    remedy = "Run the control plane as the owner of the file and its folder, or correct their permissions."
    return failed("catalog permissions", f"The catalog cannot be written: {problem}.", remedy)


def _postgresql(connection: Connection) -> Iterator[Finding]:
    shown = str(connection.execute(text("SHOW server_version")).scalar()).partition(" ")[0]
    if int(connection.execute(text("SHOW server_version_num")).scalar_one()) < OLDEST_POSTGRESQL * 10_000:
        yield failed(
            "catalog version",
            f"The catalog's PostgreSQL is {shown}; Epochal needs {OLDEST_POSTGRESQL} or later.",
            "Upgrade the server (pg_upgrade, or restore a backup into a newer one).",
        )
        return
    yield ok("catalog", f"PostgreSQL {shown} answers.")
    yield from _revision(connection)
    yield _permissions(connection)
    yield from _durability(connection)


def _revision(connection: Connection) -> Iterator[Finding]:
    try:
        found = refuse_newer(connection)
    except CatalogVersion as error:
        first, _, rest = error.message.partition(". ")
        yield failed("catalog revision", f"{first}.", rest)
        return
    newest = newest_revision()
    if found == newest:
        yield ok("catalog revision", f"The tables are at revision {newest}.")
    elif not is_behind(found):
        yield ok(
            "catalog revision", (f"The tables are at revision {found} of a later version, which supports this version.")
        )
    else:
        said = "The catalog is empty." if found is None else f"The tables are at revision {found}, older than {newest}."
        yield ok("catalog revision", f"{said} `epochal up` or `epochal migrate` migrates them to {newest}.")


def _permissions(connection: Connection) -> Finding:
    """Privileges that the role lacks."""
    check = "catalog permissions"
    if connection.execute(text("SHOW transaction_read_only")).scalar() == "on":
        standby = bool(connection.execute(text("SELECT pg_is_in_recovery()")).scalar())
        why = "the server is a standby" if standby else "default_transaction_read_only is on"
        remedy = "Give the URL of the primary." if standby else "Set it off for this role, or give another role."
        return failed(check, f"The catalog is read-only: {why}.", remedy)
    role, schema = connection.execute(text("SELECT current_user, current_schema()")).one()
    if schema is None:
        remedy = f'GRANT USAGE ON SCHEMA public TO "{role}"; or set its search_path.'
        return failed(check, f"Role {role!r} has no privileges on any schema of the database.", remedy)
    there = set(inspect(connection).get_table_names(schema))
    ours = sorted(there & {*Base.metadata.tables, "alembic_version"})
    lacking = [
        (table, right)
        for table in ours
        for right in ("SELECT", "INSERT", "UPDATE", "DELETE")
        if not _has(connection, "table", f'"{schema}"."{table}"', right)
    ]
    if lacking:
        table, right = lacking[0]
        remedy = (
            f'GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA "{schema}" TO "{role}"; '
            f'GRANT USAGE ON ALL SEQUENCES IN SCHEMA "{schema}" TO "{role}"; or give the role that owns the tables.'
        )
        return failed(check, f"Role {role!r} lacks {right} on {table} (and {len(lacking) - 1} more).", remedy)
    if is_behind(refuse_newer(connection)) and not _has(connection, "schema", schema, "CREATE"):
        remedy = f'Run `epochal migrate` as the owner of the tables, or GRANT CREATE ON SCHEMA "{schema}" TO "{role}";'
        return failed(
            check, f"Role {role!r} may not create tables in schema {schema}, and the catalog requires it.", remedy
        )
    return ok(check, f"Role {role!r} has the privileges that a control plane needs.")


def _has(connection: Connection, kind: str, name: str, right: str) -> bool:
    query = text(f"SELECT has_{kind}_privilege(current_user, :name, :right)")
    return bool(connection.execute(query, {"name": name, "right": right}).scalar())


def _durability(connection: Connection) -> Iterator[Finding]:
    settings: dict[str, Any] = {
        name: connection.execute(text(f"SHOW {name}")).scalar()
        for name in ("fsync", "synchronous_commit", "synchronous_standby_names")
    }
    durability, replication = "catalog durability", "catalog replication"
    shown = "although sinks show their output"
    if settings["fsync"] == "off":
        said = f"fsync is off: a crash of the database's machine can damage the catalog, or lose decisions, {shown}."
        yield warning(durability, said, "Set fsync = on, except in tests.")
    elif settings["synchronous_commit"] == "off":
        said = f"synchronous_commit is off: a crash of the database can lose decisions, {shown}."
        yield warning(durability, said, "Set synchronous_commit = on for this role.")
    else:
        yield ok(durability, "Commits are flushed to disk.")
    if waits_for_standbys(settings["synchronous_commit"], settings["synchronous_standby_names"]):
        yield ok(replication, f"Synchronous replication is on ({settings['synchronous_standby_names']}).")
        return
    yield warning(
        replication,
        f"Synchronous replication is off: a fail-over to a standby can lose decisions, {shown}.",
        "Set synchronous_standby_names, and synchronous_commit = on; or never promote a standby that may lag. If "
        "the storage below PostgreSQL is replicated synchronously, no action is needed.",
    )


def _clock(theirs: datetime, before: datetime, after: datetime) -> Finding:
    seconds = (before + (after - before) / 2 - theirs).total_seconds()
    if abs(seconds) <= CLOCK_SECONDS + (after - before).total_seconds():
        return ok("clock", "This node's clock agrees with the database's.")
    direction = "ahead of" if seconds > 0 else "behind"
    return warning(
        "clock",
        f"This node's clock is {abs(seconds):.1f} s {direction} the database's. No data is affected: leases and "
        "heartbeats use the database clock. Displayed times, and epoch times of drivers on this machine, are off "
        "by that much.",
        "Synchronise the clock by NTP (chrony, systemd-timesyncd).",
    )


_WAITING = ("on", "remote_apply", "remote_write")
"""Values of ``synchronous_commit`` for which a commit waits for the named standbys."""


def is_replicated_synchronously(session: Session) -> bool | None:
    """Return whether a commit waits for a standby; ``None`` on SQLite."""
    if session.get_bind().dialect.name != "postgresql":
        return None
    commit, standbys = session.execute(
        text("SELECT current_setting('synchronous_commit'), current_setting('synchronous_standby_names')")
    ).one()
    return waits_for_standbys(commit, standbys)


def waits_for_standbys(commit: str, standbys: str) -> bool:
    """Return whether commits wait for a standby with these settings of PostgreSQL."""
    return commit in _WAITING and bool(standbys.strip())
