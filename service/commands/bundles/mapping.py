"""Mapping of an exported application to the imported one: sink targets, source positions, and branch names.

A bundle with a branch of another project is renamed as a whole, because manifests contain their parents' checksums. The
new names follow from the bundle's snapshot: a repeated import gets the same names, bundles of two snapshots share none,
and no bundle can depend on another project's files.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from epochal.contracts.backend import names_place
from epochal.contracts.catalog import ManifestReference
from epochal.contracts.configuration import Parameters
from epochal.errors import InvalidInput, SnapshotError
from epochal.pipeline.description import GraphDescription
from epochal.service.catalog.bundles import imported_at, since_is_not_here
from epochal.service.catalog.database import Database
from epochal.service.commands.bundles.unpacking import EPOCHS, HEADER, MEMBERS, UnpackedBundle, member_form
from epochal.service.domain.identifiers import copied_branch_id, copied_branch_name
from epochal.snapshots import layout
from epochal.snapshots.bundle_format import BundleError, BundleHeader
from epochal.snapshots.bundle_reading import Member
from epochal.snapshots.lineage_bounds import LineageStore
from epochal.snapshots.manifest import Manifest
from epochal.snapshots.renaming import Renaming, copied
from epochal.snapshots.storage_errors import storage_errors
from epochal.wire.bundles import ImportApplication, SinkMove, SourcePosition
from epochal.wire.projects import full_name, local_name, project_of

_BROKERS = "servers"


class MappingNeeded(InvalidInput):
    """The import requires the targets of its sinks, or the positions of its sources."""

    slug = "mapping-needed"


def mapped(parameters: Parameters, request: ImportApplication) -> dict[str, Any]:
    """The bundle's parameters with mapped values, overridden by the given ones. Raises ``InvalidInput``."""
    used: set[str] = set()
    replaced = {name: _replaced(value, request.map, used) for name, value in parameters.items()}
    unused = sorted(request.map.keys() - used)
    if unused:
        raise InvalidInput(
            f"No parameter of the bundle has the mapped value {unused[0]!r}. Its parameters are {parameters!r}; other "
            "values cannot be mapped."
        )
    return {**replaced, **request.parameters}


def sink_moves(before: GraphDescription, after: GraphDescription, request: ImportApplication) -> list[SinkMove]:
    """Targets of each sink of the new application. A sink with the exported application's target needs a decision."""
    taken = set(before.sinks.values())
    unknown = sorted(set(request.keep) - after.sinks.keys())
    if unknown:
        raise InvalidInput(f"keep names {unknown[0]!r}; the pipeline's sinks are {', '.join(sorted(after.sinks))}.")
    return [
        SinkMove(
            sink=name,
            was=before.sinks.get(name, ""),
            becomes=target,
            needs_mapping=(names_place(target) and target in taken and not request.shadow and name not in request.keep),
        )
        for name, target in sorted(after.sinks.items())
    ]


def source_positions(
    before: GraphDescription, after: GraphDescription, request: ImportApplication
) -> list[SourcePosition]:
    """Positions of each source of the new application. Offsets are not valid with other brokers."""
    was = _sources(before)
    now = _sources(after)
    for name in request.sources:
        if name not in now:
            raise InvalidInput(f"sources names {name!r}; the pipeline's sources are {', '.join(sorted(now))}.")
        if _BROKERS not in now[name]:
            raise InvalidInput(f"Source {name!r} does not read from Kafka: it continues at the snapshot's position.")
    return [
        SourcePosition(
            source=name,
            was=was.get(name, {}),
            becomes=description,
            at=request.sources[name].at if name in request.sources else None,
            needs_mapping=(
                name in was and was[name].get(_BROKERS) != description.get(_BROKERS) and name not in request.sources
            ),
        )
        for name, description in sorted(now.items())
    ]


def needs(sinks: list[SinkMove], sources: list[SourcePosition], parameters: Parameters) -> list[str]:
    """Decisions required before the import, in sentences."""
    found = [
        f"Sink {move.sink!r} would write to {move.becomes}, like the exported application{_hint(move, parameters)}: "
        "give another target in the parameters, map it, disable writing (shadow), or keep it (keep)."
        for move in sinks
        if move.needs_mapping
    ]
    return found + [
        f"Source {source.source!r} would read from other brokers ({source.becomes.get(_BROKERS)}): give the time at "
        "which it continues there (sources)."
        for source in sources
        if source.needs_mapping
    ]


def _hint(move: SinkMove, parameters: Parameters) -> str:
    """Parameters whose value is part of the target."""
    names = [
        f"{name}={value!r}" for name, value in parameters.items() if isinstance(value, str) and value in move.becomes
    ]
    return f" (parameter {', '.join(names)})" if names else ""


def _replaced(value: Any, places: Mapping[str, str], used: set[str]) -> Any:
    match value:
        case str() if value in places:
            used.add(value)
            return places[value]
        case list():
            return [_replaced(item, places, used) for item in value]
        case dict():
            return {name: _replaced(item, places, used) for name, item in value.items()}
    return value


def _sources(graph: GraphDescription) -> dict[str, dict[str, Any]]:
    return {node.name: node.description for node in graph.nodes if node.type == "source"}


_FOLDER = "renamed"


class BundleNames:
    """Local names of the branches of bundles."""

    def __init__(self, database: Database, store: LineageStore) -> None:
        self._database = database
        self._store = store

    def header(self, header: BundleHeader, project: str) -> BundleHeader:
        """The header for ``project``; the checksum of a renamed snapshot is not known yet. Raises ``Conflict`` as
        :meth:`renaming` does."""
        renaming = self.renaming(header, project)
        return header if renaming is None else renaming.header(header, renaming.missing(header.snapshot))

    def renaming(self, header: BundleHeader, project: str, decided: str | None = None) -> Renaming | None:
        """``None`` if all branches belong to the project: they keep their names. ``decided``: the new name of the
        snapshot's branch, once an import exists.

        Raises ``Conflict`` if the base of an increment was not copied into the project, or was deleted.
        """
        if all(project_of(branch.id) == project for branch in header.branches):
            return None
        if header.since is None:
            return _renaming(header, project, header.snapshot.sha256, None)
        return self._onto_a_copy(header, header.since, project, decided)

    def _onto_a_copy(
        self, header: BundleHeader, since: ManifestReference, project: str, decided: str | None
    ) -> Renaming:
        """Names of an increment: those of the local copy of its base, from its manifest. All parts of an import use
        the same copy if several exist."""
        with self._database.reading() as session:
            found = imported_at(session, copied_branch_name(since.branch, project), since.epoch, project)
        for reference in found:
            try:
                was = copied(self._store.read_manifest(reference))
            except SnapshotError:
                continue
            if was is None or (was.control_plane, was.sha256) != (header.origin.control_plane, since.sha256):
                continue
            renaming = _renaming(header, project, was.snapshot, reference)
            if decided in (None, renaming.branch(header.snapshot.branch)):
                return renaming
        raise since_is_not_here(since.key)


def _renaming(header: BundleHeader, project: str, snapshot: str, since: ManifestReference | None) -> Renaming:
    def branch(id: str) -> str:
        return copied_branch_id(id, project, control_plane=header.origin.control_plane, snapshot=snapshot)

    def application(name: str) -> str:
        return full_name(project, local_name(name))

    if len({branch(each.id) for each in header.branches}) < len(header.branches):
        raise BundleError("Two branches of the bundle would get the same name: it was altered.")
    return Renaming(branch, application, header.origin.control_plane, snapshot, since)


def renamed(bundle: UnpackedBundle, renaming: Renaming, check: Callable[[], None]) -> UnpackedBundle:
    """Write the renamed bundle to a subfolder; data files stay where they are, packs lose their manifests. ``check`` is
    called before each manifest and pack, and may raise. Raises ``BundleError``, ``StorageFull``."""
    folder = bundle.folder / _FOLDER
    manifests, snapshot = _manifests(bundle, renaming, check)
    header = renaming.header(bundle.header, snapshot)
    size = 0
    with storage_errors(str(folder)):
        folder.mkdir(mode=0o700)
        with (folder / EPOCHS).open("wb") as epochs:
            for epoch in bundle.epochs():
                epochs.write(renaming.epoch(epoch).model_dump_json().encode() + b"\n")
        with (folder / MEMBERS).open("wb") as members:
            for was in bundle.members():
                for member in _renamed(was, renaming, manifests, check):
                    members.write(member_form.dump_json(member) + b"\n")
                    size += member.bytes
        (folder / HEADER).write_text(header.model_copy(update={"bytes": size}).model_dump_json())
    return UnpackedBundle(folder)


def _renamed(
    member: Member, renaming: Renaming, manifests: Mapping[str, Member], check: Callable[[], None]
) -> Iterator[Member]:
    match member.kind:
        case "manifests":
            yield manifests[member.sha256]
        case "packs":
            check()
            yield from _without_manifests(member, renaming)
        case _:
            yield replace(member, paths=tuple(map(renaming.path, member.paths)))


def _without_manifests(member: Member, renaming: Renaming) -> Iterator[Member]:
    """Packs without the manifests at their ends, with new paths."""
    for path in member.paths:
        size = layout.manifest_offset(path)
        file = member.file.with_name(f"{member.sha256}-{size}")
        with storage_errors(str(file)):
            shutil.copyfile(member.file, file)
            os.truncate(file, size)
        with file.open("rb") as content:
            sha256 = hashlib.file_digest(content, "sha256").hexdigest()
        yield replace(member, sha256=sha256, bytes=size, file=file, paths=(renaming.path(path),))


def _manifests(
    bundle: UnpackedBundle, renaming: Renaming, check: Callable[[], None]
) -> tuple[Mapping[str, Member], ManifestReference]:
    """The rewritten manifests by their previous checksums, and the bundle's snapshot."""
    found: dict[str, Member] = {}
    since = bundle.header.since
    known = {} if since is None or renaming.since is None else {since.sha256: renaming.since}
    for member in reversed([member for member in bundle.members() if member.manifest is not None]):
        check()
        assert member.manifest is not None
        path = member.manifest.path
        was = Manifest.decode(member.file.read_bytes(), path)
        parent = None if was.parent is None else known.get(was.parent.sha256)
        manifest = renaming.manifest(was, member.sha256, parent)
        reference = manifest.reference(renaming.manifest_path(path))
        found[member.sha256] = _written(member, manifest.encode(), reference)
        known = {member.sha256: reference}  # they are one line, oldest first
    snapshot = known.get(bundle.header.snapshot.sha256)
    if snapshot is None:
        raise BundleError("The bundle does not contain its snapshot's manifest: it was altered.")
    return found, snapshot


def _written(member: Member, data: bytes, reference: ManifestReference) -> Member:
    file = member.file.with_name(reference.sha256)
    with storage_errors(str(file)):
        file.write_bytes(data)
    member.file.unlink()
    return replace(
        member, sha256=reference.sha256, bytes=len(data), file=file, paths=(reference.path,), manifest=reference
    )
