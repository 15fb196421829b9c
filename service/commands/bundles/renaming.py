"""Bundles of another project: their branches get names of the project that imports, and their files lie below these.

A bundle that has a branch of another project is renamed as a whole: manifests name their parents' checksums, so what
stands on a renamed snapshot is another one, too. The names follow from the bundle's snapshot. So an import that is
begun again, or the same bundle again, has the same ones; bundles of two snapshots have nothing in common; and whatever
a bundle says, it stands on nothing that another project has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from epochal.contracts.catalog import ManifestReference
from epochal.errors import SnapshotError
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
from epochal.wire.projects import full_name, local_name, project_of

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
