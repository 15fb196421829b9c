"""Can this database hold a catalog, and how safely? Nothing is changed by asking."""

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
"""The oldest major version that PostgreSQL's own makers still correct."""
CLOCK_SECONDS = 1.0
"""A clock that is off by more is said."""


def catalog_findings(database: Database, clock: Callable[[], datetime] = now) -> list[Finding]:
    """Never raises: a database that cannot be reached is a finding, too."""
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
        remedy = "Check the URL, and whether the database runs and takes connections from here."
        return [failed("catalog", f"{error.message.rstrip('.')}.", remedy)]


def node_findings(database: Database) -> list[Finding]:
    """Who works on a catalog that has this version's tables."""
    with database.reading() as session:
        nodes = NodeRepository(session).living()
        leases = [lease for lease in session.scalars(select(Lease)) if lease.expires_at > database_now(session)]
    if not nodes:
        return [ok("nodes", "No node is running.")]
    shown = [f"{node.role} node {node.public_url} on {node.host} ({node.version})" for node in nodes]
    holders = [f"{lease.name}: {lease.host}, term {lease.term}" for lease in leases]
    found = [ok("nodes", f"{len(nodes)} running: {'; '.join(shown)}."), *reach_findings(database)]
    if any(node.role == "control" for node in nodes) and not leases:
        remedy = "A moment after a start, or while one takes over, that is so; if it stays, look at the nodes' logs."
        return [*found, warning("leases", "Control planes are running, and none has the lead.", remedy)]
    return [*found, ok("leases", f"{'; '.join(holders) or 'None is held'}.")]


def reach_findings(database: Database, own: Node | None = None) -> list[Finding]:
    """Whether drivers can go on with another control plane when one ends, also when that is on another machine.
    ``own``: one that begins just now."""
    with database.reading() as session:
        nodes = [*NodeRepository(session).living(), *([] if own is None else [own])]
    remedy = (
        "Start it with --internal-host 0.0.0.0 (EPOCHAL_INTERNAL_HOST) or an address of that machine, or with "
        "--internal-url where drivers reach it under another one."
    )
    return [
        warning(
            "drivers",
            f"The control plane on {node.host} (process {node.process}) answers drivers at {node.internal_url}, which "
            "only its own machine reaches, and there are control planes on others: their drivers cannot go on with "
            "it, nor its drivers with them while it is the only one that they know.",
            remedy,
        )
        for node in out_of_reach(nodes)
    ]


def check_usable(database: Database) -> list[Finding]:
    """Before the catalog is migrated: what is to be warned of. Raises ``EnvironmentProblem`` for a database that cannot
    hold a catalog; that it does not answer is for those to find who need it."""
    found = catalog_findings(database)
    for finding in found:
        if finding.verdict is Verdict.FAILED and finding.check != "catalog":
            raise EnvironmentProblem(finding.sentence)
    return [finding for finding in found if finding.verdict is Verdict.WARNING]


def _sqlite(database: Database, connection: Connection) -> Iterator[Finding]:
    yield ok("catalog", f"SQLite in {database.engine.url.database} answers; it serves one control plane.")
    yield from _revision(connection)
    yield _unwritable(database) or ok("catalog permissions", "The catalog can be written.")


def _unwritable(database: Database) -> Finding | None:
    """Of SQLite: that its file cannot be written, or that nothing can be beside it, where SQLite writes, too.

    The file itself is not opened: to close it again would end the locks of this process's connections.
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
        yield ok("catalog revision", f"The tables are at revision {found}, of a later version; this one can use them.")
    else:
        said = "The catalog is empty." if found is None else f"The tables are at revision {found}, older than {newest}."
        yield ok("catalog revision", f"{said} `epochal up` or `epochal migrate` brings them to {newest}.")


def _permissions(connection: Connection) -> Finding:
    """What this role may not do and a control plane does."""
    check = "catalog permissions"
    if connection.execute(text("SHOW transaction_read_only")).scalar() == "on":
        standby = bool(connection.execute(text("SELECT pg_is_in_recovery()")).scalar())
        why = "the server is a standby" if standby else "default_transaction_read_only is on"
        remedy = "Give the URL of the primary." if standby else "Set it off for this role, or give another role."
        return failed(check, f"The catalog can only be read: {why}.", remedy)
    role, schema = connection.execute(text("SELECT current_user, current_schema()")).one()
    if schema is None:
        remedy = f'GRANT USAGE ON SCHEMA public TO "{role}"; or set its search_path.'
        return failed(check, f"Role {role!r} may use no schema of the database.", remedy)
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
            check, f"Role {role!r} may make no tables in schema {schema}, and the catalog needs them.", remedy
        )
    return ok(check, f"Role {role!r} may do what a control plane does.")


def _has(connection: Connection, kind: str, name: str, right: str) -> bool:
    query = text(f"SELECT has_{kind}_privilege(current_user, :name, :right)")
    return bool(connection.execute(query, {"name": name, "right": right}).scalar())


def _durability(connection: Connection) -> Iterator[Finding]:
    settings: dict[str, Any] = {
        name: connection.execute(text(f"SHOW {name}")).scalar()
        for name in ("fsync", "synchronous_commit", "synchronous_standby_names")
    }
    durability, replication = "catalog durability", "catalog replication"
    shown = "whose output sinks show"
    if settings["fsync"] == "off":
        said = f"fsync is off: a crash of the database's machine can damage the catalog, or lose decisions, {shown}."
        yield warning(durability, said, "Set fsync = on, except in tests.")
    elif settings["synchronous_commit"] == "off":
        said = f"synchronous_commit is off: a crash of the database can lose decisions, {shown}."
        yield warning(durability, said, "Set synchronous_commit = on for this role.")
    else:
        yield ok(durability, "What is committed is on the database's disk.")
    if waits_for_standbys(settings["synchronous_commit"], settings["synchronous_standby_names"]):
        yield ok(replication, f"Synchronous replication is on ({settings['synchronous_standby_names']}).")
        return
    yield warning(
        replication,
        f"Synchronous replication is off: a fail-over to a standby can lose decisions, {shown}.",
        "Set synchronous_standby_names, and synchronous_commit = on; or never promote a standby that may lag. Where "
        "the storage below PostgreSQL is replicated synchronously, nothing is to be done.",
    )


def _clock(theirs: datetime, before: datetime, after: datetime) -> Finding:
    seconds = (before + (after - before) / 2 - theirs).total_seconds()
    if abs(seconds) <= CLOCK_SECONDS + (after - before).total_seconds():
        return ok("clock", "This node's clock agrees with the database's.")
    direction = "ahead of" if seconds > 0 else "behind"
    return warning(
        "clock",
        f"This node's clock is {abs(seconds):.1f} s {direction} the database's. Nothing is lost: leases and heartbeats "
        "go by the database's clock; times that people read, and epoch times of drivers here, are wrong by as much.",
        "Let the node keep its time by NTP (chrony, systemd-timesyncd).",
    )


_WAITING = ("on", "remote_apply", "remote_write")
"""Values of ``synchronous_commit`` with which a commit waits for the standbys that are named."""


def is_replicated_synchronously(session: Session) -> bool | None:
    """Whether a commit waits for a standby. ``None``: a SQLite file, of which there is one."""
    if session.get_bind().dialect.name != "postgresql":
        return None
    commit, standbys = session.execute(
        text("SELECT current_setting('synchronous_commit'), current_setting('synchronous_standby_names')")
    ).one()
    return waits_for_standbys(commit, standbys)


def waits_for_standbys(commit: str, standbys: str) -> bool:
    """With these ``synchronous_commit`` and ``synchronous_standby_names`` of PostgreSQL."""
    return commit in _WAITING and bool(standbys.strip())
