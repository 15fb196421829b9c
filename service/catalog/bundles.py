"""Rows of a bundle: those that an export writes, and those that an import adds."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from epochal.contracts.catalog import EpochCounts, ManifestReference
from epochal.contracts.configuration import Acceptance
from epochal.contracts.identity import EpochKey
from epochal.engine.epoch import State
from epochal.errors import Conflict
from epochal.pipeline.description import GraphDescription
from epochal.service.catalog.applications import ApplicationRepository
from epochal.service.catalog.executions import BranchOrigin
from epochal.service.catalog.models import Application, Artifact, Branch, Epoch, Execution, Version
from epochal.service.catalog.records import changes_of, columns_of, due_of, key_of, manifest_of, terms_of
from epochal.service.catalog.types import now
from epochal.service.catalog.versions import VersionRepository
from epochal.service.domain.identifiers import new_id
from epochal.snapshots.bundle_format import BundleBranch, BundleEpoch, BundleError, BundleHeader, BundleVersion
from epochal.wire.configuration import ApplicationConfiguration
from epochal.wire.projects import full_name, local_name

IMPORTED = "imported"
"""Key in the origin of an imported branch: the application that exported it."""


class ExportedRows:
    """Rows of exported snapshots and of their ancestors."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def maker(self, key: EpochKey) -> tuple[str, int]:
        """The application that created the snapshot, and the number of its version."""
        row = self._session.get_one(Epoch, (key.branch, key.epoch))
        execution = self._session.get_one(Execution, row.execution)
        return self._session.get_one(Application, execution.application).name, row.version or execution.version

    def epoch(self, key: EpochKey) -> BundleEpoch:
        row = self._session.get_one(Epoch, (key.branch, key.epoch))
        return BundleEpoch(
            branch=row.branch,
            epoch=row.epoch,
            attempt=row.attempt,
            parent=key_of(row.parent_branch, row.parent_epoch),
            version=row.version or self._session.get_one(Execution, row.execution).version,
            changes=changes_of(row),
            opened_for=tuple(row.opened_for or ()),
            watermarks=row.watermarks or {},
            next_due=due_of(row),
            counts=EpochCounts(
                rows_in=row.rows_in or 0,
                rows_out=row.rows_out or 0,
                state_rows=row.state_rows or 0,
                state_bytes=row.state_bytes or 0,
                late_rows=row.late_rows or {},
                rejected_rows=row.rejected_rows or {},
                dropped_timers=row.dropped_timers or {},
            ),
            started_at=row.started_at,
            prepared_at=row.prepared_at,
            committed_at=row.committed_at,
        )

    def branches(self, snapshot: EpochKey, ids: Collection[str]) -> tuple[BundleBranch, ...]:
        """These branches of the lineage of ``snapshot`` and all between them, newest first.

        Without those between them, an importer could not tell that the oldest one is in the lineage.
        """
        found: list[BundleBranch] = []
        left, at = set(ids), snapshot.branch
        while left:
            row = self._session.get_one(Branch, at)
            found.append(_bundle_branch(row))
            left.discard(at)
            if row.parent_branch is None:
                break
            at = row.parent_branch
        assert not left, f"{left} are not in the lineage of {snapshot}"
        return tuple(found)

    def versions(self, epochs: Iterable[BundleEpoch]) -> list[BundleVersion]:
        """Versions with which the epochs ran, by application and number."""
        versions_used = {(self._session.get_one(Branch, epoch.branch).application, epoch.version) for epoch in epochs}
        query = select(Version, Artifact.filename).join(Artifact)
        found = self._session.execute(
            query.where(Version.application.in_({application for application, _ in versions_used}))
        )
        return [
            BundleVersion(
                application=row.application,
                number=row.number,
                artifact=row.artifact,
                filename=filename,
                parameters=row.parameters,
                configuration=row.configuration,
                graph=row.graph,
                created_at=row.created_at,
                created_by=row.created_by,
            )
            for row, filename in sorted(found, key=lambda found: (found[0].application, found[0].number))
            if (row.application, row.number) in versions_used
        ]

    def names(self, applications: Collection[str]) -> dict[str, str]:
        """Names by id."""
        query = select(Application.id, Application.name).where(Application.id.in_(applications))
        return {row.id: row.name for row in self._session.execute(query)}


class ImportedRows:
    """Rows of an imported bundle. Ancestors belong to an application that is created as deleted: it owns their branches
    only, is never listed, and occupies no name."""

    def __init__(self, session: Session, header: BundleHeader, project: str, by: str) -> None:
        """``project``: the importing project. Rows of other projects are not visible to the import."""
        self._session = session
        self._header = header
        self._project = project
        self._by = by
        self._executions: dict[tuple[str, int], Execution] = {}

    def check(self) -> None:
        """Raises ``Conflict`` if existing rows contradict the bundle."""
        self._check_since()
        self._check_branches()

    def _check_since(self) -> None:
        """Raises ``Conflict`` unless the base snapshot of an incremental bundle exists."""
        since = self._header.since
        if since is None:
            return
        row = self._session.get(Epoch, (since.branch, since.epoch), populate_existing=True)
        mine = row is not None and self._is_mine(self._session.get_one(Branch, since.branch))
        if row is None or not mine or row.manifest_sha256 != since.sha256 or row.collected_at is not None:
            raise since_is_not_here(since.key)

    def _check_branches(self) -> None:
        """Raises ``Conflict`` if another branch of this control plane has the name of a branch of the bundle."""
        for branch in self._header.branches:
            row = self._session.get(Branch, branch.id)
            if row is not None and not (_is_same(row, branch) and self._is_mine(row)):
                raise Conflict(
                    f"Branch {branch.id} of the bundle has the name of another branch here. Import it into another "
                    "control plane."
                )

    def _is_mine(self, branch: Branch) -> bool:
        """Return whether the branch belongs to the project. Otherwise a bundle could refer to the state of another
        project."""
        return self._session.get_one(Application, branch.application).project == self._project

    def add_owners(self) -> None:
        """Create the applications that own the bundle's branches, without epochs, unless the branches exist: imported
        before, or created by this control plane."""
        for application in dict.fromkeys(branch.application for branch in self._header.branches):
            branches = [branch for branch in self._header.branches if branch.application == application]
            new = [branch for branch in branches if self._session.get(Branch, branch.id) is None]
            known = [row for branch in branches if (row := self._session.get(Branch, branch.id)) is not None]
            owner = (
                self._session.get_one(Application, known[0].application)
                if known
                else self._new_owner(self._header.name_of(application), new)
            )
            for branch in new:
                self._session.add(self._branch(branch, owner))
            self._session.flush()
            if not known or _is_imported(known[0]):
                self._add_versions(owner, application)

    def add_epochs(
        self,
        epochs: Sequence[BundleEpoch],
        manifests: Mapping[EpochKey, ManifestReference],
        whole: Collection[EpochKey],
    ) -> None:
        """Add epochs that do not exist. Raises ``Conflict`` if an existing epoch differs, or if an epoch claims to
        belong to a branch that this control plane wrote and does not."""
        for epoch in reversed(epochs):
            key = epoch.key
            reference = manifests.get(key)
            if reference is None:
                raise BundleError(f"Invalid bundle: it refers to snapshot {key} and does not contain it.")
            row = self._session.get(Epoch, (epoch.branch, epoch.epoch))
            if row is None:
                if not _is_imported(self._session.get_one(Branch, epoch.branch)):
                    raise Conflict(
                        f"Branch {epoch.branch} was written by this control plane, and has no snapshot {key} as "
                        "the bundle does."
                    )
                self._add_epoch(epoch, reference, key in whole)
            elif row.manifest_sha256 != reference.sha256:
                raise Conflict(f"Snapshot {key} exists, and differs from that of the bundle.")
            elif key in whole:
                row.collected_at = None  # the bundle restores its files
        self._session.flush()

    def add_application(self, order: Mapping[str, Any]) -> Application:
        """Create the application, on a separate branch at the bundle's snapshot."""
        origin = self._header.origin
        key = self._header.snapshot.key
        row = ApplicationRepository(self._session).add(
            order["name"], BranchOrigin("import", key, order.get("message")), order["shadow"], self._by
        )
        branch = self._session.get_one(Branch, row.branch)
        branch.origin = {
            **origin.model_dump(mode="json"),
            "bundle_sha256": order["sha256"],
            "sources": order["sources"],
        }
        VersionRepository(self._session).add(
            row,
            1,
            self._header.made_with.artifact,
            order["parameters"],
            ApplicationConfiguration.model_validate(order["configuration"]),
            GraphDescription.model_validate(order["graph"]),
            self._by,
            acceptance=Acceptance.model_validate(order["acceptance"]),
        )
        return row

    def _new_owner(self, name: str, branches: Sequence[BundleBranch]) -> Application:
        moment = now()
        owner = Application(
            id=new_id(),
            name=full_name(self._project, local_name(name)),
            project=self._project,
            branch=branches[0].id,
            shadow=False,
            created_at=moment,
            updated_at=moment,
            created_by=self._by,
            deleted_at=moment,
        )
        self._session.add(owner)
        self._session.flush()
        return owner

    def _branch(self, branch: BundleBranch, owner: Application) -> Branch:
        origin = self._header.origin
        return Branch(
            id=branch.id,
            application=owner.id,
            kind=branch.kind,
            parent_branch=branch.parent.branch if branch.parent else None,
            parent_epoch=branch.parent.epoch if branch.parent else None,
            attempt=0,
            owned=False,
            last_attempt=0,
            message=branch.message,
            origin={
                IMPORTED: {
                    "control_plane": origin.control_plane,
                    "application": self._header.name_of(branch.application),
                }
            },
            created_at=branch.created_at,
            created_by=branch.created_by,
        )

    def _add_versions(self, owner: Application, application: str) -> None:
        for version in self._header.versions:
            if version.application == application and self._session.get(Version, (owner.id, version.number)) is None:
                self._session.add(
                    Version(
                        application=owner.id,
                        number=version.number,
                        artifact=version.artifact,
                        parameters=version.parameters,
                        configuration=version.configuration,
                        graph=version.graph,
                        created_at=version.created_at,
                        created_by=version.created_by,
                    )
                )
        self._session.flush()

    def _add_epoch(self, epoch: BundleEpoch, reference: ManifestReference, whole: bool) -> None:
        branch = self._session.get_one(Branch, epoch.branch)
        moment = now()
        self._session.add(
            Epoch(
                branch=epoch.branch,
                epoch=epoch.epoch,
                execution=self._execution(branch, epoch).id,
                attempt=epoch.attempt,
                state=State.COMMITTED.value,
                parent_branch=epoch.parent.branch if epoch.parent else None,
                parent_epoch=epoch.parent.epoch if epoch.parent else None,
                manifest_path=reference.path,
                manifest_sha256=reference.sha256,
                version=epoch.version,
                collected_at=None if whole else moment,
                started_at=epoch.started_at,
                prepared_at=epoch.prepared_at or epoch.started_at,
                committed_at=epoch.committed_at or epoch.started_at,
                **terms_of(epoch),
                **columns_of(epoch.counts),
            )
        )
        branch.committed_epochs += 1
        if branch.head_epoch is None or branch.head_branch != branch.id or branch.head_epoch < epoch.epoch:
            branch.head_branch, branch.head_epoch = branch.id, epoch.epoch

    def _execution(self, branch: Branch, epoch: BundleEpoch) -> Execution:
        """The epochs of one branch and version refer to one execution, which has ended."""
        version = epoch.version or 1
        key = (branch.id, version)
        if key not in self._executions:
            query = select(Execution).where(Execution.branch == branch.id, Execution.version == version)
            found = self._session.scalars(query.limit(1)).first()
            self._executions[key] = found or self._new_execution(branch, version)
        return self._executions[key]

    def _new_execution(self, branch: Branch, version: int) -> Execution:
        if self._session.get(Version, (branch.application, version)) is None:
            raise BundleError(f"Invalid bundle: it does not describe version {version} of its application.")
        moment = now()
        execution = Execution(
            id=new_id(),
            application=branch.application,
            version=version,
            branch=branch.id,
            state="stopped",
            attempt=0,
            available_now=False,
            drain=True,
            started_at=moment,
            ended_at=moment,
        )
        self._session.add(execution)
        self._session.flush()
        return execution


def since_is_not_here(key: EpochKey) -> Conflict:
    """The error for an incremental bundle without its base snapshot."""
    return Conflict(
        f"The bundle is incremental since snapshot {key}, which does not exist here or has expired. Import a "
        "bundle that ends with that snapshot first, or export the whole snapshot."
    )


def imported_at(session: Session, name: str, epoch: int, project: str) -> Sequence[ManifestReference]:
    """Snapshots with this number that were imported into ``project``, on branches whose ids begin with ``name`` and a
    hyphen; by id."""
    query = (
        select(Epoch, Branch)
        .join(Branch, Branch.id == Epoch.branch)
        .join(Application, Application.id == Branch.application)
        .where(Branch.id.startswith(f"{name}-", autoescape=True), Epoch.epoch == epoch)
        .where(Application.project == project, Epoch.collected_at.is_(None))
        .order_by(Epoch.branch)
    )
    found = session.execute(query)
    return [reference for row, branch in found if _is_imported(branch) and (reference := manifest_of(row)) is not None]


def _is_imported(row: Branch) -> bool:
    """Return whether the branch was imported; another bundle may contain more of its epochs."""
    return (row.origin or {}).get(IMPORTED) is not None


def _is_same(row: Branch, branch: BundleBranch) -> bool:
    """Return whether the branch was imported before, or returns to the control plane that created it."""
    here = (row.kind, key_of(row.parent_branch, row.parent_epoch), row.created_at, row.created_by)
    return here == (branch.kind, branch.parent, branch.created_at, branch.created_by)


def _bundle_branch(row: Branch) -> BundleBranch:
    return BundleBranch(
        id=row.id,
        application=row.application,
        kind=row.kind,
        parent=key_of(row.parent_branch, row.parent_epoch),
        message=row.message,
        created_at=row.created_at,
        created_by=row.created_by,
    )
