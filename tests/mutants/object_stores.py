"""Wrong ways to use an object store that is away, and to move an installation into one."""

from __future__ import annotations

from typing import Any

from tests.mutants.mutant import change, mutant

STORY = "tests/servers/end_to_end/test_s3_store.py::test_"
CONTRACT = "tests/servers/contract/test_s3_snapshots.py"
WAITING = "tests/unit/test_store_waiting.py"
SOURCES = "tests/unit/test_source_waiting.py"
MOVING = "tests/service/test_store_copy.py"
LATE = "tests/servers/contract/test_s3_sink.py -k late_list"
SIMULATION = "tests/simulation/test_simulation.py"


@mutant("object stores: a store that is away has no files", f"{STORY}operations_wait_for_a_store_that_is_away")
def _away_is_missing() -> None:
    from epochal.errors import StoreUnavailable
    from epochal.snapshots.references import References

    def forgetful(needed: Any) -> Any:
        def wrong(self: Any, snapshot: Any) -> Any:
            try:
                return needed(self, snapshot)
            except StoreUnavailable:
                return set()

        return wrong

    change(References, "needed", forgetful)


@mutant(
    "object stores: a request that fails within a file damages it",
    f"{STORY}part_of_a_file_that_cannot_be_read_is_not_damage",
)
def _part_away_is_damage() -> None:
    from epochal.snapshots.remote_files import RemoteFile

    change(RemoteFile, "read", lambda _: lambda self, size=-1: bytes(self._source.read(size)))


@mutant("object stores: the claim is unconditional", f"{STORY}one_of_two_catalogs_that_claim_a_bucket_gets_it")
def _claim_overwrites() -> None:
    from epochal.service.runtime import store_claim
    from epochal.snapshots.ownership import give_to

    def overwriting(store: Any, owner: Any) -> bool:
        give_to(store, owner)
        return True

    change(store_claim, "give_new", lambda _: overwriting)


@mutant("object stores: attempts that wait for the store use up restarts", WAITING)
def _waiting_uses_up_restarts() -> None:
    from epochal.service.domain import supervision

    change(supervision, "ended_by_outage", lambda _: lambda failure: False)


@mutant("object stores: an epoch that the store aborts counts as failed", WAITING)
def _aborted_counts() -> None:
    from epochal.engine.store_wait import StoreWait

    change(StoreWait, "explains", lambda _: lambda self, failure: False)


@mutant("engine: an epoch whose tasks cannot read a source counts as failed", SOURCES)
def _unread_counts() -> None:
    from epochal.engine.source_wait import SourceWait

    change(SourceWait, "explains", lambda _: lambda self, failure, names: False)


@mutant("engine: a source that does not answer ends the attempt", SOURCES)
def _unplanned_ends() -> None:
    from epochal.engine.source_wait import SourceWait

    def plan(self: Any, sources: Any, limits: Any) -> Any:
        planned = {name: source.plan(limits) for name, source in sources.items()}
        return {name: slice for name, slice in planned.items() if slice is not None}

    change(SourceWait, "plan", lambda _: plan)


@mutant("object stores: an unknown outcome of a create is taken for a failure", CONTRACT)
def _unknown_is_failure() -> None:
    from epochal.snapshots.store import SnapshotStore

    def hasty(self: Any, path: str, data: bytes) -> bool:
        with self._remote(path, "written") as files:
            try:
                files.create(path, data)
            except FileExistsError:
                return False
        return True

    change(SnapshotStore, "create", lambda _: hasty)


@mutant("object stores: a listing is remembered", f"{CONTRACT}::test_files_of_another_process_are_listed_immediately")
def _stale_listing() -> None:
    from epochal.snapshots.store import SnapshotStore

    def remembering(list: Any) -> Any:
        found: dict[Any, Any] = {}

        def wrong(self: Any, folder: str) -> Any:
            if (self.url, folder) not in found:
                found[self.url, folder] = list(self, folder)
            return found[self.url, folder]

        return wrong

    change(SnapshotStore, "list", remembering)


@mutant("object stores: a conditional put is not conditional", f"{CONTRACT}::test_one_of_several_creators_wins")
def _unconditional_create() -> None:
    from epochal.snapshots.object_store import ObjectStoreFiles

    change(ObjectStoreFiles, "create", lambda _: ObjectStoreFiles.write)


@mutant("object stores: a late list of a dead driver wins", LATE)
def _late_list_wins() -> None:
    from epochal.snapshots.object_store import ObjectStoreFiles

    def overwriting(self: Any, path: str, data: bytes, version: str) -> None:
        self.write(path, data)

    change(ObjectStoreFiles, "create", lambda _: ObjectStoreFiles.write)
    change(ObjectStoreFiles, "replace", lambda _: overwriting)


@mutant("object stores: the latest manifest in the store is the head, not that of the catalog", SIMULATION)
def _late_manifest_wins() -> None:
    import hashlib

    from epochal.contracts.catalog import ManifestReference
    from epochal.engine.recovery import Recovery
    from epochal.snapshots import layout

    def newest(find: Any) -> Any:
        def wrong(self: Any, point: Any) -> Any:
            written = layout.by_epoch(self.store.list(layout.manifests(point.branch)))
            epoch = max(written, default=0)
            if epoch > (point.head.epoch if point.head is not None else 0):
                path = written[epoch][0]
                sha256 = hashlib.sha256(self.store.manifest_bytes(path)).hexdigest()
                head = ManifestReference(branch=point.branch, epoch=epoch, path=path, sha256=sha256)
                point = point.model_copy(update={"head": head})
            return find(self, point)

        return wrong

    change(Recovery, "_find", newest)


@mutant(
    "object stores: an import removes its files when the store is away", f"{STORY}export_and_import_wait_and_continue"
)
def _import_removes_files() -> None:
    from epochal.service.commands.bundles import importing

    change(importing, "StoreUnavailable", lambda _: type("Never", (Exception,), {}))


@mutant("store copy: drivers of the old store are not fenced", MOVING)
def _old_drivers_continue() -> None:
    from epochal.service.catalog.store_moves import StoreMoveRepository

    change(StoreMoveRepository, "_end_attempts", lambda _: lambda self, store: None)


@mutant("store copy: the incarnation stays, so that both stores can be used", MOVING)
def _same_incarnation() -> None:
    from epochal.service.catalog.store_moves import StoreMoveRepository

    def staying(switch: Any) -> Any:
        def wrong(self: Any, store: str, incarnation: str, *others: Any) -> None:
            switch(self, store, self.installation().incarnation, *others)

        return wrong

    change(StoreMoveRepository, "switch", staying)


@mutant("store copy: the catalog is not compared again before the switch", MOVING)
def _without_comparison() -> None:
    from epochal.service.catalog.store_moves import StoreContents, StoreMoveRepository

    change(StoreContents, "is_within", lambda _: lambda self, copied: True)
    change(StoreMoveRepository, "check_unused", lambda _: lambda self, has_terminated: None)
