"""Import of a bundle: its files are written to the store, then one transaction changes the catalog.

=====  ===========================================================================================
step   what
=====  ===========================================================================================
I1     a separate process reads the bundle and checks each member; branches of another project get names
       of the importing project; existing files of the store are not changed
I2     the bundle is complete, and the snapshot has all its files
I3     one transaction: code, branches and epochs, the new application, its branch
I4     the upload is deleted
=====  ===========================================================================================

After a crash, any control plane repeats the import; files of a refused bundle are removed. Until I3 the catalog
contains only the operation, which belongs to the new application from then on, and the names of unused files.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from epochal.errors import CatalogUnavailable, Conflict, FileMissing, OutcomeUnknown, StoreRefuses, StoreUnavailable
from epochal.faults import declare
from epochal.service.catalog.artifacts import ArtifactRepository
from epochal.service.catalog.bundles import ImportedRows
from epochal.service.catalog.database import Database, Session
from epochal.service.catalog.models import Operation
from epochal.service.catalog.operation_claims import Claim
from epochal.service.catalog.operations import OperationRepository
from epochal.service.catalog.projects import APPLICATIONS, ProjectRepository
from epochal.service.commands.bundles.mapping import BundleNames, renamed
from epochal.service.commands.bundles.unpacking import UnpackedBundle, unpacked
from epochal.service.commands.bundles.uploads import Uploads, Written, unpacked_folder, upload_file
from epochal.service.domain.operations import Interrupted
from epochal.service.domain.settings import Settings
from epochal.service.runtime.artifact_files import check_artifact, kind_of
from epochal.service.runtime.stored_files import StoredFiles
from epochal.snapshots import layout
from epochal.snapshots.bundle_format import BundleEpoch, BundleError, BundleHeader
from epochal.snapshots.bundle_reading import BundleLimits, Member
from epochal.snapshots.bundle_writing import needed_files
from epochal.snapshots.lineage_bounds import LineageStore
from epochal.snapshots.manifest import FileReference
from epochal.wire.bundles import ImportArguments, ImportResult
from epochal.wire.projects import local_name, project_of

_PIECE = 4 << 20

RENAMED = declare("import.renamed", "the bundle's branches have names of the project, nothing of it is in the store")
READ = declare("import.member-stored", "one more member of the bundle is in the store")
STORED = declare("import.stored", "the bundle's files are in the store, the catalog is unchanged")
WRITTEN = declare("import.written", "the new application is in an uncommitted transaction")
REGISTERED = declare("import.registered", "the new application exists, the upload is not deleted yet")


@dataclass
class Contents:
    """Contents of a bundle. ``manifests`` newest first; ``artifacts`` by checksum."""

    header: BundleHeader
    epochs: Sequence[BundleEpoch]
    written: Written
    """New paths in the store."""
    manifests: list[Member] = field(default_factory=list)
    artifacts: dict[str, Path] = field(default_factory=dict)

    @property
    def whole(self) -> int:
        """Number of manifests, from the newest on, that can be read and continued from: those up to the last bases
        and the last positions of the sources. Older ones are present only because later ones depend on them."""
        everything = len(self.manifests)
        bases = next((at + 1 for at, member in enumerate(self.manifests) if member.has_bases), everything)
        positions = next((at + 1 for at, member in enumerate(self.manifests) if member.has_checkpoints), everything)
        return min(bases, positions)


class Importing:
    def __init__(
        self, settings: Settings, database: Database, store: LineageStore, files: StoredFiles, uploads: Uploads
    ) -> None:
        self._settings = settings
        self._database = database
        self._store = store
        self._files = files
        self._uploads = uploads
        self._names = BundleNames(database, store)

    def run(self, claim: Claim, arguments: ImportArguments, finish: Callable[..., None]) -> None:
        """``finish(session, operation, result)`` ends the operation, in the transaction that creates the application.

        Raises ``BundleError``, ``Conflict``, ``StorageFull``; then nothing but the upload is left behind.
        """
        limit = self._settings.limits
        limits = BundleLimits(artifact=limit.artifact_bytes, all=limit.bundle_unpacked_bytes)
        written = self._uploads.written(claim.id)
        code: _Code | None = None
        try:
            _, bundle = self._uploads.whole(arguments.upload)
            with unpacked(bundle, unpacked_folder(bundle), limits) as read:
                contents = self._bring_in(self._named_here(read, arguments, claim), written, claim)
                self._check_complete(contents)
                code = _Code(self._settings, contents.header, contents.artifacts)
                code.keep(self._database, self._files)
                STORED.hit()
                with self._database.writing() as session:
                    row = claim.decide(session)
                    result = self._register(session, row, arguments, contents, code)
                    WRITTEN.hit()
                    written.stays(session)
                    # Otherwise a client could resume this upload before it is removed.
                    self._uploads.give_up(session, arguments.upload)
                    finish(session, row, result)
        except (CatalogUnavailable, OutcomeUnknown, Interrupted):
            raise  # Either committed, or retried with the files that are already in the store.
        except Exception as error:
            if isinstance(error, StoreUnavailable) and not isinstance(error, StoreRefuses):
                raise  # The operation waits for the store, and continues with these files.
            self._remove(written)
            if code is not None:
                code.take_back(self._files)
            raise
        REGISTERED.hit()
        written.forget()
        self._uploads.remove(arguments.upload)

    def sweep(self, claim: Claim, arguments: ImportArguments) -> None:
        """Remove everything, including the upload."""
        self._remove(self._uploads.written(claim.id))
        folder = unpacked_folder(upload_file(self._settings, arguments.upload))
        shutil.rmtree(folder, ignore_errors=True)
        self._uploads.remove(arguments.upload)

    def _remove(self, written: Written) -> None:
        for path in written.paths:
            self._store.delete(path)
        written.forget()

    def _named_here(self, bundle: UnpackedBundle, arguments: ImportArguments, claim: Claim) -> UnpackedBundle:
        """Rename the branches; nothing after this step depends on their previous names."""
        renaming = self._names.renaming(bundle.header, project_of(arguments.name), arguments.branch)
        if renaming is None:
            return bundle
        bundle = renamed(bundle, renaming, claim.check)
        RENAMED.hit()
        return bundle

    def _bring_in(self, bundle: UnpackedBundle, written: Written, claim: Claim) -> Contents:
        """I1."""
        contents = Contents(bundle.header, bundle.epochs(), written=written)
        missing = {path for member in bundle.members() for path in member.paths if not self._has(path, member, claim)}
        written.add(sorted(missing.difference(written.paths)))
        done = 0
        for member in bundle.members():
            done += member.bytes
            for path in member.paths:
                if path in missing:
                    with pa.memory_map(str(member.file)) as mapped:
                        self._store.write(path, mapped.read_buffer())
            if member.manifest is not None:
                contents.manifests.append(member)
            if member.kind == "artifacts":
                contents.artifacts[member.sha256] = member.file
            READ.hit()
            claim.progress(f"{done} of {bundle.header.bytes} bytes")
        return contents

    def _has(self, path: str, member: Member, claim: Claim) -> bool:
        """Return whether the store has the member. Raises ``Conflict`` if the store has a different file."""
        claim.check()
        try:
            same = self._store.size(path) == member.bytes and self._sha256(path, member) == member.sha256
        except FileMissing:
            return False
        if not same:
            raise Conflict(
                f"File {path} of the store differs from the bundle's: two different branches have the same name. "
                "Import the bundle into another control plane."
            )
        return True

    def _sha256(self, path: str, member: Member) -> str:
        """Checksum of the existing file, read in pieces."""
        digest = hashlib.sha256()
        with self._store.open(FileReference(path=path, sha256=member.sha256, bytes=member.bytes, rows=0), path) as file:
            while piece := file.read(_PIECE):
                digest.update(piece)
        return digest.hexdigest()

    def _check_complete(self, contents: Contents) -> None:
        """I2: all files that the snapshot needs are present and belong to it."""
        begin_at = {branch.id: branch.parent for branch in contents.header.branches}
        store = self._store.with_branches(begin_at)
        manifests, files = needed_files(store, contents.header.snapshot, None)
        needed = {reference.path for reference in manifests} | {file.stored_in for file in files}
        for path in sorted(needed):
            try:
                self._store.size(path)
            except FileMissing:
                raise BundleError(
                    f"The bundle's snapshot needs {path}, which is neither in the bundle nor in the store: the bundle "
                    "was altered, or the base of an increment was collected."
                ) from None

    def _register(
        self, session: Session, operation: Operation, arguments: ImportArguments, contents: Contents, code: _Code
    ) -> ImportResult:
        """I3."""
        project = operation.project
        rows = ImportedRows(session, contents.header, project, operation.created_by)
        rows.check()
        code.register(session, project, operation.created_by)
        rows.add_owners()
        references = [member.manifest for member in contents.manifests if member.manifest is not None]
        whole = {reference.key for reference in references[: contents.whole]}
        rows.add_epochs(contents.epochs, {reference.key: reference for reference in references}, whole)
        application = rows.add_application(arguments.model_dump(mode="json"))
        OperationRepository(session).give(operation, application)
        ProjectRepository(session).check_room(project, APPLICATIONS)
        return ImportResult(
            application=local_name(application.name),
            branch=application.branch,
            parent=contents.header.snapshot.key,
            files=len(contents.written.paths),
        )


class _Code:
    """The code in a bundle, handled like an upload. ``artifacts``: by checksum."""

    def __init__(self, settings: Settings, header: BundleHeader, artifacts: Mapping[str, Path]) -> None:
        self._settings = settings
        self._filenames = {version.artifact: version.filename for version in header.versions}
        self._artifacts = artifacts
        self._kept: dict[str, str] = {}

    def keep(self, database: Database, files: StoredFiles) -> None:
        """Store the code unless it exists; it is deleted again unless it is registered.

        Raises ``ArtifactError``, ``StorageFull``; ``BundleError`` if the bundle does not contain it.
        """
        with database.reading() as session:
            known = {sha256: ArtifactRepository(session).find(sha256) for sha256 in self._filenames}
        for sha256, filename in self._filenames.items():
            if sha256 not in self._artifacts:
                raise BundleError(f"The bundle does not contain the code {sha256}: it was altered.")
            content = self._artifacts[sha256].read_bytes()
            check_artifact(filename, content, self._settings.limits.artifact_unpacked_bytes)
            row = known[sha256]
            if row is None or row.path is None:
                self._kept[sha256] = layout.artifact(sha256, kind_of(filename))
                files.write("artifact", sha256, self._kept[sha256], content)

    def take_back(self, files: StoredFiles) -> None:
        """Delete code that was stored and not registered."""
        for path in self._kept.values():
            files.delete(path)

    def register(self, session: Session, project: str, by: str) -> None:
        """Register the code in the catalog. Raises ``Conflict`` if existing code was deleted meanwhile."""
        repository = ArtifactRepository(session)
        for sha256, filename in self._filenames.items():
            size = self._artifacts[sha256].stat().st_size
            if sha256 in self._kept:
                repository.register(sha256, filename, size, project, by, self._kept[sha256], None)
            elif repository.uploaded_again(sha256, filename, project) is None:
                raise Conflict(f"The artifact {sha256} was deleted while it was imported; import the bundle again.")
