"""Can a version go on from a snapshot? Known from the catalog and the manifest, without building anything."""

from __future__ import annotations

from epochal.contracts.catalog import ManifestReference
from epochal.errors import IncompatibleState
from epochal.pipeline.description import GraphDescription
from epochal.service.catalog.models import Version
from epochal.snapshots.continuation import continuation, end_of_input
from epochal.snapshots.store import SnapshotStore
from epochal.wire.configuration import ApplicationConfiguration


def check_goes_on(store: SnapshotStore, version: Version, snapshot: ManifestReference) -> None:
    """Raises ``IncompatibleState`` with everything that stands against it."""
    manifest = store.read_manifest(snapshot)
    configuration = ApplicationConfiguration.model_validate(version.configuration)
    tables = None if version.graph is None else GraphDescription.model_validate(version.graph).tables
    problems = [] if tables is not None else list(end_of_input(manifest))
    if manifest.max_parallelism != configuration.max_parallelism:
        problems.append(
            f"it has {manifest.max_parallelism} key groups, version {version.number} has "
            f"{configuration.max_parallelism}; fork it with max_parallelism {manifest.max_parallelism} instead."
        )
    if tables is not None:
        problems += continuation(store, snapshot, tables, configuration.allow_dropped_state).problems
    if problems:
        raise IncompatibleState(
            f"Version {version.number} cannot go on from snapshot {snapshot.key}: {' '.join(problems)} "
            "Give the application a version that can, or fork the snapshot with one."
        )
