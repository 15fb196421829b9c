"""From the places of the exported application to those of the new one: what is mapped, and what has to be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
from epochal.snapshots.bundle_format import BundleError, BundleHeader
from epochal.snapshots.bundle_reading import Member
from epochal.snapshots.lineage_bounds import LineageStore
from epochal.snapshots.manifest import Manifest
from epochal.snapshots.renaming import Renaming, copied
from epochal.snapshots.store import storage_errors
from epochal.wire.bundles import ImportApplication, SinkMove, SourcePosition
from epochal.wire.projects import full_name, local_name, project_of

_BROKERS = "servers"


class MappingNeeded(InvalidInput):
    """The import has to be told where its sinks write, or where its sources go on."""

    slug = "mapping-needed"


def mapped(parameters: Parameters, request: ImportApplication) -> dict[str, Any]:
    """The bundle's parameters with old places replaced, and the given ones over them. Raises ``InvalidInput``."""
    used: set[str] = set()
    replaced = {name: _replaced(value, request.map, used) for name, value in parameters.items()}
    unused = sorted(request.map.keys() - used)
    if unused:
        raise InvalidInput(
            f"No parameter of the bundle has the value {unused[0]!r}, which map names. Its parameters are "
            f"{parameters!r}; what is not a parameter cannot be mapped."
        )
    return {**replaced, **request.parameters}


def sink_moves(before: GraphDescription, after: GraphDescription, request: ImportApplication) -> list[SinkMove]:
    """Each sink of the new application. One that would write where the old one does needs a word."""
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
    """Each source of the new application. With other brokers, the offsets of the old ones mean nothing."""
    was = _sources(before)
    now = _sources(after)
    for name in request.sources:
        if name not in now:
            raise InvalidInput(f"sources names {name!r}; the pipeline's sources are {', '.join(sorted(now))}.")
        if _BROKERS not in now[name]:
            raise InvalidInput(f"Source {name!r} does not read from Kafka: it goes on where the snapshot says.")
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
    """What has to be said before it can be imported, in sentences."""
    found = [
        f"Sink {move.sink!r} would write to {move.becomes}, as the exported application does{_hint(move, parameters)}: "
        "name another place in the parameters, map it, have nothing written (shadow), or say that it stays (keep)."
        for move in sinks
        if move.needs_mapping
    ]
    return found + [
        f"Source {source.source!r} would read from other brokers ({source.becomes.get(_BROKERS)}): say at what time it "
        "goes on there (sources)."
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
    """What the branches of bundles are called here."""

    def __init__(self, database: Database, store: LineageStore) -> None:
        self._database = database
        self._store = store

    def header(self, header: BundleHeader, project: str) -> BundleHeader:
        """The header for ``project``; what a renamed snapshot's checksum will be is not known yet. Raises ``Conflict``
        as :meth:`renaming` does."""
        renaming = self.renaming(header, project)
        return header if renaming is None else renaming.header(header, renaming.missing(header.snapshot))

    def renaming(self, header: BundleHeader, project: str, decided: str | None = None) -> Renaming | None:
        """``None`` where all branches are the project's: they keep their names, and come home to where they began.
        ``decided``: the new name of the snapshot's branch, once an import was asked for.

        Raises ``Conflict`` where an increment's beginning was not copied into the project, or is not there any more."""
        if all(project_of(branch.id) == project for branch in header.branches):
            return None
        if header.since is None:
            return _renaming(header, project, header.snapshot.sha256, None)
        return self._onto_a_copy(header, header.since, project, decided)

    def _onto_a_copy(
        self, header: BundleHeader, since: ManifestReference, project: str, decided: str | None
    ) -> Renaming:
        """Of an increment: the names are those that its beginning has here, which its manifest says. There may be
        several copies of it: any will do, but the same one for all of an import."""
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
        raise BundleError("The bundle has two branches that would get the same name here: it was altered.")
    return Renaming(branch, application, header.origin.control_plane, snapshot, since)


def renamed(bundle: UnpackedBundle, renaming: Renaming, check: Callable[[], None]) -> UnpackedBundle:
    """The bundle with other names, in a folder inside its own; its data files stay where they are. ``check`` is called
    before each manifest, and may raise. Raises ``BundleError``, ``StorageFull``."""
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
                member = manifests.get(was.sha256) or replace(was, paths=tuple(map(renaming.path, was.paths)))
                members.write(member_form.dump_json(member) + b"\n")
                size += member.bytes
        (folder / HEADER).write_text(header.model_copy(update={"bytes": size}).model_dump_json())
    return UnpackedBundle(folder)


def _manifests(
    bundle: UnpackedBundle, renaming: Renaming, check: Callable[[], None]
) -> tuple[Mapping[str, Member], ManifestReference]:
    """The manifests, written again, by the checksums that they had; and the bundle's snapshot among them."""
    found: dict[str, Member] = {}
    since = bundle.header.since
    known = {} if since is None or renaming.since is None else {since.sha256: renaming.since}
    for member in reversed([member for member in bundle.members() if member.manifest is not None]):
        check()
        was = Manifest.decode(member.file.read_bytes(), member.paths[0])
        parent = None if was.parent is None else known.get(was.parent.sha256)
        manifest = renaming.manifest(was, member.sha256, parent)
        reference = manifest.reference(renaming.path(member.paths[0]))
        found[member.sha256] = _written(member, manifest.encode(), reference)
        known = {member.sha256: reference}  # they are one line, oldest first
    snapshot = known.get(bundle.header.snapshot.sha256)
    if snapshot is None:
        raise BundleError("The bundle does not hold its snapshot's manifest: it was altered.")
    return found, snapshot


def _written(member: Member, data: bytes, reference: ManifestReference) -> Member:
    file = member.file.with_name(reference.sha256)
    with storage_errors(str(file)):
        file.write_bytes(data)
    member.file.unlink()
    return replace(
        member, sha256=reference.sha256, bytes=len(data), file=file, paths=(reference.path,), manifest=reference
    )
